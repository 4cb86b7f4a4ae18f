"""One Ascend card as this process uses it, for all models that are opened on it.

    Card ── CardLane (context, stream) ── LaneModels (workspace) ── LoadedModel
      └──── SharedWeights, once for each content of a file

Weights are written into their block at each load, also where another lane's model of the same
file has them, so nothing executes while anything is loaded. A card that is lost is left alone: no
call is made on it any more, as it might not return, and nothing is given back before the process
ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.codes import Kind
from ge_runtime.ascend.context import DeviceContext
from ge_runtime.ascend.driver import Driver, Stream
from ge_runtime.ascend.lanes import CardLane
from ge_runtime.ascend.memory import CardMemory, DeviceAccess
from ge_runtime.ascend.om_model import ModelFile, Stage
from ge_runtime.ascend.weights import SharedWeights
from ge_runtime.devices.health import DeviceHealth
from ge_runtime.errors import EngineLost, PlanFault

_SHORTAGE_S: Final = 0.1
"""After which a wait that failed for want of something is tried once more."""


class Card:
    """Made by `Cards`. Safe from any thread."""

    def __init__(self, driver: Driver, device: int, health: DeviceHealth) -> None:
        """Raises DriverFault if the device cannot be had; then it is given back."""
        self.driver = driver
        self.device = device
        self._health = health
        self.name = f"npu:{device}"
        with ExitStack() as undo:
            driver.set_device(device)
            undo.callback(_if_it_can, driver.reset_device, device)
            self._home = DeviceContext(driver, device)
            undo.callback(_if_it_can, self._home.destroy)
            self.soc_name = driver.soc_name()
            self.access = DeviceAccess(self.name, driver, self._home, health)
            undo.pop_all()
        self.memory = CardMemory(self.access, self.name)
        """For weights and workspace."""
        self.weights = SharedWeights(self.memory)
        self._lanes: dict[int, CardLane] = {}
        self._loading = Lock()

    @property
    def lost(self) -> EngineLost | None:
        return self._health.lost

    def ensure_there(self) -> None:
        self._health.ensure_there()

    def enter(self) -> None:
        """Give the calling thread the card's own context, which is there as long as the card is.

        That of a lane may go at any moment, when the lane is made anew. Raises EngineLost.
        """
        self.ensure_there()
        self._home.enter()

    def lose(self, text: str) -> EngineLost:
        return self._health.lose(text)

    # -- models --

    def load(
        self, files: Sequence[ModelFile], lane: int, capacity_bytes: int | None
    ) -> tuple[CardLane, list[Stage]]:
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
                with self.noticing():
                    there = self._lanes[lane] = CardLane(self, lane, capacity_bytes)
                there.turn.acquire()  # as all others: `quiet` lets go of it
            elif there.models.capacity_bytes != capacity_bytes:
                raise PlanFault(
                    f"parameter 'workspace_pool_mib': found {_mib(capacity_bytes)}, expected "
                    f"{_mib(there.models.capacity_bytes)}: what {there!r} has is shared by all "
                    "its models"
                )
            try:
                self._renew_if_failed(there)
                with self.noticing():
                    return there, there.load(files)
            finally:
                self._drop_if_empty(lane)

    def unload(self, lane: CardLane, stages: Sequence[Stage]) -> None:
        """An engine needs the models no more. Waits for what executes."""
        with self.quiet(), self.releasing():
            for stage in stages:
                lane.unload(stage)
            number = next(number for number, own in self._lanes.items() if own is lane)
            self._drop_if_empty(number)

    def mend(self, lane: CardLane) -> None:
        """Make a lane anew whose execution failed, unless another thread has. Raises EngineLost."""
        with self.quiet():
            self.ensure_there()
            self._renew_if_failed(lane)

    def _renew_if_failed(self, lane: CardLane) -> None:
        if lane.failed:
            try:
                lane.renew()
            except DriverFault as fault:
                raise self.lose(f"{self.name}: it cannot be mended: {fault}") from fault

    def noticing(self, path: Path | None = None) -> AbstractContextManager[None]:
        return self.access.noticing(path)

    @contextmanager
    def releasing(self, *errors: type[Exception]) -> Iterator[None]:
        """Give something back, for the length of a `with`: no more of it once the card is lost.

        A card that fails in this is lost too: what it still uses nobody can tell. errors: what else
        is a failure of the card's.
        """
        failures: tuple[type[Exception], ...] = (DriverFault, *errors)
        try:
            yield
        except EngineLost:
            pass
        except failures as fault:
            self.lose(f"{self.name}: it fails to give back what it had: {fault}")

    def wait(self, stream: Stream, timeout_s: float) -> None:
        """Wait for all that is queued in a stream of this thread's context.

        Blocks for twice that time at most. Raises DriverFault for what failed of it; then, too,
        nothing of it is executing any more, unless the card is lost, or a task has failed and the
        stream, which is to be made anew, cannot be waited for after that. Raises EngineLost if
        nobody can tell.
        """
        timeout_ms = round(timeout_s * 1e3)
        try:
            self.driver.synchronize_stream(stream, timeout_ms)
        except DriverFault as fault:
            if fault.kind is not Kind.LOST:
                self._wait_on(stream, timeout_ms, fault)
            raise

    def _wait_on(self, stream: Stream, timeout_ms: int, fault: DriverFault) -> None:
        """Wait once more after a wait that told `fault`, the card not being lost.

        A failed task may be told of before later ones have ended. Any other failure is the wait's
        own, which then has not been. Raises as `wait`, where this one tells more than `fault`.
        """
        if fault.kind in (Kind.RETRY, Kind.MEMORY):
            time.sleep(_SHORTAGE_S)
        try:
            self.driver.synchronize_stream(stream, timeout_ms)
        except DriverFault as again:
            if again.kind is Kind.LOST:
                raise
            if fault.kind is Kind.RELOAD:
                return
            if again.kind is Kind.RELOAD:  # of a task
                raise
            text = f"{self.name}: what is queued cannot be waited for: {again}"
            raise self.lose(text) from again

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
        if lane.models.is_empty:
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


def _if_it_can(undo: Callable[..., None], *arguments: int) -> None:
    """Undo something after a failure, which is what is to be told."""
    with suppress(DriverFault):
        undo(*arguments)


def _mib(nbytes: int | None) -> str:
    return "none" if nbytes is None else f"{nbytes / 2**20:g}"
