"""Read captures as memory-mapped files whose bodies are views, and write captures.

A capture may consist of several files. Each file is a complete capture, and its closing record
names the next file.
"""

from __future__ import annotations

import bisect
import itertools
import mmap
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import FileIO, RawIOBase
from pathlib import Path
from typing import Final

from triton_replay.capture.compression import compressor_of, decompressed
from triton_replay.capture.frames import Damage, check_preface, encode_frame, frames, preface
from triton_replay.capture.records import (
    Closing,
    Opening,
    Record,
    Request,
    Response,
    StreamMessage,
    decode_record,
    encode_record,
)
from triton_replay.errors import CaptureIncomplete, CaptureUnreadable, FileUnwritable
from triton_replay.wire.bodies import Body, header


@dataclass(frozen=True)
class Exchange:
    """A request and its response, which is None if the capture lacks it."""

    request: Request
    response: Response | None
    messages: tuple[StreamMessage, ...] = ()
    """Messages of a gRPC stream in both directions, in order."""

    @property
    def status(self) -> str:
        """The HTTP status, "grpc" with the gRPC status code, or "none"."""
        response = self.response
        if response is None or not response.status:
            return "none"
        if self.request.protocol == "http":
            return str(response.status)
        # A response without messages has its status in the headers.
        code = header(response.trailers, "grpc-status") or header(response.headers, "grpc-status")
        return f"grpc {code}" if code else "none"


Asked = tuple[Exchange, int]
"""One ask, i.e. one sending of a request to one server: its exchange, its latency in ns."""


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
    files: tuple[Path, ...] = ()

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
    """Read a capture and the files that continue it, up to its first damage.

    Raises:
        CaptureUnreadable: The file cannot be read, or is not a capture of this version.
        FileUnwritable: The temporary folder has no room for the decompressed capture.
    """
    damage: list[Damage] = []
    records = _records(_mapped(path), str(path), damage)
    opening = next(records, None)
    if not isinstance(opening, Opening):
        raise CaptureUnreadable(f"{path}: the first record is not readable")
    requests: dict[int, Request] = {}
    responses: dict[int, Response] = {}
    messages: defaultdict[int, list[StreamMessage]] = defaultdict(list)
    closing: Closing | None = None
    files = [path]
    for record in _with_later_files(records, files, damage):
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
    damaged = damage[0] if damage else None
    return Capture(str(path), opening, exchanges, closing, damaged, tuple(files))


def _with_later_files(
    records: Iterator[Record], files: list[Path], damage: list[Damage]
) -> Iterator[Record]:
    """Yield the records of a file and of the files that continue it; add these to `files`."""
    while True:
        last: Record | None = None
        for last in records:
            yield last
        if not isinstance(last, Closing) or not last.reason.startswith(CONTINUED):
            return
        name = Path(last.reason.removeprefix(CONTINUED)).name
        following = files[0].with_name(name or files[0].name)
        try:
            if following in files:
                raise CaptureUnreadable(f"{following}: found twice among the files of {files[0]}")
            records = _records(_mapped(following), str(following), damage)
        except CaptureUnreadable as error:
            yield replace(last, reason=str(error))
            return
        files.append(following)


def _mapped(path: Path) -> memoryview:
    try:
        with decompressed(path) as file:
            # An empty file cannot be mapped.
            if not os.fstat(file.fileno()).st_size:
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


