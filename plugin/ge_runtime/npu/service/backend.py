"""The device backend of a device in another process: the device service's client."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Final

from ge_runtime.config import Resident
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Engine
from ge_runtime.errors import EngineLost, OutOfMemory
from ge_runtime.npu.service.connection import Connection
from ge_runtime.npu.service.engine import ServiceEngine
from ge_runtime.npu.service.identity import physical_device
from ge_runtime.npu.service.protocol import VERSION, Timeouts
from ge_runtime.npu.service.reconnecting_client import ReconnectingClient
from ge_runtime.npu.service.resident_message import handles_as_json
from ge_runtime.npu.service.shared_memory import SharedFile, SharedMemory
from ge_runtime.specs import Array


class ServiceBackend:
    """The `DeviceBackend` of a device that the device service owns.

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
        resident: Resident | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        """client: for people. weight, priority: see `fair_queue.QueueEntry`.

        resident: what of engines' tensors stays on the device.
        Raises ServiceFault if the service cannot be had, and what it says of its device.
        """
        self.name: Final = device
        hello = {
            "role": "client",
            "version": VERSION,
            "name": client,
            "weight": weight,
            "priority": priority,
            "means": physical_device(device, os.environ),
        }
        self._resident = resident or Resident()
        self._engines: list[ServiceEngine] = []
        self.memory: Final = SharedMemory(device, self)
        arenas = _Arenas(self.memory)  # restored before engines, whose tensors lie in them
        self._client = ReconnectingClient(device, hello, timeouts or Timeouts(), [arenas])
        self.kind: Final = self._client.kind
        self.hardware: Final = self._client.hardware

    @property
    def memories(self) -> tuple[SharedMemory]:
        return (self.memory,)

    @property
    def pid(self) -> int:
        """The service's process: the last one that there was."""
        return self._client.pid

    @property
    def lost(self) -> bool:
        """Whether there is no service at the moment."""
        return self._client.connection is None

    def fault(self) -> str:
        """As the service's device told it last; it is asked every `Timeouts.probe_s`."""
        return str(self._client.condition["fault"])

    def telemetry(self) -> dict[str, float]:
        return dict(self._client.condition["telemetry"])

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        engine = ServiceEngine(
            self._client, self.memory, artifacts, threads, outputs, self._resident
        )
        engine.open()
        self._engines.append(engine)
        return engine

    def let_rows_go(self, handles: Array) -> None:
        """While somebody else talks to the service, nobody is told: their time ends as well."""
        for part in handles_as_json(handles):
            self._client.try_to_tell({"do": "let_go", "handles": part})

    def register(self, memory: Array) -> None:
        """What the service cannot see is copied."""

    def unregister(self, memory: Array) -> None: ...

    def freeze(self) -> None:
        self.memory.freeze()
        for engine in self._engines:  # what executed until now was of no request
            engine.keep_rows()

    def close(self) -> None:
        self._client.close()
        self.memory.free_all()

    # ---------------------------------------------------------------------------- for its memory

    def announce(self, file: SharedFile) -> None:
        try:
            with contextlib.suppress(EngineLost):  # the next service is told of all there are
                self._client.talk_once(lambda connection: connection.announce(file))
        except OutOfMemory as fault:
            raise MemoryError(str(fault)) from fault

    def withdraw(self, number: int) -> None:
        with self._client.last_words() as tell:
            tell({"do": "forget", "number": number})


class _Arenas:
    """The arenas, to be announced to each next service."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    def restore(self, connection: Connection) -> None:
        for file in self._memory.shared:
            connection.announce(file)

    def lose(self) -> None:
        """They are this process's own, and stay."""

    def close_in_fork(self) -> None:
        """A fork has them as it has all memory of the process."""
