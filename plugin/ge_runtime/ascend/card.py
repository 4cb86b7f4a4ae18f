"""One Ascend card as this process uses it, for all models that are opened on it.

    Card ── CardLane (context, stream, workspace) ── LoadedModel
      └──── weights, once for each content of a file

Weights are written into their block at each load, also where another lane's model of the same
file has them, so nothing executes while anything is loaded. A card that is lost is left alone: no
call is made on it any more, as it might not return, and nothing is given back before the process
ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Final

from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.context import DeviceContext
from ge_runtime.ascend.driver import Address, Driver
from ge_runtime.ascend.lanes import CardLane
from ge_runtime.ascend.memory import CardMemory, DeviceAccess
from ge_runtime.ascend.om_model import LoadedModel, ModelFile
from ge_runtime.ascend.pyacl import open_driver
from ge_runtime.devices import Buffer
from ge_runtime.devices.health import DeviceHealth
from ge_runtime.errors import ArtifactFault, EngineLost, PlanFault

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Weights:
    buffer: Buffer[Address]
    users: int


class Card:
    """See above. Made by `Cards`. Safe from any thread."""

    def __init__(self, driver: Driver, device: int, health: DeviceHealth) -> None:
        """Raises DriverFault if the device cannot be had; then it is given back."""
        self.driver = driver
        self.device = device
        self._health = health
        self.name = f"npu:{device}"
        with ExitStack() as undo:
            driver.set_device(device)
            undo.callback(driver.reset_device, device)
            self._home = DeviceContext(driver, device)
            undo.callback(self._home.destroy)
            self.soc_name = driver.soc_name()
            self.access = DeviceAccess(driver, self._home, health)
            undo.pop_all()
        self.memory = CardMemory(self.access, self.name)
        """For weights and workspace."""
        self._lanes: dict[int, CardLane] = {}
        self._weights: dict[str, _Weights] = {}  # by digest
        self._loading = Lock()

    @property
    def lost(self) -> EngineLost | None:
        """See DeviceHealth."""
        return self._health.lost

    def ensure_there(self) -> None:
        """See DeviceHealth."""
        self._health.ensure_there()

    def enter(self) -> None:
        """Give the calling thread the card's own context, which is there as long as the card is.

        That of a lane may go at any moment, when the lane is made anew. Raises EngineLost.
        """
        self.ensure_there()
        self._home.enter()

    def lose(self, text: str) -> EngineLost:
        """See DeviceHealth."""
        return self._health.lose(text)

    # -- models --

    def load(
        self, files: Sequence[ModelFile], lane: int, capacity_bytes: int | None
    ) -> tuple[CardLane, list[LoadedModel]]:
        """The models of these files on this lane; given back by `unload`.

        lane: from 0; made if it is not there. capacity_bytes: of its workspace; None: as large as
        its models need. Blocks until what executes is done, and the rest of the process for as
        long as a load takes.
        Raises DriverFault, OutOfMemory, PlanFault or EngineLost; then all is as before.
        """
        with self.quiet():
            self.ensure_there()
            there = self._lanes.get(lane)
            if there is None:
                there = self._lanes[lane] = CardLane(self, lane, capacity_bytes)
                there.turn.acquire()  # as all others: `quiet` lets go of it
            elif there.capacity_bytes != capacity_bytes:
                raise PlanFault(
                    f"parameter 'workspace_pool_mib': found {_mib(capacity_bytes)}, expected "
                    f"{_mib(there.capacity_bytes)}: what {there!r} has is shared by all its models"
                )
            try:
                self._renew_if_failed(there)
                return there, there.load(files)
            finally:
                self._drop_if_empty(lane)

    def unload(self, lane: CardLane, models: Sequence[LoadedModel]) -> None:
        """An engine needs the models no more. Waits for what executes."""
        with self.quiet(), self.releasing():
            for model in models:
                lane.unload(model)
            number = next(number for number, own in self._lanes.items() if own is lane)
            self._drop_if_empty(number)

    def has_weights(self, file: ModelFile) -> bool:
        """Whether some lane has the file's weights already."""
        return file.digest in self._weights

    def share_weights(self, file: ModelFile) -> Buffer[Address]:
        """The block for this file's weights: one for all lanes. Raises OutOfMemory."""
        shared = self._weights.get(file.digest)
        if shared is None:
            # A block of 0 bytes has no address, and without one the driver allocates its own.
            buffer = self.memory.allocate("weights", max(1, file.weights_bytes))
            shared = self._weights[file.digest] = _Weights(buffer, 0)
        shared.users += 1
        return shared.buffer

    def leave_weights(self, digest: str) -> None:
        """A lane has unloaded the model; the last one frees them."""
        shared = self._weights[digest]
        shared.users -= 1
        if not shared.users:
            del self._weights[digest]
            shared.buffer.free()

    def mend(self, lane: CardLane) -> None:
        """Make a lane anew whose execution failed, unless another thread has. Raises EngineLost."""
        with self.quiet():
            self.ensure_there()
            self._renew_if_failed(lane)

    def _renew_if_failed(self, lane: CardLane) -> None:
        if lane.failed:
            try:
                lane.renew()
            except (DriverFault, ArtifactFault, OSError) as fault:
                raise self.lose(f"{self.name}: it cannot be mended: {fault}") from fault

    @contextmanager
    def releasing(self, *errors: type[Exception]) -> Iterator[None]:
        """Give something back, for the length of a `with`: at once nothing if the card is lost.

        A card that fails in this is lost too: what it still uses nobody can tell. errors: what else
        is a failure of the card's.
        """
        failures: tuple[type[Exception], ...] = (DriverFault, *errors)
        try:
            yield
        except failures as fault:
            self.lose(f"{self.name}: it fails to give back what it had: {fault}")

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nothing executes on the card, for the length of a `with`."""
        with self._loading, ExitStack() as held:
            for lane in self._lanes.values():
                lane.turn.acquire()
            held.callback(self._go_on)
            yield

    def _go_on(self) -> None:
        for lane in self._lanes.values():
            lane.turn.release()

    def _drop_if_empty(self, number: int) -> None:
        lane = self._lanes[number]
        if lane.is_empty:
            del self._lanes[number]
            with self.releasing():
                lane.close()
            lane.turn.release()

    def close(self) -> bool:
        """Free it, without models on it; whether all of it was. Safe to call again if not.

        False while somebody reads pinned memory, which ends with the device; or if it is lost.
        """
        with self.releasing():
            self.access.reap()
            if self.lost is None and not self.access.pinned_out:
                self.access.enter()
                self._home.destroy()
                self.driver.reset_device(self.device)
                return True
        return False


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
        health.ensure_there()
        with self._lock:
            if device not in self._open:
                driver = self._open_driver()
                if not self._open:
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
            self._users[card.device] -= 1
            if self._users[card.device] == 0 and card.close():
                del self._open[card.device]
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
