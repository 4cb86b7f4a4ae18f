"""A device in another process, as a device backend: the device service's client."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Final

from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Engine
from ge_runtime.errors import EngineLost, OutOfMemory
from ge_runtime.service.arenas import Shared, SharedMemory
from ge_runtime.service.engine import ServiceEngine
from ge_runtime.service.keeper import Keeper
from ge_runtime.service.limits import Limits
from ge_runtime.service.link import Link
from ge_runtime.service.protocol import VERSION, Json
from ge_runtime.service.visible import meant_by
from ge_runtime.specs import Array


class ServiceBackend:
    """See `backend.DeviceBackend`: a device that the device service owns.

    Engines raise EngineLost while there is no service. What opens and prepares them tries once more
    with the next service.
    """

    def __init__(
        self,
        device: str,
        client: str,
        *,
        weight: float = 1.0,
        priority: int = 0,
        limits: Limits | None = None,
    ) -> None:
        """client: for people. weight, priority: see `fair.Ticket`.

        Raises ServiceFault if the service cannot be had, and what it says of its device.
        """
        self.name: Final = device
        self._engines: list[ServiceEngine] = []
        self._shared = SharedMemory(device, self)
        hello = {
            "role": "client",
            "version": VERSION,
            "name": client,
            "weight": weight,
            "priority": priority,
            "means": meant_by(device, os.environ),
        }
        self._keeper = Keeper(device, hello, limits or Limits(), self)
        self.kind: Final = self._keeper.kind
        self.hardware: Final = self._keeper.hardware

    @property
    def memory(self) -> SharedMemory:
        return self._shared

    @property
    def memories(self) -> tuple[SharedMemory]:
        return (self._shared,)

    @property
    def pid(self) -> int:
        """The service's process: the last one that there was."""
        return self._keeper.pid

    @property
    def lost(self) -> bool:
        """Whether there is no service at the moment."""
        return self._keeper.link is None

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        engine = ServiceEngine(self, artifacts, threads, outputs)

        def open_there(link: Link) -> None:
            engine.open(link)
            self._engines.append(engine)

        self._keeper.talk(open_there)
        return engine

    def register(self, memory: Array) -> None:
        """What the service cannot see is copied."""

    def unregister(self, memory: Array) -> None: ...

    def freeze(self) -> None:
        self.memory.freeze()

    def close(self) -> None:
        self._keeper.close()
        self.memory.free_all()

    # ------------------------------------------------------------------------------ for engines

    def ask(self, engine: ServiceEngine, message: Json) -> dict[str, Any]:
        """What the service answers about an engine. Raises EngineLost, and what it answers."""
        return self._keeper.talk(lambda link: link.ask({**message, "engine": engine.number}))

    def cancel(self, engine: ServiceEngine) -> None:
        """Have an execution not begin, if it has not. Never raises, and never waits for long."""
        self._keeper.try_to_tell({"do": "cancel", "engine": engine.number})

    def close_engine(self, engine: ServiceEngine) -> None:
        """Have the service free an engine. Nothing happens if it has."""
        with self._keeper.last_words() as tell:
            if engine in self._engines:
                self._engines.remove(engine)
                engine.lose()
                tell({"do": "close", "engine": engine.number})

    def note_loss(self, link: Link, why: str) -> None:
        self._keeper.note_loss(link, why)

    def fault(self) -> EngineLost:
        return self._keeper.fault()

    # ------------------------------------------------------------------------------- for memory

    def arena(self, shared: Shared) -> None:
        try:
            with contextlib.suppress(EngineLost):  # the next service is told of all there are
                self._keeper.talk_once(lambda link: link.announce(shared))
        except OutOfMemory as fault:
            raise MemoryError(str(fault)) from fault

    def forget(self, number: int) -> None:
        with self._keeper.last_words() as tell:
            tell({"do": "forget", "number": number})

    # --------------------------------------------------------------------------- for the keeper

    def settle(self, link: Link) -> None:
        for shared in self.memory.shared:
            link.announce(shared)
        for engine in self._engines:
            engine.open(link)

    def unsettle(self) -> None:
        for engine in self._engines:
            engine.lose()

    def abandon(self) -> None:
        for engine in self._engines:
            engine.abandon()
