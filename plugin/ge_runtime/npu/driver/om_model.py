"""Compiled models: .om files, and the models loaded of them, with a table of their gears."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ge_runtime.devices import Buffer, Device
from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.npu.driver.atc import ensure_content, sha256_of
from ge_runtime.npu.driver.description import ModelDescription
from ge_runtime.npu.driver.dims_order import dims_order
from ge_runtime.npu.driver.driver import Address, Dataset, Driver, GearSetting, ModelId
from ge_runtime.npu.driver.return_codes import DriverFault, FailureKind

Dims: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file, and what tells it from others."""

    path: Path
    digest: str
    """SHA-256 of its content: files of one digest are one model."""
    workspace_bytes: int
    weights_bytes: int

    @classmethod
    def read(cls, path: Path, driver: Driver) -> ModelFile:
        """The file at `path`. Raises OSError, or DriverFault for what is no model for this card."""
        digest = sha256_of(path)
        workspace, weights = driver.model_sizes(str(path))
        return cls(path, digest, workspace, weights)


@dataclass(frozen=True, slots=True)
class OmGear:
    """One set of shapes that the model was compiled for."""

    setting: GearSetting | None
    """None for a model of one shape."""
    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]


class LoadedModel:
    """A model that is loaded on an executor, for all engines there that execute its content."""

    def __init__(self, file: ModelFile, model: ModelId, weights: Buffer[Address]) -> None:
        self.file = file
        """The first that it was loaded of."""
        self.paths = [file.path]
        """Of each engine that has it: one file may go before another."""
        self.id = model
        """Another one each time that the executor loads it again."""
        self.absent: str | None = None
        """Why the executor could not load it again; None while it is loaded."""
        self.weights = weights
        self.description = ModelDescription((), ())
        self.gears: Mapping[tuple[Dims, ...], OmGear] = {}
        """Dims of the data inputs: the gear; by growing elements."""
        self._gear_set: tuple[ModelId, Dataset, GearSetting] | None = None
        """The last one; None where it cannot be told."""

    def set_gear(self, driver: Driver, inputs: Dataset, setting: GearSetting) -> None:
        """Have the next execution of these inputs be at this gear. Raises DriverFault."""
        # Each call copies several times, with all Python threads held up. It is left out only where
        # the last of the model was this one: a gear is both the model's and the dataset's.
        last, self._gear_set = self._gear_set, None  # a call that fails may have changed it
        if last is None or last[0] != self.id or last[1] is not inputs or last[2] != setting:
            driver.set_gear(self.id, inputs, len(inputs.buffers) - 1, setting)
        self._gear_set = (self.id, inputs, setting)

    def ensure_there(self) -> None:
        """Raises EngineFault if it is not loaded."""
        if self.absent is not None:
            raise EngineFault(self.absent)

    def unchanged_path(self) -> Path:
        """A file that has the content still. Raises ArtifactFault or OSError if there is none."""
        *others, last = self.paths
        for path in others:
            with suppress(ArtifactFault, OSError):
                ensure_content(path, self.file.digest)
                return path
        ensure_content(last, self.file.digest)
        return last

    def describe(self, driver: Driver, memory: Device[Address]) -> None:
        """Ask for everything once: nothing of it is asked while serving.

        memory: for the gear's own buffer, for as long as this takes.
        Raises DriverFault, OutOfMemory, or ArtifactFault where gears cannot be told apart.
        """
        self.description = description = driver.describe(self.id)
        shapes = description.shapes(dims_order(self.file.path, self.file.digest, description))
        family = description.family
        if family is None:
            outputs = tuple(tensor.dims for tensor in description.outputs)
            self.gears = {dims: OmGear(None, dims, outputs) for dims in shapes.values()}
            return
        buffer = memory.allocate("gear", description.inputs[-1].nbytes)
        block = (buffer.memory, buffer.nbytes)
        gears = {}
        with ExitStack() as undo:
            undo.callback(buffer.free)
            # Only the last is written to; a dataset has one for each input all the same.
            dataset = driver.create_dataset([block] * len(description.inputs))
            undo.callback(driver.destroy_dataset, dataset)
            try:
                # The dims of outputs are those of the gear that was set last on the model, whoever
                # set it: now, before anybody executes, nobody else does.
                for values, dims in shapes.items():
                    setting = GearSetting(family, values)
                    driver.set_gear(self.id, dataset, len(description.inputs) - 1, setting)
                    outputs = tuple(driver.output_dims(self.id, len(description.outputs)))
                    gears[dims] = OmGear(setting, dims, outputs)
            except DriverFault as fault:
                if fault.kind is FailureKind.LOST:  # on that card nothing is given back
                    undo.pop_all()
                raise
        self.gears = gears


class Stage(NamedTuple):
    """A file of a chain, and the model of its content, which other chains may have as well."""

    path: Path
    model: LoadedModel
