"""What is loaded on a lane: its models, and the one block of workspace that they take turns in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ge_runtime.ascend.atc import ensure_content
from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.codes import Kind
from ge_runtime.ascend.driver import Address, ModelId
from ge_runtime.ascend.om_model import LoadedModel, ModelFile, Stage
from ge_runtime.devices import Buffer
from ge_runtime.errors import ArtifactFault, OutOfMemory, PlanFault, RuntimeFault, shown

if TYPE_CHECKING:
    from ge_runtime.ascend.card import Card

Given = TypeVar("Given")

_log = logging.getLogger(__name__)


class LaneModels:
    """Used while all lanes of the card are quiet, in the context of this one."""

    def __init__(self, card: Card, name: str, capacity_bytes: int | None) -> None:
        """name: of the lane, for people. capacity_bytes: see `CardLane`."""
        self.capacity_bytes = capacity_bytes
        self._card = card
        self._driver = card.driver
        self._name = name
        self._models: dict[str, LoadedModel] = {}  # by digest
        self._workspace: Buffer[Address] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no model is loaded."""
        return not self._models

    @property
    def workspace_bytes(self) -> int:
        """What the models share."""
        return self._workspace.nbytes if self._workspace else 0

    def load(self, files: Sequence[ModelFile]) -> list[Stage]:
        """The model of each file, loaded if it is not yet; each is given back by `unload`.

        Raises DriverFault with the file, OutOfMemory, EngineLost, or PlanFault if one needs more
        workspace than the lane may have; then what was loaded before is as it was, but for the
        workspace, which is not made smaller: that would load all of it once more.
        """
        self._have_workspace([file for file in files if file.digest not in self._models])
        stages: list[Stage] = []
        with ExitStack() as undo:
            for file in files:
                stages.append(Stage(file.path, self._load(file)))
                undo.callback(self._give_back, self.unload, stages[-1])
            undo.pop_all()
        return stages

    def unload(self, stage: Stage) -> None:
        """One engine needs the model of the file no more. Nothing of the lane is executing."""
        model = stage.model
        model.paths.remove(stage.path)
        if not model.paths:
            del self._models[model.file.digest]
            self._unload(model)
            self._card.weights.leave(model.file.digest)

    def unload_all(self) -> None:
        """Before `load_all`: the models go, what they lie in stays."""
        for model in self._models.values():
            self._unload(model)

    def load_all(self) -> None:
        """All models again, into the memory that they had.

        One that has no file any more of what it was is left out, and does not hold up the others.
        """
        for model in self._models.values():
            self._load_again(model)

    def free(self) -> None:
        """Give back the workspace, with no model left in it. Once."""
        if self._workspace is not None:
            self._workspace.free()

    # -- one model --

    def _load(self, file: ModelFile) -> LoadedModel:
        model = self._models.get(file.digest)
        if model is None:
            model = self._models[file.digest] = self._load_new(file)
            return model
        model.paths.append(file.path)
        try:
            if model.absent is not None:
                with self._card.noticing(file.path):
                    self._load_again(model)
        except BaseException:
            model.paths.remove(file.path)
            raise
        return model

    def _load_new(self, file: ModelFile) -> LoadedModel:
        noticing = self._card.noticing
        with ExitStack() as undo:
            with noticing(file.path):
                weights = self._card.weights.share(file)
            undo.callback(self._card.weights.leave, file.digest)
            with noticing(file.path):
                model = LoadedModel(file, self._load_into(file.path, weights), weights)
            undo.callback(self._give_back, self._unload, model)
            with noticing(file.path):
                model.describe(self._driver, self._card.memory)
            undo.pop_all()
        return model

    def _load_again(self, model: LoadedModel) -> None:
        try:
            path = model.unchanged_path()
            try:
                model.id = self._load_into(path, model.weights)
            except DriverFault as fault:
                if fault.kind is not Kind.LOST:
                    ensure_content(path, model.file.digest)  # or it was replaced in between
                raise
        except (ArtifactFault, OSError) as fault:
            why = f"{fault.filename}: {fault.strerror}" if isinstance(fault, OSError) else fault
            model.absent = f"{why}; load the model again"
            _log.error("%s: %s", self._name, model.absent)
            return
        model.absent = None

    def _load_into(self, path: Path, weights: Buffer[Address]) -> ModelId:
        # By its path: what is there may be another file by now. Its very bytes could be loaded, but
        # load_from_mem_with_mem has seven arguments on pyACL's page, and six in its source.
        assert self._workspace is not None, "a model without workspace was refused before"
        workspace = (self._workspace.memory, self._workspace.nbytes)
        return self._driver.load(str(path), workspace, (weights.memory, weights.nbytes))

    def _unload(self, model: LoadedModel) -> None:
        if self._card.lost is None and model.absent is None:
            self._driver.unload(model.id)

    def _give_back(self, unload: Callable[[Given], None], what: Given) -> None:
        with self._card.releasing():
            unload(what)

    # -- the workspace of all --

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
        weights = sum(file.weights_bytes for file in files if not self._card.weights.has(file))
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

    def _ensure_unchanged(self) -> None:
        """What is loaded again must be what it was: the shapes, and the sizes of its memory."""
        for model in self._models.values():
            if model.absent is None:
                model.unchanged_path()

    def _replace_workspace(self, nbytes: int) -> None:
        self.unload_all()
        there, self._workspace = self._workspace, None
        if there is not None:
            there.free()
        try:
            self._workspace = self._card.memory.allocate("workspace", nbytes)
        except OutOfMemory:
            if there is not None:
                self._restore(there.nbytes)
            raise
        self.load_all()

    def _restore(self, nbytes: int) -> None:
        """The workspace that there was, for the models that there were."""
        try:
            self._workspace = self._card.memory.allocate("workspace", nbytes)
        except OutOfMemory as fault:
            raise self._stranded(fault) from fault
        self.load_all()

    def _stranded(self, fault: RuntimeFault) -> RuntimeFault:
        """Models that others count on are gone: the error to raise."""
        return self._card.lose(f"{self._name}: its models cannot be loaded again: {fault}")

    def __str__(self) -> str:
        models = ", ".join(shown(model.paths[0]) for model in self._models.values())
        return f"{self.workspace_bytes:,} bytes of workspace for {models or 'none'}"
