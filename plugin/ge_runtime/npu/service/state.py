"""The state of a device service: the device's backend, open models, and client sessions.

The modules of sessions, executions and the server use this module, which does not import them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import resource
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from ge_runtime.clock import Clock
from ge_runtime.devices import Device
from ge_runtime.engines.backend import DeviceBackend, Watched
from ge_runtime.npu.service.fair_scheduler import FairScheduler, QueueEntry, State
from ge_runtime.npu.service.messages import physical_device
from ge_runtime.npu.service.model_cache import CachedModel, ModelCache
from ge_runtime.npu.service.protocol import VERSION, Json, ProtocolError
from ge_runtime.npu.service.resident import ResidentTensors
from ge_runtime.npu.service.row_registry import RowRegistry
from ge_runtime.npu.service.shared_memory import MappedArenas

_log = logging.getLogger(__name__)

MOST_ENGINES: Final = 256
"""Maximum number of engines of a client, which normally has one."""

_CARD_UNITS: Final = 2
"""Number of concurrent executions on a card: one computes while data of the next is copied."""


@dataclass(slots=True, eq=False)
class ModelReference:
    """One client's reference to a cached model."""

    number: int
    name: str
    """The client's name of the model; files of equal content may have different names."""
    model: CachedModel
    resident: ResidentTensors | None = None
    """The tensors that stay on the device."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held by the connection that executes on the engine."""
    disconnect: Callable[[], None] = lambda: None
    """Ends the connection that executes on the engine."""
    entry: QueueEntry | None = None
    """The queue entry of the waiting or running execution."""


@dataclass(slots=True, eq=False)
class ClientSession:
    """A connected client, which is one model instance. `lock` guards `references`."""

    token: str
    number: int
    """Unique among all clients of this service."""
    name: str
    pid: int
    weight: float
    priority: int
    arenas: MappedArenas
    lock: threading.Lock = field(default_factory=threading.Lock)
    references: dict[int, ModelReference] = field(default_factory=dict)
    connections: int = 1
    leaving: bool = False
    version: int = 0
    """Incremented when an arena is removed, to invalidate cached arrays."""
    executions: int = 0
    faults: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0

    @property
    def process(self) -> Hashable:
        """The key of fair sharing: all clients of a process count as one."""
        return self.pid

    @property
    def waiting(self) -> int:
        """The number of executions in the queue."""
        with self.lock:
            entries = [reference.entry for reference in self.references.values()]
        return sum(entry is not None and entry.state is State.WAITING for entry in entries)

    @property
    def resident_rows(self) -> int:
        """The number of places on the device that rows of the client's executions use."""
        with self.lock:
            tensors = [reference.resident for reference in self.references.values()]
        return sum(resident.taken for resident in tensors if resident is not None)

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def note(self, took_s: float, waited_s: float, *, failed: bool) -> None:
        """Count an execution. Called without a lock: the counters are approximate."""
        self.executions += 1
        self.faults += failed
        self.busy_s += took_s
        self.wait_s += waited_s

    def reference(self, number: object) -> ModelReference:
        """Return the engine with this number. Raises ProtocolError if it is unknown."""
        with self.lock:
            reference = self.references.get(number) if isinstance(number, int) else None
        if reference is None:
            raise ProtocolError(
                f"found engine {number!r}, expected one that this client has opened"
            )
        return reference


class EndService(Protocol):
    """A function that ends the service. Thread-safe."""

    def __call__(self, why: str, *, patience_s: float = ...) -> None:
        """End the service; `patience_s` is the time for executions in progress."""


