"""Reading of captures. The file is mapped into memory, and bodies are views of it."""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triton_replay.capture.frames import Damage, check_preface, frames
from triton_replay.capture.records import (
    Closing,
    Opening,
    Record,
    Request,
    Response,
    StreamMessage,
    decode_record,
)
from triton_replay.errors import CaptureUnreadable
from triton_replay.wire.bodies import header


@dataclass(frozen=True)
class Exchange:
    """A request with its response, or None if the capture has no response."""

    request: Request
    response: Response | None
    messages: tuple[StreamMessage, ...] = ()
    """Messages of a gRPC stream in both directions, in order."""

    @property
    def status(self) -> str:
        """The status: that of HTTP, "grpc" and its code, or "none"."""
        response = self.response
        if response is None or not response.status:
            return "none"
        if self.request.protocol == "http":
            return str(response.status)
        # A response without messages has its status in the headers.
        code = header(response.trailers, "grpc-status") or header(response.headers, "grpc-status")
        return f"grpc {code}" if code else "none"


@dataclass(frozen=True)
class Capture:
    """The readable content of a capture."""

    name: str
    opening: Opening
    exchanges: tuple[Exchange, ...]
    """Exchanges in the order in which the requests were complete."""
    closing: Closing | None
    """The last record; None if the recorder was killed or is still running."""
    damage: Damage | None
    """Damage after the last valid record, or None."""

    @property
    def complaint(self) -> str:
        """Describe what is wrong with the file, or ""."""
        if self.damage is not None:
            offset, reason = self.damage
            return (
                f"{self.name}: {reason} at byte {offset}; the {len(self.exchanges)} requests "
                "before it are used"
            )
        if self.closing is None:
            return (
                f"{self.name}: no closing record: the recorder was killed, is still running, "
                "or the disk was full"
            )
        if self.closing.reason != "stopped":
            return f"{self.name}: incomplete: {self.closing.reason}"
        return ""


def read_capture(path: Path) -> Capture:
    """Read a capture, up to its first damage.

    Raises:
        CaptureUnreadable: The file cannot be read, or is not a capture of this version.
    """
    data = _mapped(path)
    damage: list[Damage] = []
    records = _records(data, str(path), damage)
    opening = next(records, None)
    if not isinstance(opening, Opening):
        raise CaptureUnreadable(f"{path}: the first record is not readable")
    requests: dict[int, Request] = {}
    responses: dict[int, Response] = {}
    messages: defaultdict[int, list[StreamMessage]] = defaultdict(list)
    closing: Closing | None = None
    for record in records:
        if isinstance(record, Request):
            requests[record.number] = record
        elif isinstance(record, Response):
            responses[record.number] = record
        elif isinstance(record, StreamMessage):
            messages[record.number].append(record)
        elif isinstance(record, Closing):
            closing = record
    exchanges = tuple(
        Exchange(request, responses.get(number), tuple(messages.get(number, ())))
        for number, request in requests.items()
    )
    return Capture(str(path), opening, exchanges, closing, damage[0] if damage else None)


def _mapped(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            # An empty file cannot be mapped.
            if not path.stat().st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise CaptureUnreadable(f"{path}: cannot be read: {error.strerror}") from error


def _records(data: memoryview, name: str, damage: list[Damage]) -> Iterator[Record]:
    for frame in frames(data, check_preface(data, name)):
        if isinstance(frame, Damage):
            damage.append(frame)
            return
        try:
            yield decode_record(frame.meta, frame.body)
        except CaptureUnreadable as error:
            raise CaptureUnreadable(f"{name}: {error}") from error
