"""The Ascend cards of a process, each with the models that are loaded on it.

    Cards ── Card ── StreamExecutor (context, stream) ── ExecutorModels (workspace) ── LoadedModel
               └──── SharedWeights, once for each content of a file

A card is opened by its first user and closed by its last one. The driver is initialized with the
first card of the process and finalized with the last one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from ge_runtime.config import TimeLimits
from ge_runtime.devices import DeviceHealth
from ge_runtime.errors import EngineLost, PlanFault
from ge_runtime.npu.driver.cann_values import DriverFault
from ge_runtime.npu.driver.device import AscendDevice
from ge_runtime.npu.driver.executor_models import ExecutorModels, SharedWeights
from ge_runtime.npu.driver.memory import CardMemory
from ge_runtime.npu.driver.om_model import ModelFile, Stage
from ge_runtime.npu.driver.pyacl import PyAclDriver, open_driver
from ge_runtime.npu.driver.stream_executor import StreamExecutor

INTERVAL_S: Final = 1.0
"""Minimum time between two queries of a card, each of which blocks all Python threads."""

_LIMITS: Final = TimeLimits()

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CardStatus:
    """The status of a card."""

    fault: str
    """Why nothing should be executed on the card; empty if the card is healthy."""
    free_bytes: int = 0
    total_bytes: int = 0
    percent: Mapping[str, int] = field(default_factory=dict)
    """Utilization in percent by unit of the chip, for the units that the chip reports."""


class CardWatch:
    """Queries a card's status, at most once in INTERVAL_S. Thread-safe."""

    def __init__(self, device: AscendDevice, clock: Callable[[], float] = time.monotonic) -> None:
        self._device = device
        self._clock = clock
        self._querying = Lock()
        self._queried_at: float | None = None
        self._last = CardStatus("")

    def status(self) -> CardStatus:
        """Return the current or the last status. Never raises; marks a lost card as lost."""
        # While one thread queries the card, other threads get the last status.
        if self._querying.acquire(blocking=False):
            try:
                now = self._clock()
                if self._queried_at is None or now - self._queried_at >= INTERVAL_S:
                    self._queried_at = now
                    self._update(self._query())
            finally:
                self._querying.release()
        lost = self._device.lost
        return self._last if lost is None else CardStatus(str(lost))

    def _query(self) -> CardStatus:
        device = self._device
        try:
            with device.using():
                if not device.driver.is_healthy(device.number):
                    return CardStatus(f"{device.name}: the device reports an abnormal state")
                free, total = device.driver.memory_info()
                return CardStatus("", free, total, device.driver.utilization(device.number))
        except (DriverFault, EngineLost) as fault:
            return CardStatus(f"{device.name}: the status query failed: {fault}")

    def _update(self, status: CardStatus) -> None:
        if status.fault and not self._last.fault:
            _log.error("%s; its models are not ready", status.fault)
        elif self._last.fault and not status.fault:
            _log.warning("%s: healthy again", self._device.name)
        self._last = status


