"""The Ascend cards of a process, each with the models that are loaded on it.

    Cards ── Card ── StreamExecutor (context, stream) ── ExecutorModels (workspace) ── LoadedModel
               └──── SharedWeights, once for each content of a file

A card is opened by the first who uses it and closed by the last; the driver begins with the first
card of the process and ends with the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from ge_runtime.devices.health import DeviceHealth
from ge_runtime.errors import PlanFault
from ge_runtime.npu.driver.device import AscendDevice
from ge_runtime.npu.driver.driver import Driver
from ge_runtime.npu.driver.executor_models import ExecutorModels, SharedWeights
from ge_runtime.npu.driver.memory import CardMemory
from ge_runtime.npu.driver.om_model import ModelFile, Stage
from ge_runtime.npu.driver.pyacl import open_driver
from ge_runtime.npu.driver.return_codes import DriverFault
from ge_runtime.npu.driver.stream_executor import StreamExecutor
from ge_runtime.npu.driver.watch import CardWatch

_log = logging.getLogger(__name__)


class Card(AscendDevice):
    """A device with its executors and weights. Made by `Cards`. Safe from any thread."""

    def __init__(self, driver: Driver, number: int, health: DeviceHealth) -> None:
        super().__init__(driver, number, health)
        self.memory = CardMemory(self)
        """For weights and workspace."""
        self.weights = SharedWeights(self.memory)
        self.watch = CardWatch(self)
        self._executors: dict[int, StreamExecutor] = {}

    def load(
        self,
        files: Sequence[ModelFile],
        number: int,
        capacity_bytes: int | None,
        buffer_sets: int,
    ) -> tuple[StreamExecutor, list[Stage]]:
        """The models of these files on the executor of this number; given back by `unload`.

        number: from 0; made if it is not there. capacity_bytes: of its workspace; None: as large
        as its models need. buffer_sets: that it has at least.
        Blocks until what executes is done, and the rest of the process for as long as a load takes.
        Raises DriverFault, OutOfMemory, PlanFault or EngineLost; then all is as before.
        """
        # A load writes weights into their block, also where another executor's model of the same
        # file reads them, and the workspace may be replaced: nothing may execute meanwhile.
        with self.exclusive():
            self.ensure_there()
            executor = self._executors.get(number)
            if executor is None:
                models = ExecutorModels(
                    self,
                    self.memory,
                    self.weights,
                    f"lane {number} of {self.name}",
                    capacity_bytes,
                )
                with self.noticing_loss():
                    executor = self._executors[number] = StreamExecutor(self, models)
            elif executor.models.capacity_bytes != capacity_bytes:
                raise PlanFault(
                    f"parameter 'workspace_pool_mib': found {_mib(capacity_bytes)}, expected "
                    f"{_mib(executor.models.capacity_bytes)}: what {executor!r} has is shared by "
                    "all its models"
                )
            try:
                # First: after a failure its context is not to be trusted, and a load needs it.
                executor.reset_if_failed()
                executor.ensure_sets(buffer_sets)
                with self.noticing_loss():
                    return executor, executor.load(files)
            finally:
                self._drop_if_empty(number)

    def unload(self, executor: StreamExecutor, stages: Sequence[Stage]) -> None:
        """An engine needs the models no more. Waits for what executes."""
        with self.exclusive(), self.releasing():
            for stage in stages:
                executor.unload(stage)
            number = next(n for n, own in self._executors.items() if own is executor)
            self._drop_if_empty(number)

    def _drop_if_empty(self, number: int) -> None:
        executor = self._executors[number]
        if executor.models.is_empty:
            del self._executors[number]
            with self.releasing():
                executor.close()
            for turn in executor.turns:
                self.remove_turn(turn)


class Cards:
    """The cards of a process, each opened by the first who uses it. Safe from any thread."""

    def __init__(self, driver: Callable[[], Driver] = open_driver) -> None:
        self._open_driver = driver
        self._lock = Lock()
        self._open: dict[int, Card] = {}
        self._healths: dict[int, DeviceHealth] = {}
        self._users: dict[int, int] = {}
        self._initialized = False
        """Whether it was us who called acl.init, and must call acl.finalize."""

    def health(self, device: int) -> DeviceHealth:
        """Whether that card is there; whether or not anybody has it open."""
        return self._healths.setdefault(device, DeviceHealth())

    def acquire(self, device: int) -> Card:
        """The card, for one more user, until `release`.

        Raises NoDevice where there is no driver, DriverFault if the device cannot be had, and
        EngineLost if it was lost before.
        """
        health = self.health(device)
        health.ensure_there()  # first: of a lost device not even the driver is asked
        with self._lock:
            if device not in self._open:
                driver = self._open_driver()
                if not self._open:  # before any other call, by aclInit's documents
                    self._initialized = driver.init()
                try:
                    self._open[device] = Card(driver, device, health)
                except BaseException:
                    self._finalize_if_last(driver)
                    raise
            self._users[device] = self._users.get(device, 0) + 1
            return self._open[device]

    def release(self, card: Card) -> None:
        """One user less; the last one closes the card, and that of all cards ends the driver."""
        with self._lock:
            self._users[card.number] -= 1
            # A card that cannot be closed, as somebody reads its pinned memory, stays open: the
            # next who acquires it has it again.
            if self._users[card.number] == 0 and card.close():
                del self._open[card.number]
                self._finalize_if_last(card.driver)

    def _finalize_if_last(self, driver: Driver) -> None:
        if not self._open and self._initialized:
            self._initialized = False
            try:
                driver.finalize()
            except DriverFault as fault:
                _log.warning("the driver does not end as it should: %s", fault)


def _mib(nbytes: int | None) -> str:
    return "none" if nbytes is None else f"{nbytes / 2**20:g}"


PROCESS_CARDS: Final = Cards()
"""The cards of this process."""
