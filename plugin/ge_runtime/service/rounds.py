"""Executions as their client has them: from a RUN to its DONE. See `runs` for the other side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from ge_runtime.errors import OutOfMemory
from ge_runtime.service.channel import Channel, PeerGone, Starved, close_all
from ge_runtime.service.executions import Done, pack_run, unpack_done
from ge_runtime.service.protocol import Broken, Kind, fault_of

if TYPE_CHECKING:
    from ge_runtime.service.client import ServiceBackend
    from ge_runtime.service.engine import ServiceEngine
    from ge_runtime.service.link import Link


def _stay() -> bool:
    return False


class Rounds:
    """The connection for one engine's executions, one at a time. Safe from any thread."""

    def __init__(self, place: ServiceBackend, engine: ServiceEngine) -> None:
        self._place = place
        self._engine = engine
        self._link: Link | None = None
        self._channel: Channel | None = None
        self._executing = Lock()
        self._sequences = itertools.count(1)
        self._within: Callable[[], float] = lambda: math.inf
        self._gone: Callable[[], bool] = _stay

    def join(self, link: Link, number: int) -> None:
        """Connect to the engine of this number in a service. Raises as `Link.join`."""
        channel = link.join(number)
        self._link, self._channel = link, channel

    def lose(self) -> None:
        """The service is gone: nothing can be executed until the next `join`."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.shut()  # whoever waits there finds out, and then lets go of it
            with self._executing:
                channel.close()

    def abandon(self) -> None:
        self._executing = Lock()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    @contextmanager
    def waiting(self, within: Callable[[], float], gone: Callable[[], bool]) -> Iterator[None]:
        self._within, self._gone = within, gone
        try:
            yield
        finally:
            self._within, self._gone = lambda: math.inf, _stay

    def execute(self, layout: bytes, *, allocates: bool) -> tuple[Done, list[int]]:
        """One execution: its end, and the descriptors that came with it, the caller's to close.

        allocates: whether some outputs are to come in a file. Raises the execution's fault, and
        EngineLost.
        """
        with self._executing:
            channel, link = self._channel, self._link
            if channel is None or link is None:
                raise self._place.fault()
            return self._converse(channel, link, layout, allocates=allocates)

    def _converse(
        self, channel: Channel, link: Link, layout: bytes, *, allocates: bool
    ) -> tuple[Done, list[int]]:
        sequence = next(self._sequences)
        files: list[int] = []
        try:
            channel.send(pack_run(sequence, self._within(), layout))
            if allocates:
                kind, body, files = channel.receive_with(self._look_around)
            else:
                kind, body = channel.receive(self._look_around)
            if kind is not Kind.DONE:
                raise Broken(f"found a message of kind {kind.name}, expected a result")
            done = unpack_done(body)
            if done.sequence != sequence:
                raise Broken(f"found the result of execution {done.sequence}, expected {sequence}")
        except Starved as starved:
            raise OutOfMemory(f"the results of an execution: {starved}") from starved
        except (PeerGone, Broken) as error:
            close_all(files)
            self._place.note_loss(link, str(error))
            raise self._place.fault() from error
        except BaseException:  # its answer is still to come, and would be taken for the next one's
            close_all(files)
            self._place.note_loss(link, "an execution was interrupted")
            raise
        if done.fault is not None:
            close_all(files)
            raise fault_of(done.fault)
        return done, files

    def _look_around(self) -> None:
        if self._gone():
            self._place.cancel(self._engine)