# -- writing


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can access, as a capture holds data of users."""
    return os.open(path, flags, 0o600)


def _new_file(path: Path) -> FileIO:
    try:
        return FileIO(path, "xb", opener=_private)
    except FileExistsError as error:
        text = f"{path}: exists, and captures are not overwritten. Use another file name"
        raise CaptureUnreadable(text) from error
    except OSError as error:
        raise FileUnwritable(path, error) from error


CONTINUED: Final = "continued in "
"""Start of a closing record's `reason`; the name of the capture's next file follows."""


class CaptureWriter:
    """A new capture. Not thread-safe.

    Attributes:
        size: Bytes in all files.
        requests: Number of requests in all files.

    Args:
        file: An empty file, open for writing without buffer.
        name: Name of the file, for error texts.
        compress: Compresses the data of one write; None for no compression.
        rotate: Size in bytes from which another file continues the capture; 0 for one file.
    """

    def __init__(
        self,
        file: RawIOBase | FileIO,
        name: str,
        compress: Callable[[bytes], bytes] | None = None,
        rotate: int = 0,
    ) -> None:
        self._file = file
        self._name = self._first = name
        self._compress = compress
        self._rotate = rotate
        self._start = 0
        """Bytes in the earlier files."""
        self._part = 1
        self._opening: Opening | None = None
        self.size = 0
        self.requests = 0
        self._append(self._packed([preface()]))

    @classmethod
    def create(cls, path: Path, rotate: int = 0) -> CaptureWriter:
        """Create a capture that only its owner can read and write.

        Args:
            path: The file; its suffix `.gz` or `.zst` selects compression.
            rotate: Size in bytes from which another file continues the capture; 0 for one file.

        Raises:
            CaptureUnreadable: The file exists, or zstd is not installed.
            FileUnwritable: The file cannot be created.
            CaptureIncomplete: The disk is full.
        """
        compress = compressor_of(path)
        file = _new_file(path)
        try:
            return cls(file, str(path), compress, rotate)
        except CaptureIncomplete:
            file.close()
            path.unlink()  # nothing is in it
            raise

    def write(self, records: Iterable[Record]) -> None:
        """Append records.

        The records then survive the end of the process, and after `sync` a crash of the machine.

        Raises:
            CaptureIncomplete: The disk is full, or the next file exists. The file then ends with a
                whole record.
        """
        pieces: list[Body] = []
        written: list[Record] = []
        for record in records:
            meta, body = encode_record(record)
            pieces += encode_frame(meta, body)
            written.append(record)
            if self._opening is None and isinstance(record, Opening):
                self._opening = record
        if not written:
            return
        ends = list(itertools.accumulate(map(len, pieces), initial=self.size))[2::2]
        if self._compress is not None:
            pieces = self._packed(pieces)
            ends = [self.size + len(pieces[0])] * len(written)
        try:
            self._append(pieces, ends)
        finally:
            whole = bisect.bisect(ends, self.size)
            self.requests += sum(isinstance(record, Request) for record in written[:whole])
        is_full = self._rotate and self.size - self._start >= self._rotate
        if is_full and not isinstance(written[-1], Opening | Closing):
            self._begin_part()

    def sync(self) -> None:
        """Synchronize the file with the disk.

        Raises:
            CaptureIncomplete: The disk reports an error.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise CaptureIncomplete(f"{self._name}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _packed(self, pieces: list[Body]) -> list[Body]:
        return pieces if self._compress is None else [self._compress(b"".join(pieces))]

    def _begin_part(self) -> None:
        """Continue in the next file."""
        assert self._opening is not None
        path = part_of(Path(self._first), self._part + 1)
        try:
            file = _new_file(path)
        except (CaptureUnreadable, FileUnwritable) as error:
            self._rotate = 0  # later records stay in this file
            raise CaptureIncomplete(str(error)) from error
        self._part += 1
        self.write([Closing(0, f"{CONTINUED}{path.name}", {})])
        self.sync()
        self._file.close()
        self._file, self._name, self._start = file, str(path), self.size
        self._append(self._packed([preface()]))
        self.write(
            [replace(self._opening, settings={**self._opening.settings, "part": self._part})]
        )

    def _append(self, pieces: list[Body], ends: Sequence[int] = ()) -> None:
        """Append bytes; `ends` are the file sizes at which a record ends."""
        data = memoryview(b"".join(pieces))
        done = 0
        try:
            while done < len(data):
                done += self._file.write(data[done:]) or 0
        except OSError as error:
            # A reader would report an incomplete frame as damage.
            self.size = max((end for end in ends if end <= self.size + done), default=self.size)
            self._file.truncate(self.size - self._start)
            self._file.seek(self.size - self._start)
            text = f"{self._name}: {error.strerror}; {self.size} bytes of whole records are kept"
            raise CaptureIncomplete(text) from error
        self.size += done


def part_of(path: Path, number: int) -> Path:
    """Return the path of a capture's file: `monday.2.trc` is the second file of `monday.trc`."""
    stem, dot, rest = path.name.partition(".")
    return path.with_name(f"{stem}.{number}{dot}{rest}")
