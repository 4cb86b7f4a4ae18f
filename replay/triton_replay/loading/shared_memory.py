"""`--shared-memory system`: inputs in regions that the server maps, outputs written to others."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Final

from triton_replay.errors import ReplayError
from triton_replay.loading.loop import Loop
from triton_replay.loading.model import Model
from triton_replay.loading.questions import Failed, Server, answer_of
from triton_replay.loading.tensors import SIZES, Region, RequestData

_FOLDER: Final = Path("/dev/shm")


class Regions:
    """Regions of this process: made and registered, and removed with `close`."""

    def __init__(self, loop: Loop, server: Server) -> None:
        self._loop = loop
        self._server = server
        self._prefix = f"triton_replay_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._made: list[str] = []

    def inputs(self, data: RequestData) -> RequestData:
        """The same request, whose values the server reads from regions. Raises ReplayError."""
        return RequestData(
            tuple(replace(one, region=self._region(one.data)) for one in data.tensors)
        )

    def outputs(self, model: Model, batch: int, size: int) -> Mapping[str, Region]:
        """A region for each output, written by all requests; size: of a row of unknown shape."""
        found = {}
        for place in model.outputs:
            known = place.datatype in SIZES and all(one >= 0 for one in place.shape)
            row = SIZES[place.datatype] * prod(place.shape) if known else size
            found[place.name] = self._region(bytes(row * batch))
        return found

    def close(self) -> None:
        """Have the server forget them, and remove them."""
        for name in self._made:
            with contextlib.suppress(Failed, ReplayError):
                answer_of(self._loop, self._server.unregister(self._loop, name))
            (_FOLDER / name).unlink(missing_ok=True)
        self._made.clear()

    def _region(self, content: bytes) -> Region:
        name = f"{self._prefix}_{len(self._made)}"
        try:
            (_FOLDER / name).write_bytes(content)
        except OSError as error:
            text = f"--shared-memory: {_FOLDER / name}: cannot be written: {error.strerror}"
            raise ReplayError(text) from error
        self._made.append(name)
        try:
            answer_of(self._loop, self._server.register(self._loop, name, len(content)))
        except Failed as error:
            raise ReplayError(f"--shared-memory: the server takes no region: {error}") from error
        return Region(name, len(content))


@contextlib.contextmanager
def regions(loop: Loop, server: Server) -> Iterator[Regions]:
    """Regions that are gone afterwards."""
    made = Regions(loop, server)
    try:
        yield made
    finally:
        made.close()
