"""Writes a capture: appends whole frames, and has the disk take them when told to."""

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
    """A new capture. Used by one thread at a time.

    file: opened for writing, unbuffered; `size` counts the bytes that it holds, `requests` the
    requests.
    """

    def __init__(self, file: RawIOBase | FileIO, name: str) -> None:
        self._file = file
        self._name = name
        self.size = 0
        self.requests = 0
        self._append([preface()])

    @classmethod
    def create(cls, path: Path) -> CaptureWriter:
        """Start a capture at `path`, which must not exist. Raises ReplayError."""
        try:
            file = path.open("xb", buffering=0)
        except FileExistsError as error:
            text = f"{path}: exists; captures are never overwritten, name another file"
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
        """Append records. Raises CaptureIncomplete if there is no room: what fits is whole records.

        What this returns from survives the end of this process, and after `sync` the machine's.
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
        """Wait until the disk has all that was written. Raises CaptureIncomplete."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise CaptureIncomplete(f"{self._name}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, pieces: list[Body], ends: Sequence[int] = ()) -> None:
        """ends: the sizes of the file at which all its records are whole."""
        data = memoryview(b"".join(pieces))
        done = 0
        try:
            while done < len(data):
                done += self._file.write(data[done:]) or 0
        except OSError as error:
            # Half a frame would tell a reader of damage where there is none.
            self.size = max((end for end in ends if end <= self.size + done), default=self.size)
            self._file.truncate(self.size)
            self._file.seek(self.size)
            text = f"{self._name}: {error.strerror}; it holds {self.size} bytes of whole records"
            raise CaptureIncomplete(text) from error
        self.size += done
