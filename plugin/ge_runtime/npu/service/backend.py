"""The device backend that uses a device through the device service, in another process."""

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
from ge_runtime.npu.service.messages import handles_as_json, physical_device
from ge_runtime.npu.service.protocol import VERSION, Timeouts
from ge_runtime.npu.service.reconnecting_client import ReconnectingClient
from ge_runtime.npu.service.shared_memory import SharedFile, SharedMemory
from ge_runtime.specs import Array


class ServiceBackend:
    """The `DeviceBackend` of a device that the device service owns.

    Engines raise EngineLost while no service runs. If the service ends while an engine is opened or
    bound, the engine is opened or bound once more in the next service.
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
        """Connect to the service, which is started if necessary.

        Args:
            device: Name of the device.
            client: Name of this client in logs and status displays.
            weight: See `fair_scheduler.QueueEntry`.
            priority: See `fair_scheduler.QueueEntry`.
            resident: The tensors that stay on the device.
            timeouts: Time limits.

        Raises:
            ServiceFault: The service cannot be reached. Faults of the device are raised as well.
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
        arenas = _Arenas(self.memory)  # restored before engines, whose tensors are in arenas
        self._client = ReconnectingClient(device, hello, timeouts or Timeouts(), [arenas])
        self.kind: Final = self._client.kind
        self.hardware: Final = self._client.hardware

    @property
    def memories(self) -> tuple[SharedMemory]:
        return (self.memory,)

    @property
    def pid(self) -> int:
        """The process ID of the current or last service."""
        return self._client.pid

    @property
    def lost(self) -> bool:
        """True while there is no service."""
        return self._client.connection is None

    def fault(self) -> str:
        """Return the last known fault (see `Watched.fault`), updated every `Timeouts.probe_s`."""
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

    def release_rows(self, handles: Array) -> None:
        """See `ReleasesRows`. Does nothing if the connection is in use; the rows expire later."""
        for part in handles_as_json(handles):
            self._client.try_notify({"do": "let_go", "handles": part})

    def register(self, memory: Array) -> None:
        """Do nothing: memory that the service cannot access is copied."""

    def unregister(self, memory: Array) -> None: ...

    def freeze(self) -> None:
        self.memory.freeze()
        for engine in self._engines:  # later executions are for requests
            engine.keep_rows()

    def close(self) -> None:
        self._client.close()
        self.memory.free_all()

    # -- called by `SharedMemory`

    def announce(self, file: SharedFile) -> None:
        try:
            # Without a service nothing is lost: `restore` announces all arenas to the next service.
            with contextlib.suppress(EngineLost):
                self._client.call_once(lambda connection: connection.announce(file))
        except OutOfMemory as fault:
            raise MemoryError(str(fault)) from fault

    def withdraw(self, number: int) -> None:
        with self._client.cleanup() as notify:
            notify({"do": "forget", "number": number})


class _Arenas:
    """The arenas, which are announced again to each new service."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    def restore(self, connection: Connection) -> None:
        for file in self._memory.shared:
            connection.announce(file)

    def disconnect(self) -> None:
        """Do nothing: the arenas belong to this process."""

    def close_in_fork(self) -> None:
        """Do nothing: a fork inherits the memory of the process."""
