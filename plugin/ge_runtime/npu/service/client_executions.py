"""The client side of executions: sends RUN and receives DONE.

The service side is `execution_loop`.
"""

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
    """The connection for one engine's executions, one at a time. Thread-safe."""

    def __init__(self, client: ReconnectingClient) -> None:
        self._client = client
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._number = 0
        self._executing = Lock()
        self._sequences = itertools.count(1)
        self._within, self._gone = _unlimited, _never
        self.filled = 0
        """Number of rows of the next execution that are not padding."""

    def connect(self, connection: Connection, number: int) -> None:
        """Connect to the engine with this number. Raises like `Connection.connect_engine`."""
        channel = connection.connect_engine(number)
        self._connection, self._channel, self._number = connection, channel, number

    def disconnect(self) -> None:
        """Close the connection; executions raise EngineLost until the next `connect`."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.shut_down()  # ends the wait of a thread that executes
            with self._executing:
                channel.close()

    def close_in_fork(self) -> None:
        self._executing = Lock()  # a thread that does not exist in the fork may have held it
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    @contextmanager
    def waiting(self, within: Callable[[], float], gone: Callable[[], bool]) -> Iterator[None]:
        self._within, self._gone = within, gone
        try:
            yield
        finally:
            self._within, self._gone = _unlimited, _never

    def execute(self, layout: bytes, *, allocates: bool) -> tuple[Done, list[int]]:
        """Execute once.

        Args:
            layout: The packed buffer references of inputs and outputs.
            allocates: Whether the service allocates some outputs, in a file.

        Returns:
            The result, and the descriptors that came with it, which the caller closes.

        Raises:
            EngineLost: There is no service, or it was lost.
            RuntimeFault: The fault of the execution.
        """
        with self._executing:
            channel, connection = self._channel, self._connection
            if channel is None or connection is None:
                raise self._client.fault()
            return self._exchange(channel, connection, layout, allocates=allocates)

    def _exchange(
        self, channel: Channel, connection: Connection, layout: bytes, *, allocates: bool
    ) -> tuple[Done, list[int]]:
        sequence = next(self._sequences)
        files: list[int] = []
        try:
            channel.send(pack_run(sequence, self._within(), layout, self.filled))
            if allocates:
                kind, body, files = channel.receive_with(self._check_cancelled)
            else:
                kind, body = channel.receive(self._check_cancelled)
            if kind is not Kind.DONE:
                raise ProtocolError(f"found a message of kind {kind.name}, expected a result")
            done = unpack_done(body)
            if done.sequence != sequence:
                raise ProtocolError(
                    f"found the result of execution {done.sequence}, expected {sequence}"
                )
        except DescriptorsExhausted as exhausted:
            # Only the descriptor is missing; the message was read, so the connection is usable.
            raise OutOfMemory(f"the results of an execution: {exhausted}") from exhausted
        except (PeerGone, ProtocolError) as error:
            close_all(files)
            self._client.report_loss(connection, str(error))
            raise self._client.fault() from error
        except BaseException:  # the pending response would be mistaken for the next one's
            close_all(files)
            self._client.report_loss(connection, "an execution was interrupted")
            raise
        if done.fault is not None:
            close_all(files)
            raise fault_of(done.fault)
        return done, files

    def _check_cancelled(self) -> None:
        if self._gone():  # the service still responds, because the execution may have begun
            self._client.try_notify({"do": "cancel", "engine": self._number})


def _unlimited() -> float:
    return math.inf


def _never() -> bool:
    return False