class ServiceState:
    """The device, its models and its clients. Thread-safe."""

    def __init__(
        self,
        device: str,
        *,
        clock: Clock,
        cores: int,
        open_backend: Callable[[str], DeviceBackend],
        end: EndService,
        sessions_changed: Callable[[], None],
    ) -> None:
        """Initialize the state; the device is opened for the first client.

        Args:
            device: Name of the device.
            clock: The clock.
            cores: Number of host cores that executions on the CPU share.
            open_backend: Opens the device's backend.
            end: Ends the service.
            sessions_changed: Called when a client has connected or disconnected.
        """
        self.device = device
        self.physical_device = physical_device(device, os.environ)
        """The machine's name of the device, which must be equal for all clients."""
        self.clock = clock
        self.started_at = clock.now()
        # The units of the CPU are its cores, see `units`.
        self.scheduler = FairScheduler(cores if device == "cpu" else _CARD_UNITS, clock)
        self.end = end
        self._open_backend = open_backend
        self._sessions_changed = sessions_changed
        self._backend: DeviceBackend | None = None
        self._cache: ModelCache | None = None
        self._opening = threading.Lock()
        self._lock = threading.Lock()  # guards `_clients`
        self._clients: dict[str, ClientSession] = {}
        self._numbers = itertools.count(1)
        self.rows = RowRegistry(clock)

    # ----------------------------------------------------------------------- device and models

    def backend(self) -> DeviceBackend:
        """Return the device's backend; the first call opens it, and raises its errors."""
        with self._opening:
            if self._backend is None:
                # Opened for the first client, and not at the start, so that a client gets errors.
                self._backend = self._open_backend(self.device)
                self._cache = ModelCache(self._backend)
            return self._backend

    def cache(self) -> ModelCache:
        """Return the models that are open on the device."""
        self.backend()
        assert self._cache is not None, "it is created with the backend"
        return self._cache

    def condition(self) -> Json:
        """Return the device's fault and telemetry, see `Watched`; empty if it reports none."""
        watched = self._backend if isinstance(self._backend, Watched) else None
        return {
            "fault": "" if watched is None else watched.fault(),
            "telemetry": {} if watched is None else watched.telemetry(),
        }

    def units(self, model: CachedModel) -> int:
        """Return the number of the device's units that an execution uses."""
        return model.threads if self.device == "cpu" else 1

    @contextlib.contextmanager
    def exclusive(self, client: ClientSession, reference: ModelReference) -> Iterator[None]:
        """Return a context in which the model is not executing, unless its engine is reentrant."""
        entry = QueueEntry(
            client.process,
            1,
            client.weight,
            client.priority,
            exclusive=reference.model.exclusive,
            what=f"{client} of {reference.name}",
        )
        self.scheduler.enter(entry)
        started = self.clock.now()
        try:
            yield
        finally:
            self.scheduler.leave(entry, self.clock.now() - started)

    def close_device(self) -> None:
        """Close all models and the backend, which no connection may use any more."""
        if self._cache is not None:
            self._cache.close()
        if self._backend is not None:
            self._backend.close()

    # --------------------------------------------------------------------------------- clients

    def clients(self) -> list[ClientSession]:
        """Return the connected clients."""
        with self._lock:
            return list(self._clients.values())

    def enter(self, name: str, pid: int, weight: float, priority: int) -> ClientSession:
        """Add a client with one connection."""
        arenas = MappedArenas(
            lambda memory: self.backend().register(memory),
            lambda memory: self.backend().unregister(memory),
        )
        token, number = secrets.token_hex(16), next(self._numbers)
        client = ClientSession(token, number, name, pid, weight, priority, arenas)
        with self._lock:
            self._clients[token] = client
        self._sessions_changed()
        return client

    def join(self, token: object) -> ClientSession:
        """Add a connection to the client with this token. Raises ProtocolError if it is unknown."""
        with self._lock:
            client = self._clients.get(token) if isinstance(token, str) else None
            if client is None or client.leaving:
                raise ProtocolError("found an unknown token, expected a connected client's token")
            client.connections += 1
            return client

    def leave(self, client: ClientSession) -> None:
        """Remove a connection. With the last one, release the client's engines and arenas."""
        with self._lock:
            client.connections -= 1
            if client.connections:
                return
        with client.lock:
            references, client.references = list(client.references.values()), {}
        for reference in references:
            with _logged(f"{client}: {reference.name} was not released"):
                self.close_reference(reference)
        for number in client.arenas.numbers:
            with _logged(f"{client}: arena {number} was not released"):
                client.arenas.remove(number)
        _log.info("%s has disconnected", client)
        with self._lock:  # last, so that the client is listed until everything is released
            del self._clients[client.token]
        self._sessions_changed()

    def close_reference(self, reference: ModelReference) -> None:
        """Release a client's reference to a model. The client must not be executing on it."""
        try:
            if reference.resident is not None:
                reference.resident.close()
        finally:
            self.cache().release(reference.model)

    def add_reference(
        self,
        client: ClientSession,
        name: str,
        model: CachedModel,
        resident: ResidentTensors | None = None,
    ) -> ModelReference:
        """Add an engine to a client; `name` is the model's name, for people."""
        reference = ModelReference(next(self._numbers), name, model, resident)
        with client.lock:
            client.references[reference.number] = reference
        return reference

    # ------------------------------------------------------------------------------- statistics

    def stats(self) -> Json:
        """Return the statistics that `ge-runtime top` prints.

        Times are in seconds, sizes in bytes. Counters begin with the start of the service.
        """
        backend, cache, clients = self._backend, self._cache, self.clients()
        models = [] if cache is None else cache.models()
        devices = () if backend is None else backend.memories
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "version": VERSION,
            "device": self.device,
            "place": None
            if backend is None
            else {"kind": backend.kind, "name": backend.name, "hardware": backend.hardware},
            "card": self.condition()["telemetry"],
            "pid": os.getpid(),
            "up_s": self.clock.now() - self.started_at,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "turns": asdict(self.scheduler.stats()),
            "memory": _memory_stats(devices, models, clients),
            "models": [_model_stats(model) for model in models],
            "clients": [_client_stats(client) for client in clients],
        }


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log exceptions within the context and continue, so that other resources are released."""
    try:
        yield
    except Exception:
        _log.exception("%s", what)


def _memory_stats(
    devices: Sequence[Device[Any]], models: Sequence[CachedModel], clients: Sequence[ClientSession]
) -> Json:
    allocated: Counter[str] = Counter()
    for device in devices:
        allocated.update(device.allocated_bytes)
    own_weights = sum(model.engine.weights_bytes() for model in models)
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident": resident_pages * resource.getpagesize(),
        # Engines of a card share weights, which the card counts. Other engines share none.
        "weights": allocated.get("weights", own_weights),
        "arenas": sum(client.arenas.nbytes for client in clients),
        "allocated": dict(allocated),
        "allocations": sum(device.allocations for device in devices),
    }


def _model_stats(model: CachedModel) -> Json:
    return {
        "artifacts": [str(artifact.path) for artifact in model.artifacts],
        "engine": model.artifacts[0].engine,
        "content": model.content[:12],
        "weights": model.engine.weights_bytes(),
        "clients": model.users,
        "executions": model.executions,
        "faults": model.faults,
        "busy_s": model.busy_s,
    }


def _client_stats(client: ClientSession) -> Json:
    return {
        "number": client.number,
        "name": client.name,
        "pid": client.pid,
        "process": _process_name(client.pid),
        "weight": client.weight,
        "priority": client.priority,
        "arenas": client.arenas.nbytes,
        "engines": len(client.references),
        "resident_rows": client.resident_rows,
        "executions": client.executions,
        "faults": client.faults,
        "busy_s": client.busy_s,
        "wait_s": client.wait_s,
        "waiting": client.waiting,
    }


def _process_name(pid: int) -> str:
    """Return the name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
