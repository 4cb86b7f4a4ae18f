"""What a load asks its server beside the load: the model, its statistics, regions, metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.loading.loop import Loop
from triton_replay.loading.model import Model
from triton_replay.loading.tensors import Region, RequestData
from triton_replay.wire.slots import Connection, Slot


@dataclass(frozen=True)
class Question:
    """A request that is none of the load.

    connection: of its own, so that it waits for no inference.
    read: gives what the answer says, or raises ValueError.
    """

    connection: Connection
    request: bytes
    read: Callable[[bytes], Any]


class Failed(Exception):
    """The answer was an error, or was not understood; the text says which."""


InSequence = Callable[[int, bool, bool], bytes]
"""Makes a request of a sequence: its id, whether it starts, whether it ends."""


class Requests(Protocol):
    """Makes inferences of one model, as bytes."""

    def whole(self, data: RequestData) -> bytes:
        """A request that belongs to no sequence."""

    def in_sequence(self, data: RequestData) -> InSequence:
        """Makes this request for sequences."""


class Server(Protocol):
    """One protocol of a server: how to connect, and how to ask."""

    def connect(self, loop: Loop) -> Connection:
        """A connection for inferences, not yet open."""

    def requests(
        self, model: Model, parameters: Mapping[str, Any], outputs: Mapping[str, Region]
    ) -> Requests:
        """What makes inferences; outputs: the regions that they are written to."""

    def metadata(self, loop: Loop, model: str, version: str) -> Question:
        """What the model takes."""

    def config(self, loop: Loop, model: str, version: str) -> Question:
        """The model's configuration."""

    def statistics(self, loop: Loop, model: str, version: str) -> Question:
        """What the server counted of the model."""

    def register(self, loop: Loop, region: str, size: int) -> Question:
        """Have the server map a region of system shared memory, whose key is its name."""

    def unregister(self, loop: Loop, region: str) -> Question:
        """Have the server forget the region."""


def answer_of(loop: Loop, question: Question) -> Any:  # noqa: ANN401  of JSON
    """Ask and wait. Raises Failed or ServerUnreachable."""
    found: list[Any] = []

    def take(answer: object) -> None:
        found.append(answer)
        loop.wake()

    ask(loop, question, take)
    until = time.perf_counter_ns() + loop.silence
    while not found:
        loop.run(until)
        if not found and time.perf_counter_ns() >= until:
            raise ServerUnreachable(f"the server has answered nothing for {loop.silence / 1e9:g} s")
    if isinstance(found[0], Failed):
        raise found[0]
    return found[0]


def ask(loop: Loop, question: Question, take: Callable[[Any], object]) -> None:
    """Ask and go on; `take` gets the answer or a Failed, while the loop runs."""

    def reply(slot: Slot) -> None:
        try:
            found = Failed(slot.failure) if slot.failure else question.read(bytes(slot.came))
        except ValueError as error:
            found = Failed(str(error))
        take(found)

    loop.ask(question.connection, question.request, reply)


def describe(
    loop: Loop, server: Server, model: str, version: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Metadata and configuration; of a server without the latter it is empty.

    Raises ReplayError or ServerUnreachable.
    """
    try:
        metadata = answer_of(loop, server.metadata(loop, model, version))
    except Failed as error:
        raise ReplayError(f"-m {model}: {error}") from error
    try:
        config = answer_of(loop, server.config(loop, model, version))
    except Failed:
        config = {}
    return metadata, config
