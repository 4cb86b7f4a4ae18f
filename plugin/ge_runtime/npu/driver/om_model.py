"""Compiled models: .om files, and models loaded from them, with a table of their gears."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from ge_runtime.devices import Buffer, Device
from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.npu.driver.atc import ensure_content, record_path, recorded_flag, sha256_of
from ge_runtime.npu.driver.cann_values import (
    ACL_DTYPES,
    GEAR_INPUT,
    DriverFault,
    FailureKind,
    ModelDescription,
    ModelTensor,
)
from ge_runtime.npu.driver.driver import Address, Dataset, GearSetting, ModelId
from ge_runtime.npu.driver.pyacl import PyAclDriver

Dims: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A .om file and its identity."""

    path: Path
    digest: str
    """SHA-256 of the content; files with the same digest have the same weights."""
    workspace_bytes: int
    weights_bytes: int
    input_shape: str | None
    """The recorded flag `--input_shape` (see `dims_order`); None if there is no record."""

    @classmethod
    def read(cls, path: Path, driver: PyAclDriver) -> ModelFile:
        """Read the file. Raises OSError, and DriverFault if the card cannot execute it."""
        digest = sha256_of(path)
        workspace, weights = driver.model_sizes(str(path))
        return cls(path, digest, workspace, weights, recorded_flag(path, digest, _FLAG))

    @property
    def key(self) -> tuple[str, str | None]:
        """The identity of the model: its content, and the order of inputs in its gears."""
        return self.digest, self.input_shape


@dataclass(frozen=True, slots=True)
class OmGear:
    """One set of shapes that the model was compiled for."""

    setting: GearSetting | None
    """Selects the gear in the driver; None for a model of one shape."""
    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]


class LoadedModel:
    """A model on an executor, shared by all engines of the executor whose files are equal."""

    def __init__(self, file: ModelFile, model: ModelId, weights: Buffer[Address]) -> None:
        self.file = file
        """The file from which the model was loaded first."""
        self.paths = [file.path]
        """The file of each engine that uses the model; files may be deleted independently."""
        self.id = model
        """Changes each time the executor loads the model again."""
        self.absent: str | None = None
        """Why the executor could not load the model again; None while it is loaded."""
        self.weights = weights
        self.description = ModelDescription((), ())
        self.gears: Mapping[tuple[Dims, ...], OmGear] = {}
        """Gears by the dims of their data inputs, sorted by the number of elements."""
        self._gear_set: tuple[ModelId, Dataset, GearSetting] | None = None
        """The last gear that was set; None if unknown."""

    def set_gear(self, driver: PyAclDriver, inputs: Dataset, setting: GearSetting) -> None:
        """Set the gear for the next execution with these inputs. Raises DriverFault."""
        # The call copies several times and blocks all Python threads. It is skipped if it equals
        # the model's last call. The gear is a state of both the model and the dataset.
        last, self._gear_set = self._gear_set, None  # unknown if the call fails
        if last is None or last[0] != self.id or last[1] is not inputs or last[2] != setting:
            driver.set_gear(self.id, inputs, len(inputs.buffers) - 1, setting)
        self._gear_set = (self.id, inputs, setting)

    def ensure_loaded(self) -> None:
        """Raise EngineFault if the model is not loaded."""
        if self.absent is not None:
            raise EngineFault(self.absent)

    def unchanged_path(self) -> Path:
        """Return the path of an unchanged file. Raises ArtifactFault or OSError if none exists."""
        *others, last = self.paths
        for path in others:
            with suppress(ArtifactFault, OSError):
                ensure_content(path, self.file.digest)
                return path
        ensure_content(last, self.file.digest)
        return last

    def describe(self, driver: PyAclDriver, memory: Device[Address]) -> None:
        """Query the description and gears, so that serving needs no queries.

        Args:
            driver: The driver.
            memory: The card's memory, for a temporary buffer.

        Raises:
            DriverFault: A call failed.
            OutOfMemory: The card has not enough memory.
            ArtifactFault: The order of dims in gears is unknown; see `dims_order`.
        """
        self.description = description = driver.describe(self.id)
        shapes = description.shapes(dims_order(self.file, description))
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
            # Only the last buffer is written to, but a dataset needs one for each input.
            dataset = driver.create_dataset([block] * len(description.inputs))
            undo.callback(driver.destroy_dataset, dataset)
            try:
                # The reported dims of outputs belong to the gear that was set last. No other
                # thread sets a gear now, because the model is not in use yet.
                for values, dims in shapes.items():
                    setting = GearSetting(family, values)
                    driver.set_gear(self.id, dataset, len(description.inputs) - 1, setting)
                    outputs = tuple(driver.output_dims(self.id, len(description.outputs)))
                    gears[dims] = OmGear(setting, dims, outputs)
            except DriverFault as fault:
                if fault.kind is FailureKind.LOST:  # a lost card must not be called
                    undo.pop_all()
                raise
        self.gears = gears


class Stage(NamedTuple):
    """A file of a chain, and its loaded model, which other chains may share."""

    path: Path
    model: LoadedModel


