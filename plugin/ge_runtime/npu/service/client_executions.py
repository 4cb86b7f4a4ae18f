"""The client's half of executions: from a RUN to its DONE. The service's half: `execution_loop`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from ge_runtime.errors import OutOfMemory
from ge_runtime.npu.service.channel import Channel, DescriptorsExhausted, PeerGone, close_all
from ge_runtime.npu.service.connection import Connection
from ge_runtime.npu.service.protocol import (
    Done,
    Kind,
    ProtocolError,
    fault_of,
    pack_run,
    unpack_done,
)
from ge_runtime.npu.service.reconnecting_client import ReconnectingClient


class ClientExecutions:
    """The connection for one engine's executions, one at a time. Safe from any thread."""

    def __init__(self, client: ReconnectingClient) -> None:
        self._client = client
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._number = 0
        self._executing = Lock()
        self._sequences = itertools.count(1)
        self._within, self._gone = _for_ever, _stay
        self.filled = 0
        """How many rows of the next execution are not padding."""

    def connect(self, connection: Connection, number: int) -> None:
        """Connect to the engine of this number. Raises as `Connection.connect_engine`."""
        channel = connection.connect_engine(number)
        self._connection, self._channel, self._number = connection, channel, number

    def lose(self) -> None:
        """The service is gone: nothing can be executed until the next `connect`."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.shut_down()  # whoever waits there finds out, and then lets go of it
            with self._executing:
                channel.close()

    def close_in_fork(self) -> None:
        self._executing = Lock()  # a thread that is not there any more may have it
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    @contextmanager
    def waiting(self, within: Callable[[], float], gone: Callable[[], bool]) -> Iterator[None]:
        self._within, self._gone = within, gone
        try:
            yield
        finally:
            self._within, self._gone = _for_ever, _stay

    def execute(self, layout: bytes, *, allocates: bool) -> tuple[Done, list[int]]:
        """One execution: its end, and the descriptors that came with it, the caller's to close.

        allocates: whether some outputs are to come in a file. Raises the execution's fault, and
        EngineLost.
        """
        with self._executing:
            channel, connection = self._channel, self._connection
            if channel is None or connection is None:
                raise self._client.fault()
            return self._converse(channel, connection, layout, allocates=allocates)

    def _converse(
        self, channel: Channel, connection: Connection, layout: bytes, *, allocates: bool
    ) -> tuple[Done, list[int]]:
        sequence = next(self._sequences)
        files: list[int] = []
        try:
            channel.send(pack_run(sequence, self._within(), layout, self.filled))
            if allocates:
                kind, body, files = channel.receive_with(self._look_around)
            else:
                kind, body = channel.receive(self._look_around)
            if kind is not Kind.DONE:
                raise ProtocolError(f"found a message of kind {kind.name}, expected a result")
            done = unpack_done(body)
            if done.sequence != sequence:
                raise ProtocolError(
                    f"found the result of execution {done.sequence}, expected {sequence}"
                )
        except DescriptorsExhausted as exhausted:
            # The answer was read, only its file was not had: the connection is still in step.
            raise OutOfMemory(f"the results of an execution: {exhausted}") from exhausted
        except (PeerGone, ProtocolError) as error:
            close_all(files)
            self._client.note_loss(connection, str(error))
            raise self._client.fault() from error
        except BaseException:  # its answer is still to come, and would be taken for the next one's
            close_all(files)
            self._client.note_loss(connection, "an execution was interrupted")
            raise
        if done.fault is not None:
            close_all(files)
            raise fault_of(done.fault)
        return done, files

    def _look_around(self) -> None:
        if self._gone():  # it still has to answer: the execution may have begun
            self._client.try_to_tell({"do": "cancel", "engine": self._number})


def _for_ever() -> float:
    return math.inf


def _stay() -> bool:
    return False
