"""The models loaded on a card's executors, with their workspace and weights.

All executors of a card share the weights of equal files. All models of an executor share one block
of workspace.
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
from ge_runtime.npu.driver.cann_values import DriverFault, FailureKind
from ge_runtime.npu.driver.device import AscendDevice
from ge_runtime.npu.driver.driver import Address, ModelId
from ge_runtime.npu.driver.om_model import LoadedModel, ModelFile, Stage

Resource = TypeVar("Resource")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Shared:
    buffer: Buffer[Address]
    users: int


class SharedWeights:
    """A card's weights, one block for each file content. Use within `AscendDevice.exclusive`."""

    def __init__(self, memory: Device[Address]) -> None:
        self._memory = memory
        self._shared: dict[str, _Shared] = {}  # by digest

    def has(self, file: ModelFile) -> bool:
        """Return whether the file's weights are on the card."""
        return file.digest in self._shared

    def acquire(self, file: ModelFile) -> Buffer[Address]:
        """Return the block for a file's weights, until `release`.

        Raises OutOfMemory or DriverFault.
        """
        shared = self._shared.get(file.digest)
        if shared is None:
            # At least 1 byte: without an address the driver would allocate its own memory.
            buffer = self._memory.allocate("weights", max(1, file.weights_bytes))
            shared = self._shared[file.digest] = _Shared(buffer, 0)
        shared.users += 1
        return shared.buffer

    def release(self, digest: str) -> None:
        """Release one use, after the model was unloaded; the last release frees the block."""
        shared = self._shared[digest]
        shared.users -= 1
        if not shared.users:
            del self._shared[digest]
            shared.buffer.free()