Order: TypeAlias = tuple[int, ...]
"""Indexes of data inputs."""

_FLAG: Final = "--input_shape"
_MOST_STEPS: Final = 10_000
"""Limit of the search; a model with too many similar inputs is reported as ambiguous."""


def dims_order(file: ModelFile, description: ModelDescription) -> Order:
    """Return the order in which the gears of `--dynamic_dims` list the data inputs.

    Such a gear is the concatenated dims of the inputs, in the order in which ATC's `--input_shape`
    named them. This order may differ from that of the model's inputs, and the model does not report
    it. The build record next to the file has the flag; without a record often only one order fits.

    Args:
        file: The model's file.
        description: The model's description.

    Returns:
        The order; () if the model has no such gears.

    Raises:
        ArtifactFault: The record does not fit the model; or there is no record, and either no order
            fits, or several orders fit and result in different gears.
    """
    if description.family != "dims" or description.inputs[-1].name != GEAR_INPUT:
        return ()  # the engine rejects a model whose last input is not the gear input
    inputs, gears = description.data_inputs, description.dims
    path, flag = file.path, file.input_shape
    if flag is not None:
        order = _parsed(flag, inputs)
        if order is None or not _fits(order, inputs, gears):
            raise ArtifactFault(
                f"{record_path(path)}: found {_FLAG}={flag}, expected the inputs "
                f"{_names(range(len(inputs)), inputs)} in an order that fits the gears of "
                f"{path.name}, e.g. {_text(gears[0])}: use the flag that the file was compiled with"
            )
        return order
    found: Order | None = None
    for order in _orders(inputs, gears):
        if found is None:
            found = order
        elif description.shapes(order) != description.shapes(found):
            raise ArtifactFault(
                f"{path}: found gears, e.g. {_text(gears[-1])}, that fit several orders of inputs, "
                f"{_names(found, inputs)} or {_names(order, inputs) or 'another'}, "
                f"expected {record_path(path).name} next to the file with the order: "
                "`ge-runtime build` writes it; for a file compiled elsewhere write "
                f'{{"om_sha256": "{file.digest}", "flags": ["{_FLAG}=..."]}} with the flag of its '
                "`atc`"
            )
    if found is None:
        raise ArtifactFault(
            f"{path}: found gears, e.g. {_text(gears[0])}, expected the dims of "
            f"{_names(range(len(inputs)), inputs)} in some order: `ge-runtime build` rebuilds it"
        )
    return found


def _parsed(flag: str, inputs: Sequence[ModelTensor]) -> Order | None:
    """Return the order in `name:d,d;name:d`; None if a name is not an input."""
    names = [tensor.name for tensor in inputs]
    listed = [entry.rpartition(":")[0].strip() for entry in flag.split(";") if entry]
    return tuple(map(names.index, listed)) if {*listed} <= {*names} else None


def _fits(order: Order, inputs: Sequence[ModelTensor], gears: Sequence[Order]) -> bool:
    start = 0
    for index in order:
        if not _may_begin(start, inputs[index], gears):
            return False
        start += len(inputs[index].dims)
    return start == len(gears[0]) and _has_all(order, inputs)


def _orders(inputs: Sequence[ModelTensor], gears: Sequence[Order]) -> Iterator[Order]:
    """Yield the orders that fit, the order of the inputs first; () last if the limit is reached."""
    steps = 0
    open_: list[tuple[Order, int]] = [((), 0)]
    while open_:
        order, start = open_.pop()
        steps += 1
        if steps > _MOST_STEPS:
            yield ()
            return
        if start == len(gears[0]):
            if _has_all(order, inputs):
                yield order
            continue
        # Reversed, because the last element is popped first.
        for index in reversed(range(len(inputs))):
            tensor = inputs[index]
            if tensor.dims and index not in order and _may_begin(start, tensor, gears):
                open_.append(((*order, index), start + len(tensor.dims)))


def _has_all(order: Order, inputs: Sequence[ModelTensor]) -> bool:
    """Return whether all inputs with varying sizes are in the order."""
    return all(i in order for i, tensor in enumerate(inputs) if -1 in tensor.dims)


def _may_begin(start: int, tensor: ModelTensor, gears: Sequence[Order]) -> bool:
    """Return whether the tensor's dims may begin at `start` in each gear."""
    end = start + len(tensor.dims)
    dtype = ACL_DTYPES.get(tensor.dtype)
    itemsize = dtype.numpy.itemsize if dtype else 0
    for gear in gears:
        dims = gear[start:end]
        if len(dims) != len(tensor.dims) or math.prod(dims) * itemsize > tensor.nbytes:
            return False
        if any(own not in (-1, dim) for own, dim in zip(tensor.dims, dims, strict=True)):
            return False
    return True


def _names(order: Sequence[int], inputs: Sequence[ModelTensor]) -> str:
    return ", ".join(inputs[index].name for index in order)


def _text(gear: Order) -> str:
    return ",".join(map(str, gear))
