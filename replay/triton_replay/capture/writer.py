"""Writes a capture: appends whole frames, and has the disk take them when told to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import FileIO, RawIOBase
from pathlib import Path

from triton_replay.capture.frames import encode_frame, preface
from triton_replay.capture.records import Record, encode_record
from triton_replay.errors import CaptureIncomplete, CaptureUnreadable
from triton_replay.protocol.http_bodies import Body


class CaptureWriter:
    """A new capture. Used by one thread at a time.

    file: opened for writing, unbuffered; `size` counts the bytes that it holds.
    """

    def __init__(self, file: RawIOBase | FileIO, name: str) -> None:
        self._file = file
        self._name = name
        self.size = 0
        self._append([preface()])

    @classmethod
    def create(cls, path: Path) -> CaptureWriter:
        """Start a capture at `path`, which must not exist. Raises CaptureUnreadable."""
        try:
            return cls(path.open("xb", buffering=0), str(path))
        except FileExistsError as error:
            text = f"{path}: exists; captures are never overwritten, name another file"
            raise CaptureUnreadable(text) from error
        except OSError as error:
            raise CaptureUnreadable(f"{path}: cannot be written: {error.strerror}") from error

    def write(self, records: Iterable[Record]) -> None:
        """Append records. Raises CaptureIncomplete if there is no room; the file stays readable.

        What this returns from survives the end of this process, and after `sync` the machine's.
        """
        pieces: list[Body] = []
        for record in records:
            meta, body = encode_record(record)
            pieces += encode_frame(meta, body)
        self._append(pieces)

    def sync(self) -> None:
        """Wait until the disk has all that was written. Raises CaptureIncomplete."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise CaptureIncomplete(f"{self._name}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, pieces: list[Body]) -> None:
        data = memoryview(b"".join(pieces))
        done = 0
        try:
            while done < len(data):
                done += self._file.write(data[done:]) or 0
        except OSError as error:
            # Half a frame would tell a reader of damage where there is none.
            self._file.truncate(self.size)
            self._file.seek(self.size)
            text = f"{self._name}: {error.strerror}; it holds {self.size} bytes of whole records"
            raise CaptureIncomplete(text) from error
        self.size += done
