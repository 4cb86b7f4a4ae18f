"""The files that traces are written to: arrays of JSON objects."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

log = logging.getLogger(__name__)


class TraceFile:
    """Where traces are written: one array in the file itself, or arrays in numbered files.

    Any thread. A file that cannot be written is told to the log, never to a client.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._stream: TextIO | None = None

    def append(self, elements: Iterable[str]) -> None:
        """Add to the array of the file itself; `close` ends it."""
        text = ",".join(elements)
        if not text:
            return
        with self._lock:
            try:
                if self._stream is None:
                    self._stream = Path(self.path).open("w", encoding="utf-8")  # noqa: SIM115
                    self._stream.write("[" + text)
                else:
                    self._stream.write("," + text)
            except OSError as error:
                log.error("cannot write traces to '%s': %s", self.path, error)

    def write_part(self, elements: Iterable[str]) -> None:
        """Write an array into the next of the files `<path>.0`, `<path>.1`, ..."""
        path = Path(f"{self.path}.{next(self._numbers)}")
        try:
            path.write_text(f"[{','.join(elements)}]", encoding="utf-8")
        except OSError as error:
            log.error("cannot write traces to '%s': %s", path, error)

    def close(self) -> None:
        """End the array of the file itself, if it has begun."""
        with self._lock:
            if self._stream is not None:
                try:
                    self._stream.write("]")
                    self._stream.close()
                except OSError as error:
                    log.error("cannot write traces to '%s': %s", self.path, error)
                self._stream = None
