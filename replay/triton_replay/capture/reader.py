"""Reads a capture, mapped into memory: bodies are views, and a large one costs no memory."""

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
    """A request with its response, which is None where the capture has none."""

    request: Request
    response: Response | None
    messages: tuple[StreamMessage, ...] = ()
    """Of a gRPC stream, of both sides, in the order in which they came."""

    @property
    def status(self) -> str:
        """As users know it: that of HTTP, `grpc` and its number, or `none`."""
        response = self.response
        if response is None or not response.status:
            return "none"
        if self.request.protocol == "http":
            return str(response.status)
        # A call that fails at once has its status in its headers.
        code = header(response.trailers, "grpc-status") or header(response.headers, "grpc-status")
        return f"grpc {code}" if code else "none"


@dataclass(frozen=True)
class Capture:
    """All of a capture that can be read."""

    name: str
    opening: Opening
    exchanges: tuple[Exchange, ...]
    """In the order in which the requests' last bytes came."""
    closing: Closing | None
    """None where the recorder was killed, or still runs."""
    damage: Damage | None
    """What follows the last whole record, if anything."""

    @property
    def complaint(self) -> str:
        """What is wrong with the file, in one sentence; empty if nothing is."""
        if self.damage is not None:
            offset, reason = self.damage
            return (
                f"{self.name}: {reason} at byte {offset}; the {len(self.exchanges)} requests "
                "before it are whole, what follows is lost"
            )
        if self.closing is None:
            return f"{self.name}: has no end: its writer was killed or found no room, or still runs"
        if self.closing.reason != "stopped":
            return f"{self.name}: is cut short: {self.closing.reason}"
        return ""


def read_capture(path: Path) -> Capture:
    """Read a capture, up to its damage if it has one. Raises CaptureUnreadable."""
    data = _mapped(path)
    damage: list[Damage] = []
    records = _records(data, str(path), damage)
    opening = next(records, None)
    if not isinstance(opening, Opening):
        raise CaptureUnreadable(f"{path}: its first record is not readable")
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
            # A mapping of nothing is refused.
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