class Card(AscendDevice):
    """A device with its executors and weights. Created by `Cards`. Thread-safe."""

    def __init__(
        self, driver: PyAclDriver, number: int, health: DeviceHealth, limits: TimeLimits = _LIMITS
    ) -> None:
        super().__init__(driver, number, health, limits)
        self.memory = CardMemory(self)
        """Memory for weights and workspace."""
        self.weights = SharedWeights(self.memory)
        self.watch = CardWatch(self)
        self._executors: dict[int, StreamExecutor] = {}

    def load(
        self, files: Sequence[ModelFile], number: int, capacity_bytes: int | None, buffer_sets: int
    ) -> tuple[StreamExecutor, list[Stage]]:
        """Load models on an executor; `unload` releases them.

        Blocks until current executions are done. While models are loaded, all other Python threads
        are blocked. After an error nothing is changed.

        Args:
            files: The files of the models.
            number: Number of the executor, from 0; created if it does not exist.
            capacity_bytes: Maximum workspace of the executor; None: as large as its models need.
            buffer_sets: Minimum number of buffer sets of the executor.

        Returns:
            The executor, and a stage for each file.

        Raises:
            DriverFault: A file cannot be loaded.
            OutOfMemory: The card has not enough memory.
            PlanFault: A model needs more workspace than `capacity_bytes`, or `capacity_bytes`
                differs from earlier calls.
            EngineLost: The card is lost.
        """
        # Nothing may execute during a load: a load writes weights that another executor's model of
        # the same file may be reading, and may replace the workspace.
        with self.exclusive():
            self.ensure_available()
            executor = self._executors.get(number)
            if executor is None:
                models = ExecutorModels(
                    self, self.memory, self.weights, f"lane {number} of {self.name}", capacity_bytes
                )
                with self.detecting_loss():
                    executor = self._executors[number] = StreamExecutor(self, models)
            elif executor.models.capacity_bytes != capacity_bytes:
                raise PlanFault(
                    f"parameter 'workspace_pool_mib': found {_mib(capacity_bytes)}, expected "
                    f"{_mib(executor.models.capacity_bytes)}: the workspace of {executor!r} is "
                    "shared by all its models"
                )
            try:
                # Reset first, because a load needs the context, which is invalid after a failure.
                executor.reset_if_failed()
                executor.ensure_sets(buffer_sets)
                with self.detecting_loss():
                    return executor, executor.load(files)
            finally:
                self._drop_if_empty(number)

    def unload(self, executor: StreamExecutor, stages: Sequence[Stage]) -> None:
        """Release models that an engine no longer needs. Waits for current executions."""
        with self.exclusive(), self.releasing():
            for stage in stages:
                executor.unload(stage)
            number = next(n for n, each in self._executors.items() if each is executor)
            self._drop_if_empty(number)

    def _drop_if_empty(self, number: int) -> None:
        executor = self._executors[number]
        if executor.models.is_empty:
            del self._executors[number]
            with self.releasing():
                executor.close()
            for lock in executor.locks:
                self.remove_execution_lock(lock)


class Cards:
    """The cards of a process, each opened by its first user. Thread-safe."""

    def __init__(self, driver: Callable[[], PyAclDriver] = open_driver) -> None:
        self._open_driver = driver
        self._lock = Lock()
        self._open: dict[int, Card] = {}
        self._healths: dict[int, DeviceHealth] = {}
        self._users: dict[int, int] = {}
        self._initialized = False
        """True if this object called acl.init, and so must call acl.finalize."""

    def health(self, device: int) -> DeviceHealth:
        """Return the health of a card, which need not be open."""
        return self._healths.setdefault(device, DeviceHealth())

    def acquire(self, device: int, limits: TimeLimits = _LIMITS) -> Card:
        """Return a card for one more user, which must call `release`.

        Args:
            device: Number of the card.
            limits: The user's time limits of executions. The largest limits of all users apply.

        Raises:
            NoDevice: There is no driver.
            PlanFault: The chip does not support the time limits.
            DriverFault: The device cannot be opened.
            EngineLost: The device was lost before.
        """
        health = self.health(device)
        health.ensure_available()  # first: a lost device must not be called
        with self._lock:
            if device not in self._open:
                driver = self._open_driver()
                if not self._open:  # before any other call, as aclInit's documentation requires
                    self._initialized = driver.init()
                try:
                    self._open[device] = Card(driver, device, health, limits)
                except BaseException:
                    self._finalize_if_last(driver)
                    raise
            else:
                self._open[device].extend_limits(limits)
            self._users[device] = self._users.get(device, 0) + 1
            return self._open[device]

    def release(self, card: Card) -> None:
        """Release one reference.

        The last reference closes the card; the last card finalizes the driver.
        """
        with self._lock:
            self._users[card.number] -= 1
            # A card whose pinned memory is still in use cannot be closed. It stays open for the
            # next `acquire`.
            if self._users[card.number] == 0 and card.close():
                del self._open[card.number]
                self._finalize_if_last(card.driver)

    def _finalize_if_last(self, driver: PyAclDriver) -> None:
        if not self._open and self._initialized:
            self._initialized = False
            try:
                driver.finalize()
            except DriverFault as fault:
                _log.warning("the driver could not be finalized: %s", fault)


def _mib(nbytes: int | None) -> str:
    return "none" if nbytes is None else f"{nbytes / 2**20:g}"


PROCESS_CARDS: Final = Cards()
"""The cards of this process."""
