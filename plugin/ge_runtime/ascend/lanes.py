"""A lane of a card: one stream, and one block of workspace for all models that execute in it.

Models of a lane take turns, so that the block is as large as the largest of them needs. A turn is
the whole of an execution: copies in, the stages of a chain one after another, copies out, and the
wait for all of it. So what the wait reports is about this execution and no other: the driver tells
of a failed task at the next wait for its stream, once, and not which task it was.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.codes import Kind
from ge_runtime.ascend.context import DeviceContext
from ge_runtime.ascend.lane_models import LaneModels
from ge_runtime.ascend.om_model import ModelFile, Stage
from ge_runtime.ascend.slots import Execution, Slot
from ge_runtime.errors import EngineFault, OutOfMemory, RuntimeFault, shown

if TYPE_CHECKING:
    from ge_runtime.ascend.card import Card

TIMEOUT_S: Final = 60.0
"""An execution that takes longer is taken for one that never ends."""

_log = logging.getLogger(__name__)


class CardLane:
    """Executions from any thread; loading and closing is the card's, in `Card.quiet`."""

    def __init__(self, card: Card, number: int, capacity_bytes: int | None) -> None:
        """capacity_bytes: of the workspace; None: as the largest model needs."""
        self.turn = threading.Lock()
        """Held for each execution, and by whoever changes what is loaded."""
        self._card = card
        self._driver = card.driver
        self._name = f"lane {number} of {card.name}"
        self.models = LaneModels(card, self._name, capacity_bytes)
        self._failure: str | None = None
        """The model whose execution failed, and of what, until the lane is made anew."""
        self._begin()

    # -- executions --

    def execute(self, slot: Slot, execution: Execution) -> None:
        """Copy in, execute the stages, copy out; returns when all is done.

        Blocks until it is this execution's turn; other threads run while it waits.
        Raises EngineFault, OutOfMemory, or EngineLost once the card is lost. A queue that is full
        is tried once more. After a failed execution the lane is made anew before the next.
        """
        while True:
            with self.turn:
                self._card.ensure_there()
                if self._failure is None:
                    try:
                        self._execute(slot, execution)
                    except DriverFault as fault:
                        raise self._verdict(fault, slot.files(execution)) from fault
                    return
            self._card.mend(self)

    def _execute(self, slot: Slot, execution: Execution) -> None:
        self._context.enter()
        for last in (False, True):
            try:
                slot.submit(self._stream, execution)
                break
            except DriverFault as fault:
                if fault.kind is Kind.LOST:
                    raise
                self._wait()  # what was queued before still uses the slot
                if last or fault.kind is not Kind.RETRY:
                    raise
        self._wait()
        slot.collect(execution)

    def _wait(self) -> None:
        self._card.wait(self._stream, TIMEOUT_S)

    def _verdict(self, fault: DriverFault, files: Sequence[Path]) -> RuntimeFault:
        """files: those that were executed; which of them failed, only their own calls tell."""
        model = shown(*([fault.path] if fault.path else files))
        text = f"{self._name}: {model}: {fault}"
        if fault.kind is Kind.LOST:
            return self._card.lose(text)
        if fault.kind is Kind.MEMORY:
            return OutOfMemory(text)
        if fault.kind is Kind.RELOAD:
            self._failure = f"{model}: {fault}"
        return EngineFault(text)

    # -- what is loaded: by the card, while all lanes are quiet --

    def load(self, files: Sequence[ModelFile]) -> list[Stage]:
        self._context.enter()
        return self.models.load(files)

    def unload(self, stage: Stage) -> None:
        """Of a card that is lost nothing is called."""
        if self._card.lost is None:
            self._context.enter()
        self.models.unload(stage)

    @property
    def failed(self) -> bool:
        """Whether it has to be made anew."""
        return self._failure is not None

    def renew(self) -> None:
        """A new context and stream, and the models loaded again: see `LaneModels.load_all`."""
        _log.warning("%s: made anew after a failed execution of %s", self._name, self._failure)
        self._context.enter()
        self.models.unload_all()
        self._end()
        self._begin()
        self.models.load_all()
        self._failure = None

    def close(self) -> None:
        """Free it, with no model left in it. Once. Each execution has waited for its end."""
        if self._card.lost is None:
            self._context.enter()
            self._end()
        self.models.free()

    def _begin(self) -> None:
        self._context = DeviceContext(self._driver, self._card.device)
        try:
            with self._card.noticing():
                self._stream = self._driver.create_stream()
        except DriverFault:
            self._context.destroy()
            raise

    def _end(self) -> None:
        self._driver.destroy_stream(self._stream)
        self._context.destroy()

    def __repr__(self) -> str:
        return f"<{self._name}: {self.models}>"
