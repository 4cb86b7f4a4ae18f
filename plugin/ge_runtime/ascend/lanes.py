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
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.codes import Kind
from ge_runtime.ascend.context import DeviceContext
from ge_runtime.ascend.driver import Address
from ge_runtime.ascend.om_model import LoadedModel, ModelFile
from ge_runtime.ascend.slots import Execution, Slot
from ge_runtime.devices import Buffer
from ge_runtime.errors import (
    ArtifactFault,
    EngineFault,
    OutOfMemory,
    PlanFault,
    RuntimeFault,
    shown,
)

if TYPE_CHECKING:
    from ge_runtime.ascend.card import Card

TIMEOUT_S: Final = 60.0
"""An execution that takes longer is taken for one that never ends."""

_log = logging.getLogger(__name__)


class CardLane:
    """See above. Executions from any thread; loading and closing is the card's, in `Card.quiet`."""

    def __init__(self, card: Card, number: int, capacity_bytes: int | None) -> None:
        """capacity_bytes: of the workspace; None: as the largest model needs."""
        self.turn = threading.Lock()
        """Held for each execution, and by whoever changes what is loaded."""
        self.capacity_bytes = capacity_bytes
        self._card = card
        self._driver = card.driver
        self._name = f"lane {number} of {card.name}"
        self._models: dict[str, LoadedModel] = {}  # by digest
        self._workspace: Buffer[Address] | None = None
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
                self._synchronize()  # what was queued before still uses the slot
                if last or fault.kind is not Kind.RETRY:
                    raise
        self._synchronize()
        slot.collect(execution)

    def _synchronize(self) -> None:
        self._driver.synchronize_stream(self._stream, round(TIMEOUT_S * 1e3))

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

    def load(self, files: Sequence[ModelFile]) -> list[LoadedModel]:
        """The model of each file, loaded if it is not yet; each is given back by `unload`.

        Raises DriverFault with the file, OutOfMemory, or PlanFault if one needs more workspace
        than the lane may have; then what was loaded before is as it was.
        """
        self._context.enter()
        self._have_workspace([file for file in files if file.digest not in self._models])
        models: list[LoadedModel] = []
        with ExitStack() as undo:
            for file in files:
                try:
                    model = self._load(file)
                except DriverFault as fault:
                    fault.path = file.path
                    if fault.kind is Kind.LOST:  # nothing is called any more, to unload either
                        self._card.lose(f"{file.path}: {fault}")
                    raise
                undo.callback(self.unload, model)
                models.append(model)
            undo.pop_all()
        return models

    def _load(self, file: ModelFile) -> LoadedModel:
        model = self._models.get(file.digest)
        if model is not None:
            model.file = file  # those who had it first may have gone, with their folder
            if model.absent is not None:
                self._load_again(model)
            model.users += 1
            return model
        weights = self._card.share_weights(file)
        try:
            model = LoadedModel(file, self._driver.load(*self._memory_of(file, weights)), weights)
        except BaseException:
            self._card.leave_weights(file.digest)
            raise
        self._models[file.digest] = model
        try:
            model.describe(self._driver, self._card.memory)
        except BaseException:
            self.unload(model)
            raise
        return model

    def unload(self, model: LoadedModel) -> None:
        """One engine needs the model no more. Nothing of the lane is executing."""
        model.users -= 1
        if model.users:
            return
        del self._models[model.file.digest]
        if self._card.lost is None and model.absent is None:
            self._context.enter()
            self._driver.unload(model.id)
        self._card.leave_weights(model.file.digest)

    @property
    def is_empty(self) -> bool:
        """Whether no model is loaded."""
        return not self._models

    @property
    def workspace_bytes(self) -> int:
        """What its models share."""
        return self._workspace.nbytes if self._workspace else 0

    @property
    def failed(self) -> bool:
        """Whether it has to be made anew."""
        return self._failure is not None

    def renew(self) -> None:
        """A new context and stream, and all models loaded into the memory that they had.

        One whose file is not what it was is left out, and does not hold up the others.
        """
        _log.warning("%s: made anew after a failed execution of %s", self._name, self._failure)
        self._context.enter()
        self._unload_all()
        self._end()
        self._begin()
        self._load_all()
        self._failure = None

    def close(self) -> None:
        """Free it, with no model left in it. Once."""
        if self._card.lost is None:
            self._context.enter()
            self._synchronize()
            self._end()
        if self._workspace is not None:
            self._workspace.free()

    def _begin(self) -> None:
        self._context = DeviceContext(self._driver, self._card.device)
        try:
            self._stream = self._driver.create_stream()
        except DriverFault:
            self._context.destroy()
            raise

    def _end(self) -> None:
        self._driver.destroy_stream(self._stream)
        self._context.destroy()

    def _have_workspace(self, files: Sequence[ModelFile]) -> None:
        """See to a block that is large enough for new models too, and to room for their weights.

        It is as large as the lane may have. Where nobody said that, it grows with the models, and
        those that were there before are loaded again. Nothing is touched before all will fit.
        """
        if not files:
            return
        largest = max(files, key=lambda file: file.workspace_bytes)
        needed, limit = largest.workspace_bytes, self.capacity_bytes
        if limit is not None and needed > limit:
            raise PlanFault(
                f"{largest.path}: found {needed:,} bytes of workspace, expected at most {limit:,}, "
                "which the parameter 'workspace_pool_mib' allows all models of a lane together"
            )
        there = self.workspace_bytes
        wanted = max(there, limit or needed)
        weights = sum(file.weights_bytes for file in files if not self._card.has_weights(file))
        free = self._card.memory.free_bytes
        if free is not None and wanted - there + weights > free:
            paths = ", ".join(str(file.path) for file in files)
            raise OutOfMemory(
                f"{paths}: found {wanted - there:,} more bytes of workspace and {weights:,} of "
                f"weights wanted, expected at most {free:,}, what is free on {self._card.name}; "
                "the largest gear decides how much workspace is needed"
            )
        if there == wanted:
            return
        self._ensure_unchanged()
        try:
            self._replace_workspace(wanted)
        except DriverFault as fault:
            if self.is_empty:
                raise
            raise self._stranded(fault) from fault

    def _replace_workspace(self, nbytes: int) -> None:
        self._unload_all()
        there, self._workspace = self._workspace, None
        if there is not None:
            there.free()
        try:
            self._workspace = self._card.memory.allocate("workspace", nbytes)
        except OutOfMemory:
            if there is not None:
                self._restore(there.nbytes)
            raise
        self._load_all()

    def _restore(self, nbytes: int) -> None:
        """The workspace that there was, for the models that there were."""
        try:
            self._workspace = self._card.memory.allocate("workspace", nbytes)
        except OutOfMemory as fault:
            raise self._stranded(fault) from fault
        self._load_all()

    def _stranded(self, fault: RuntimeFault) -> RuntimeFault:
        """Models that others count on are gone: the error to raise."""
        return self._card.lose(f"{self._name}: its models cannot be loaded again: {fault}")

    def _ensure_unchanged(self) -> None:
        """What is loaded again must be what it was: the shapes, and the sizes of its memory."""
        for model in self._models.values():
            if model.absent is None:
                model.file.ensure_unchanged()

    def _unload_all(self) -> None:
        for model in self._models.values():
            if model.absent is None:
                self._driver.unload(model.id)

    def _load_all(self) -> None:
        self._context.enter()
        for model in self._models.values():
            self._load_again(model)

    def _load_again(self, model: LoadedModel) -> None:
        try:
            model.file.ensure_unchanged()
        except (ArtifactFault, OSError) as fault:
            why = f"{fault.filename}: {fault.strerror}" if isinstance(fault, OSError) else fault
            model.absent = f"{why}; load the model again"
            _log.error("%s: %s", self._name, model.absent)
            return
        model.id = self._driver.load(*self._memory_of(model.file, model.weights))
        model.absent = None

    def _memory_of(
        self, file: ModelFile, weights: Buffer[Address]
    ) -> tuple[str, tuple[Address, int], tuple[Address, int]]:
        assert self._workspace is not None, "a model without workspace was refused before"
        workspace = (self._workspace.memory, self._workspace.nbytes)
        return str(file.path), workspace, (weights.memory, weights.nbytes)

    def __repr__(self) -> str:
        models = ", ".join(shown(model.file.path) for model in self._models.values())
        return f"<{self._name}: {self.workspace_bytes:,} bytes of workspace for {models or 'none'}>"