class ExecutorModels:
    """An executor's models and their workspace.

    Use within `AscendDevice.exclusive`, in the context of the executor.
    """

    def __init__(
        self,
        device: AscendDevice,
        memory: Device[Address],
        weights: SharedWeights,
        name: str,
        capacity_bytes: int | None,
    ) -> None:
        """Initialize an executor without models.

        Args:
            device: The card.
            memory: The card's memory, for the workspace.
            weights: The weights of all executors of the card.
            name: The executor's name in messages.
            capacity_bytes: Size of the workspace; None: as large as the largest model needs.
        """
        self.name = name
        self.capacity_bytes = capacity_bytes
        self._device = device
        self._driver = device.driver
        self._memory = memory
        self._weights = weights
        self._models: dict[tuple[str, str | None], LoadedModel] = {}  # by `ModelFile.key`
        self._workspace: Buffer[Address] | None = None

    @property
    def is_empty(self) -> bool:
        """True if no model is loaded."""
        return not self._models

    @property
    def workspace_bytes(self) -> int:
        """Size of the workspace that the models share."""
        return self._workspace.nbytes if self._workspace else 0

    def load(self, files: Sequence[ModelFile]) -> list[Stage]:
        """Load the models that are not loaded yet; `unload` releases each stage.

        After an error the models are as before. The workspace may have grown; it is not reduced
        again, because a reduction would reload all models.

        Raises:
            DriverFault: A file cannot be loaded; the fault has the path.
            OutOfMemory: The card has not enough memory.
            PlanFault: A model needs more workspace than the executor may have.
            EngineLost: The card is lost.
        """
        self._ensure_workspace([file for file in files if file.key not in self._models])
        stages: list[Stage] = []
        with ExitStack() as undo:
            for file in files:
                stages.append(Stage(file.path, self._load(file)))
                undo.callback(self._release, self.unload, stages[-1])
            undo.pop_all()
        return stages

    def unload(self, stage: Stage) -> None:
        """Release one use of a model; the last release unloads it. The executor must be idle."""
        model = stage.model
        model.paths.remove(stage.path)
        if not model.paths:
            del self._models[model.file.key]
            self._unload(model)
            self._weights.release(model.file.digest)

    def unload_all(self) -> None:
        """Unload all models, and keep their memory for `load_all`."""
        for model in self._models.values():
            self._unload(model)

    def load_all(self) -> None:
        """Load all models again, into the same memory.

        A model whose file has changed or is missing is skipped, and becomes absent.
        """
        for model in self._models.values():
            self._load_again(model)

    def reload(self, models: Sequence[LoadedModel]) -> None:
        """Load these models again, into the same memory.

        Raises DriverFault; then the model is absent until it is loaded again.
        """
        for model in models:
            self._unload(model)
            model.absent = "the model could not be loaded again"  # unless the next line succeeds
            self._load_again(model)

    def free(self) -> None:
        """Free the workspace, after all models were unloaded. Call once."""
        if self._workspace is not None:
            self._workspace.free()

    # -- one model --

    def _load(self, file: ModelFile) -> LoadedModel:
        model = self._models.get(file.key)
        if model is None:
            model = self._models[file.key] = self._load_new(file)
            return model
        model.paths.append(file.path)
        try:
            if model.absent is not None:
                with self._device.detecting_loss(file.path):
                    self._load_again(model)
        except BaseException:
            model.paths.remove(file.path)
            raise
        return model

    def _load_new(self, file: ModelFile) -> LoadedModel:
        # In this order: a loss is detected before the cleanup, which must not call a lost card.
        with ExitStack() as undo, self._device.detecting_loss(file.path):
            weights = self._weights.acquire(file)
            undo.callback(self._weights.release, file.digest)
            model = LoadedModel(file, self._load_into(file.path, weights), weights)
            undo.callback(self._release, self._unload, model)
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
                    ensure_content(path, model.file.digest)  # may have been replaced
                raise
        except (ArtifactFault, OSError) as fault:
            why = f"{fault.filename}: {fault.strerror}" if isinstance(fault, OSError) else fault
            model.absent = f"{why}; load the model again"
            _log.error("%s: %s", self.name, model.absent)
            return
        model.absent = None

    def _load_into(self, path: Path, weights: Buffer[Address]) -> ModelId:
        # Loaded by path, although the file may be replaced at any time: load_from_mem_with_mem has
        # seven arguments in pyACL's documentation and six in its source.
        assert self._workspace is not None, "a model without workspace was rejected before"
        workspace = (self._workspace.memory, self._workspace.nbytes)
        return self._driver.load(str(path), workspace, (weights.memory, weights.nbytes))

    def _unload(self, model: LoadedModel) -> None:
        if self._device.lost is None and model.absent is None:
            self._driver.unload(model.id)

    def _release(self, unload: Callable[[Resource], None], resource: Resource) -> None:
        with self._device.releasing():
            unload(resource)

    # -- the workspace of all models --

    def _ensure_workspace(self, files: Sequence[ModelFile]) -> None:
        """Make the workspace large enough for new models, if they and their weights fit.

        The workspace has the size of the executor's capacity. Without a capacity it grows with the
        models, and earlier models are loaded again. If something does not fit, nothing is changed.
        """
        if not files:
            return
        largest = max(files, key=lambda file: file.workspace_bytes)
        needed, limit = largest.workspace_bytes, self.capacity_bytes
        if limit is not None and needed > limit:
            raise PlanFault(
                f"{largest.path}: found {needed:,} bytes of workspace, expected at most {limit:,}, "
                "which the parameter 'workspace_pool_mib' allows for the models of a lane"
            )
        current = self.workspace_bytes
        wanted = max(current, limit or needed)
        # Checked first: a failure after a change would require loading all models again.
        new = {file.digest: file for file in files if not self._weights.has(file)}
        weights = sum(file.weights_bytes for file in new.values())
        free = self._memory.free_bytes
        if free is not None and wanted - current + weights > free:
            paths = ", ".join(str(file.path) for file in files)
            raise OutOfMemory(
                f"{paths}: found {wanted - current:,} more bytes of workspace and {weights:,} of "
                f"weights wanted, expected at most {free:,}, which are free on "
                f"{self._device.name}; the largest gear determines the workspace"
            )
        if current == wanted:
            return
        self._ensure_unchanged()
        try:
            self._replace_workspace(wanted)
        except DriverFault as fault:
            if self.is_empty:
                raise
            raise self._stranded(fault) from fault

    def _ensure_unchanged(self) -> None:
        """Raise ArtifactFault if a model that must be loaded again has changed."""
        for model in self._models.values():
            if model.absent is None:
                model.unchanged_path()

    def _replace_workspace(self, nbytes: int) -> None:
        # Models are unloaded first, because they use the old block. The old block is freed before
        # the new one is allocated, because both may not fit.
        self.unload_all()
        old, self._workspace = self._workspace, None
        if old is not None:
            old.free()
        try:
            self._workspace = self._memory.allocate("workspace", nbytes)
        except OutOfMemory:
            if old is not None:
                self._restore(old.nbytes)
            raise
        self.load_all()

    def _restore(self, nbytes: int) -> None:
        """Allocate a workspace of the old size again, and load the models."""
        try:
            self._workspace = self._memory.allocate("workspace", nbytes)
        except OutOfMemory as fault:
            raise self._stranded(fault) from fault
        self.load_all()

    def _stranded(self, fault: RuntimeFault) -> RuntimeFault:
        """Return the error to raise if models in use cannot be loaded again."""
        return self._device.mark_lost(f"{self.name}: its models cannot be loaded again: {fault}")

    def __str__(self) -> str:
        models = ", ".join(shown(model.paths[0]) for model in self._models.values())
        return f"{self.workspace_bytes:,} bytes of workspace for {models or 'none'}"
