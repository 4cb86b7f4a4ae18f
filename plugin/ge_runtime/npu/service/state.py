"""The state of a device service: its device's backend, the open models, its clients' sessions.

Sessions and executions work on it from their threads; it knows neither of them, nor the server
that accepts them.
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
from ge_runtime.npu.service.fair_queue import QueueEntry, State
from ge_runtime.npu.service.fair_scheduler import FairScheduler
from ge_runtime.npu.service.identity import physical_device
from ge_runtime.npu.service.model_cache import CachedModel, ModelCache
from ge_runtime.npu.service.protocol import VERSION, Json, ProtocolError
from ge_runtime.npu.service.resident import ResidentTensors
from ge_runtime.npu.service.row_registry import RowRegistry
from ge_runtime.npu.service.shared_memory import MappedArenas

_log = logging.getLogger(__name__)

MOST_ENGINES: Final = 256
"""Of one client, which has one. More are a defect of the client, and are refused."""

_CARD_UNITS: Final = 2
"""Executions of a card under way at a time: one computes while the next is copied there."""


@dataclass(slots=True, eq=False)
class ModelReference:
    """A cached model as one client has it open."""

    number: int
    name: str
    """The model's, as this client has it: files of equal content may have others."""
    model: CachedModel
    resident: ResidentTensors | None = None
    """What of its tensors stays on the device."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held by the connection that executes on it."""
    disconnect: Callable[[], None] = lambda: None
    """Ends that connection: its thread finds it closed."""
    entry: QueueEntry | None = None
    """Of its execution, waiting or under way."""


@dataclass(slots=True, eq=False)
class ClientSession:
    """A client: one model instance, connected. Its connections' threads change it under `lock`."""

    token: str
    number: int
    """Its own among all clients of this service."""
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
    """Grows when an arena goes: what was looked up in them before must be looked up again."""
    executions: int = 0
    faults: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0

    @property
    def process(self) -> Hashable:
        """Who shares with whom: all clients in a process are one."""
        return self.pid

    @property
    def waiting(self) -> int:
        """Its executions that wait for their turns."""
        with self.lock:
            entries = [reference.entry for reference in self.references.values()]
        return sum(entry is not None and entry.state is State.WAITING for entry in entries)

    @property
    def resident_rows(self) -> int:
        """Places on the device that rows of its executions take."""
        with self.lock:
            own = [reference.resident for reference in self.references.values()]
        return sum(resident.taken for resident in own if resident is not None)

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def note(self, took_s: float, waited_s: float, *, failed: bool) -> None:
        """Count an execution that has ended. Called by the connections of one engine each."""
        self.executions += 1
        self.faults += failed
        self.busy_s += took_s
        self.wait_s += waited_s

    def reference(self, number: object) -> ModelReference:
        """The engine of this number. Raises ProtocolError if the client has none."""
        with self.lock:
            reference = self.references.get(number) if isinstance(number, int) else None
        if reference is None:
            raise ProtocolError(
                f"found engine {number!r}, expected one that this client has opened"
            )
        return reference


class EndService(Protocol):
    """Ends the service, from any thread."""

    def __call__(self, why: str, *, patience_s: float = ...) -> None:
        """patience_s: for executions under way; those that wait for their turn are told at once."""


class ServiceState:
    """The device, its models and its clients. Safe from any thread."""

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
        """cores: those of the host that executions on it share.

        open_backend: makes the device's backend, for the first client. sessions_changed: called
        when a client has come, or has gone.
        """
        self.device = device
        self.physical_device = physical_device(device, os.environ)
        """The machine's own name of the device: clients must mean the same."""
        self.clock = clock
        self.started_at = clock.now()
        # The CPU's units are its cores: see `units`.
        self.scheduler = FairScheduler(cores if device == "cpu" else _CARD_UNITS, clock)
        self.end = end
        self._open_backend = open_backend
        self._sessions_changed = sessions_changed
        self._backend: DeviceBackend | None = None
        self._cache: ModelCache | None = None
        self._opening = threading.Lock()
        self._lock = threading.Lock()  # guards the next
        self._clients: dict[str, ClientSession] = {}
        self._numbers = itertools.count(1)
        self.rows = RowRegistry(clock)

    # ----------------------------------------------------------------------- device and models

    def backend(self) -> DeviceBackend:
        """The device's backend, opened with the first call. Raises what opening it raises."""
        with self._opening:
            if self._backend is None:
                # With the first client, not at the start: then it is told what is wrong.
                self._backend = self._open_backend(self.device)
                self._cache = ModelCache(self._backend)
            return self._backend

    def cache(self) -> ModelCache:
        """The models that are open on the device."""
        self.backend()
        assert self._cache is not None, "it is opened with the backend"
        return self._cache

    def condition(self) -> Json:
        """What the device tells of itself now, where it tells anything: see `Watched`."""
        watched = self._backend if isinstance(self._backend, Watched) else None
        return {
            "fault": "" if watched is None else watched.fault(),
            "telemetry": {} if watched is None else watched.telemetry(),
        }

    def units(self, model: CachedModel) -> int:
        """What an execution takes of the device."""
        return model.threads if self.device == "cpu" else 1

    @contextlib.contextmanager
    def exclusive(self, client: ClientSession, reference: ModelReference) -> Iterator[None]:
        """A turn in which nobody executes on an engine that is not made for several."""
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
        """Close all models and the backend, once no connection uses them."""
        if self._cache is not None:
            self._cache.close()
        if self._backend is not None:
            self._backend.close()

    # --------------------------------------------------------------------------------- clients

    def clients(self) -> list[ClientSession]:
        """The clients that are connected now."""
        with self._lock:
            return list(self._clients.values())

    def enter(self, name: str, pid: int, weight: float, priority: int) -> ClientSession:
        """A new client, with one connection."""
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
        """The client with this token, for one connection more.

        Raises ProtocolError if there is none.
        """
        with self._lock:
            client = self._clients.get(token) if isinstance(token, str) else None
            if client is None or client.leaving:
                raise ProtocolError("found the token of no client, expected that of one connected")
            client.connections += 1
            return client

    def leave(self, client: ClientSession) -> None:
        """One connection less; with the last everything comes back that the client held."""
        with self._lock:
            client.connections -= 1
            if client.connections:
                return
        with client.lock:
            references, client.references = list(client.references.values()), {}
        for reference in references:
            with _logged(f"{client}: {reference.name} was not given back"):
                self.close_reference(reference)
        for number in client.arenas.numbers:
            with _logged(f"{client}: arena {number} was not given back"):
                client.arenas.remove(number)
        _log.info("%s has left", client)
        with self._lock:  # only now: whoever does not see it any more finds nothing of it either
            del self._clients[client.token]
        self._sessions_changed()

    def close_reference(self, reference: ModelReference) -> None:
        """Give back what a client had of a model, on which nothing of its executes any more."""
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
        """An engine for the client. name: the model's, for people."""
        reference = ModelReference(next(self._numbers), name, model, resident)
        with client.lock:
            client.references[reference.number] = reference
        return reference

    # ------------------------------------------------------------------------------- statistics

    def stats(self) -> Json:
        """All that an operator can look at, see `ge-runtime top`, which prints it as it is.

        Times are seconds, sizes bytes; what counts, counts from the start.
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
    """Log what goes wrong, and go on: a device that keeps one thing keeps no others."""
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
        # Engines have their own, but for those of a card, which share files of equal content.
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
    """What the system calls a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
