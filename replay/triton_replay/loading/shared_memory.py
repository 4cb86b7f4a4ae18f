"""`--shared-memory system`: inputs and outputs in regions that the server maps."""

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
from triton_replay.loading.queries import Failed, Server, query_answer
from triton_replay.loading.tensors import SIZES, Region, RequestData

_FOLDER: Final = Path("/dev/shm")


class Regions:
    """Shared memory regions of this process, registered with the server until `close`."""

    def __init__(self, loop: Loop, server: Server) -> None:
        self._loop = loop
        self._server = server
        self._prefix = f"triton_replay_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._made: list[str] = []

    def inputs(self, data: RequestData) -> RequestData:
        """Return a request whose inputs are in new regions.

        Raises:
            ReplayError: A region cannot be created or registered.
        """
        return RequestData(
            tuple(replace(one, region=self._region(one.data)) for one in data.tensors)
        )

    def outputs(self, model: Model, batch: int, size: int) -> Mapping[str, Region]:
        """Create a region for each output; all requests write to it.

        Args:
            model: The model.
            batch: Rows of a request.
            size: Bytes of a row of an output without fixed shape.

        Raises:
            ReplayError: A region cannot be created or registered.
        """
        found = {}
        for place in model.outputs:
            known = place.datatype in SIZES and all(one >= 0 for one in place.shape)
            row = SIZES[place.datatype] * prod(place.shape) if known else size
            found[place.name] = self._region(bytes(row * batch))
        return found

    def close(self) -> None:
        """Unregister and remove all regions."""
        for name in self._made:
            with contextlib.suppress(Failed, ReplayError):
                query_answer(self._loop, self._server.unregister(self._loop, name))
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
            query_answer(self._loop, self._server.register(self._loop, name, len(content)))
        except Failed as error:
            raise ReplayError(f"--shared-memory: registration failed: {error}") from error
        return Region(name, len(content))


@contextlib.contextmanager
def regions(loop: Loop, server: Server) -> Iterator[Regions]:
    """Create regions that are removed after the block."""
    made = Regions(loop, server)
    try:
        yield made
    finally:
        made.close()
