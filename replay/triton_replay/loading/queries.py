"""Queries to the server of a load: metadata, configuration, statistics, shared memory, metrics."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final, Protocol

from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.loading.loop import Loop
from triton_replay.loading.tensors import (
    SIZES,
    Model,
    Region,
    RequestData,
)
from triton_replay.wire.sockets import Connection, Slot


@dataclass(frozen=True)
class Query:
    """A request that is not part of the load.

    Args:
        connection: A separate connection, so that the request does not wait for inferences.
        request: The request as bytes.
        read: Parses the body of the response. Raises ValueError if the body is invalid.
    """

    connection: Connection
    request: bytes
    read: Callable[[bytes], Any]


class Failed(Exception):
    """A query failed: its response is an error or cannot be parsed."""


InSequence = Callable[[int, bool, bool], bytes]
"""Creates a request of a sequence from the sequence id and the flags `start` and `end`."""


class Requests(Protocol):
    """Creates inference requests for one model, as bytes."""

    def whole(self, data: RequestData) -> bytes:
        """Return a request that belongs to no sequence."""

    def in_sequence(self, data: RequestData) -> InSequence:
        """Return a function that creates this request for any sequence."""


class Server(Protocol):
    """A server under load, over one protocol."""

    def connect(self, loop: Loop) -> Connection:
        """Return a connection for inferences; it opens when it is first used."""

    def requests(
        self, model: Model, parameters: Mapping[str, Any], outputs: Mapping[str, Region]
    ) -> Requests:
        """Return the creator of a model's requests; `outputs` has regions by output name."""

    def metadata(self, loop: Loop, model: str, version: str) -> Query:
        """Query the model's metadata."""

    def config(self, loop: Loop, model: str, version: str) -> Query:
        """Query the model's configuration."""

    def statistics(self, loop: Loop, model: str, version: str) -> Query:
        """Query the model's statistics."""

    def register(self, loop: Loop, region: str, size: int) -> Query:
        """Register a region of system shared memory, whose key is its name."""

    def unregister(self, loop: Loop, region: str) -> Query:
        """Unregister a region."""


def query_answer(loop: Loop, query: Query) -> Any:  # noqa: ANN401  of JSON
    """Send a query and wait for its result.

    Raises:
        Failed: The response is an error, or invalid.
        ServerUnreachable: No response arrives within the loop's timeout.
    """
    found: list[Any] = []

    def take(answer: object) -> None:
        found.append(answer)
        loop.wake()

    send_query(loop, query, take)
    until = time.perf_counter_ns() + loop.timeout
    while not found:
        loop.run(until)
        if not found and time.perf_counter_ns() >= until:
            raise ServerUnreachable(f"no response from the server for {loop.timeout / 1e9:g} s")
    if isinstance(found[0], Failed):
        raise found[0]
    return found[0]


def send_query(loop: Loop, query: Query, take: Callable[[Any], object]) -> None:
    """Send a query and return; the loop calls `take` with the result or a Failed."""

    def reply(slot: Slot) -> None:
        try:
            found = Failed(slot.failure) if slot.failure else query.read(bytes(slot.body))
        except ValueError as error:
            found = Failed(str(error))
        take(found)

    loop.query(query.connection, query.request, reply)


def describe(
    loop: Loop, server: Server, model: str, version: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the model's metadata and configuration, which is empty if the server has none.

    Raises:
        ReplayError: The server has no metadata of the model.
        ServerUnreachable: The server does not respond.
    """
    try:
        metadata = query_answer(loop, server.metadata(loop, model, version))
    except Failed as error:
        raise ReplayError(f"-m {model}: {error}") from error
    try:
        config = query_answer(loop, server.config(loop, model, version))
    except Failed:
        config = {}
    return metadata, config


# -- `--shared-memory system`: inputs and outputs in regions that the server maps

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
        """Create a region for each output; the responses to all requests use the same region.

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
