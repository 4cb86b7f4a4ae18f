"""The models loaded on a card's executors, their workspace, and the weights that they share.

Weights are once on a card for each content of a file, whichever executors execute it. Workspace is
one block for all models of an executor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ge_runtime.devices import Buffer, Device
from ge_runtime.errors import ArtifactFault, OutOfMemory, PlanFault, RuntimeFault, shown
from ge_runtime.npu.driver.atc import ensure_content
from ge_runtime.npu.driver.device import AscendDevice
from ge_runtime.npu.driver.driver import Address, ModelId
from ge_runtime.npu.driver.om_model import LoadedModel, ModelFile, Stage
from ge_runtime.npu.driver.return_codes import DriverFault, FailureKind

Given = TypeVar("Given")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Shared:
    buffer: Buffer[Address]
    users: int


class SharedWeights:
    """A card's weights, once for each content of a file. Used while nothing executes there."""

    def __init__(self, memory: Device[Address]) -> None:
        """memory: of the card."""
        self._memory = memory
        self._shared: dict[str, _Shared] = {}  # by digest

    def has(self, file: ModelFile) -> bool:
        """Whether some executor has the file's weights already."""
        return file.digest in self._shared

    def acquire(self, file: ModelFile) -> Buffer[Address]:
        """The block for this file's weights, until `release`. Raises OutOfMemory or DriverFault."""
        shared = self._shared.get(file.digest)
        if shared is None:
            # A block of 0 bytes has no address, and without one the driver allocates its own.
            buffer = self._memory.allocate("weights", max(1, file.weights_bytes))
            shared = self._shared[file.digest] = _Shared(buffer, 0)
        shared.users += 1
        return shared.buffer

    def release(self, digest: str) -> None:
        """An executor has unloaded the model; the last one frees them."""
        shared = self._shared[digest]
        shared.users -= 1
        if not shared.users:
            del self._shared[digest]
            shared.buffer.free()


class ExecutorModels:
    """An executor's models and their workspace.

    Used in `AscendDevice.exclusive`, in the context of the executor.
    """

    def __init__(
        self,
        device: AscendDevice,
        memory: Device[Address],
        weights: SharedWeights,
        name: str,
        capacity_bytes: int | None,
    ) -> None:
        """memory: of the card, for the workspace. weights: of all executors of the card.

        name: of the executor, for people. capacity_bytes: of the workspace; None: as large as the
        largest model needs.
        """
        self.name = name
        self.capacity_bytes = capacity_bytes
        self._device = device
        self._driver = device.driver
        self._memory = memory
        self._weights = weights
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
        workspace than the executor may have; then what was loaded before is as it was, but for the
        workspace, which is not made smaller: that would load all of it once more.
        """
        self._ensure_workspace([file for file in files if file.digest not in self._models])
        stages: list[Stage] = []
        with ExitStack() as undo:
            for file in files:
                stages.append(Stage(file.path, self._load(file)))
                undo.callback(self._give_back, self.unload, stages[-1])
            undo.pop_all()
        return stages

    def unload(self, stage: Stage) -> None:
        """One engine needs the model of the file no more. Nothing of the executor is executing."""
        model = stage.model
        model.paths.remove(stage.path)
        if not model.paths:
            del self._models[model.file.digest]
            self._unload(model)
            self._weights.release(model.file.digest)

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

    def reload(self, models: Sequence[LoadedModel]) -> None:
        """These models again, into the memory that they had.

        Raises DriverFault, with the model absent until this is called again.
        """
        for model in models:
            self._unload(model)
            model.absent = "it could not be loaded again"  # unless the next line does
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
                with self._device.noticing_loss(file.path):
                    self._load_again(model)
        except BaseException:
            model.paths.remove(file.path)
            raise
        return model

    def _load_new(self, file: ModelFile) -> LoadedModel:
        # A loss is noticed before anything is undone: then no call is made any more.
        with ExitStack() as undo, self._device.noticing_loss(file.path):
            weights = self._weights.acquire(file)
            undo.callback(self._weights.release, file.digest)
            model = LoadedModel(file, self._load_into(file.path, weights), weights)
            undo.callback(self._give_back, self._unload, model)
            model.describe(self._driver, self._memory)
            undo.pop_all()
        return model

    def _load_again(self, model: LoadedModel) -> None:
        try:
            path = model.unchanged_path()
            try:
                model.id = self._load_into(path, model.weights)
            except DriverFault as fault:
                if fault.kind is not FailureKind.LOST:
                    ensure_content(path, model.file.digest)  # or it was replaced in between
                raise
        except (ArtifactFault, OSError) as fault:
            why = f"{fault.filename}: {fault.strerror}" if isinstance(fault, OSError) else fault
            model.absent = f"{why}; load the model again"
            _log.error("%s: %s", self.name, model.absent)
            return
        model.absent = None

    def _load_into(self, path: Path, weights: Buffer[Address]) -> ModelId:
        # By its path: what is there may be another file by now. Its very bytes could be loaded, but
        # load_from_mem_with_mem has seven arguments on pyACL's page, and six in its source.
        assert self._workspace is not None, "a model without workspace was refused before"
        workspace = (self._workspace.memory, self._workspace.nbytes)
        return self._driver.load(str(path), workspace, (weights.memory, weights.nbytes))

    def _unload(self, model: LoadedModel) -> None:
        if self._device.lost is None and model.absent is None:
            self._driver.unload(model.id)

    def _give_back(self, unload: Callable[[Given], None], what: Given) -> None:
        with self._device.releasing():
            unload(what)

    # -- the workspace of all --

    def _ensure_workspace(self, files: Sequence[ModelFile]) -> None:
        """Have a block that is large enough for new models too, and room for their weights.

        It is as large as the executor may have. Where nobody said that, it grows with the models,
        and those that were there before are loaded again. Nothing is touched before all will fit.
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
        # Counted before anything is touched: to fail half-way would load all models once more.
        weights = sum(file.weights_bytes for file in files if not self._weights.has(file))
        free = self._memory.free_bytes
        if free is not None and wanted - there + weights > free:
            paths = ", ".join(str(file.path) for file in files)
            raise OutOfMemory(
                f"{paths}: found {wanted - there:,} more bytes of workspace and {weights:,} of "
                f"weights wanted, expected at most {free:,}, what is free on {self._device.name}; "
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
        # Unloaded first: models hold the old block's address, and unload does not free it. Freed
        # before the new one is allocated: both at a time may not fit.
        self.unload_all()
        there, self._workspace = self._workspace, None
        if there is not None:
            there.free()
        try:
            self._workspace = self._memory.allocate("workspace", nbytes)
        except OutOfMemory:
            if there is not None:
                self._restore(there.nbytes)
            raise
        self.load_all()

    def _restore(self, nbytes: int) -> None:
        """The workspace that there was, for the models that there were."""
        try:
            self._workspace = self._memory.allocate("workspace", nbytes)
        except OutOfMemory as fault:
            raise self._stranded(fault) from fault
        self.load_all()

    def _stranded(self, fault: RuntimeFault) -> RuntimeFault:
        """Models that others count on are gone: the error to raise."""
        return self._device.lose(f"{self.name}: its models cannot be loaded again: {fault}")

    def __str__(self) -> str:
        models = ", ".join(shown(model.paths[0]) for model in self._models.values())
        return f"{self.workspace_bytes:,} bytes of workspace for {models or 'none'}"
