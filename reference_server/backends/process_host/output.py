"""What a model's process prints, in the server's own output; and when the process has ended."""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

_CHUNK = 1 << 16


def streams(stdout: int, stderr: int) -> dict[int, TextIO]:
    """The server's streams for the pipes of a process."""
    return {stdout: sys.stdout, stderr: sys.stderr}


def pump(name: str, life: int, pipes: Mapping[int, TextIO], ended: Callable[[], None]) -> None:
    """Copy each line that comes out of `pipes` to its stream, as `[name] line`, until all end.

    Calls `ended` when the process has whose pidfd is `life`, and all that it had printed is copied:
    a socket or a pipe does not tell, if it has left processes of its own behind. Blocks; owns all
    these descriptors.
    """
    open_pipes = {pipe: _Pipe(pipe, stream, name) for pipe, stream in pipes.items()}
    with selectors.DefaultSelector() as selector:
        for descriptor in (life, *pipes):
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            ready = {key.fd for key, _ in selector.select()}
            for descriptor in open_pipes if life in ready else ready:
                if not open_pipes[descriptor].copy():
                    selector.unregister(descriptor)
            open_pipes = {fd: pipe for fd, pipe in open_pipes.items() if not pipe.is_over}
            if life in ready:
                selector.unregister(life)
                os.close(life)
                ended()


class _Pipe:
    """One pipe, read as far as there is something in it."""

    def __init__(self, descriptor: int, stream: TextIO, name: str) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._stream = stream
        self._name = name
        self._rest = b""
        self.is_over = False

    def copy(self) -> bool:
        """Copy what is there; False if nothing more will come."""
        try:
            while data := os.read(self._descriptor, _CHUNK):
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._write(lines)
        except BlockingIOError:
            return True
        if self._rest:
            self._write([self._rest])
        os.close(self._descriptor)
        self.is_over = True
        return False

    def _write(self, lines: list[bytes]) -> None:
        """In one call, so that the lines of different processes do not mix."""
        texts = (f"[{self._name}] {line.decode(errors='replace')}\n" for line in lines)
        self._stream.write("".join(texts))
        self._stream.flush()
