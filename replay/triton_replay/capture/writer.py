"""Writing of captures: whole frames are appended, and synchronized on request."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterable, Sequence
from io import FileIO, RawIOBase
from pathlib import Path

from triton_replay.capture.frames import encode_frame, preface
from triton_replay.capture.records import Record, Request, encode_record
from triton_replay.errors import CaptureIncomplete, CaptureUnreadable, FileUnwritable
from triton_replay.wire.bodies import Body


class CaptureWriter:
    """A new capture. Not thread-safe.

    Attributes:
        size: Bytes in the file.
        requests: Number of requests in the file.

    Args:
        file: An empty file, open for writing without buffer.
        name: Name of the file, for error texts.
    """

    def __init__(self, file: RawIOBase | FileIO, name: str) -> None:
        self._file = file
        self._name = name
        self.size = 0
        self.requests = 0
        self._append([preface()])

    @classmethod
    def create(cls, path: Path) -> CaptureWriter:
        """Create a capture.

        Raises:
            CaptureUnreadable: The file exists.
            FileUnwritable: The file cannot be created.
            CaptureIncomplete: The disk is full.
        """
        try:
            file = path.open("xb", buffering=0)
        except FileExistsError as error:
            text = f"{path}: exists, and captures are not overwritten. Use another file name"
            raise CaptureUnreadable(text) from error
        except OSError as error:
            raise FileUnwritable(path, error) from error
        try:
            return cls(file, str(path))
        except CaptureIncomplete:
            file.close()
            path.unlink()  # nothing is in it
            raise

    def write(self, records: Iterable[Record]) -> None:
        """Append records.

        After the return they survive the end of the process, after `sync` that of the machine.

        Raises:
            CaptureIncomplete: The disk is full. The file then ends with a whole record.
        """
        pieces: list[Body] = []
        written: list[Record] = []
        for record in records:
            meta, body = encode_record(record)
            pieces += encode_frame(meta, body)
            written.append(record)
        ends = list(itertools.accumulate(map(len, pieces), initial=self.size))[2::2]
        try:
            self._append(pieces, ends)
        finally:
            whole = bisect.bisect(ends, self.size)
            self.requests += sum(isinstance(record, Request) for record in written[:whole])

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
            self._file.truncate(self.size)
            self._file.seek(self.size)
            text = f"{self._name}: {error.strerror}; {self.size} bytes of whole records are kept"
            raise CaptureIncomplete(text) from error
        self.size += done
