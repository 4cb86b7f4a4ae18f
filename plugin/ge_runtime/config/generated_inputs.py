"""Graph inputs that no request brings: the runtime generates them for each batch.

- `mask.<graph input>`: axes; [batch, *axes] of the graph's own type, 1 where a row has data along
  all of them and 0 where there is padding.
- `lengths.<graph input>`: one axis; [batch] or [batch, 1], each row's true length.
- `positions.<graph input>`: one axis; [batch, axis], 0, 1, 2, ... where a row has data and 0 in
  padding.
- `offsets.<graph input>`: one axis; [batch + 1], the true lengths accumulated, from 0.
- `constant.<graph input>`: the same in every execution, without a batch dimension: one value, which
  all elements have, or all elements in row-major order, e.g. `16000` or `1, 0.5`.

Triton's own `batch_input` asks for more of them:

batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, target_name: "cu_seqlens",
                data_type: TYPE_INT32, source_input: "input_ids" } ]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.triton_config import (
    ConfigErrors,
    Parameters,
    read_dtype,
    read_entries,
    read_number,
    split_names,
)
from ge_runtime.specs import UNKNOWN, DType


class GeneratedInputs:
    """The graph inputs that are generated, each under a name of its own. For one thread."""

    def __init__(
        self, parameters: Parameters, tensors: ModelTensors, errors: ConfigErrors, *, batched: bool
    ) -> None:
        """batched: executions have a batch dimension."""
        self._batched = batched
        self._families = parameters.families
        self._tensors = tensors
        self._errors = errors
        self._labels: dict[str, str] = {}

    def masks(self) -> dict[str, tuple[str, ...]]:
        """Graph input: the axes of its mask."""
        masks = {name: split_names(text) for name, text in self._families["mask"].items()}
        for name, axes in masks.items():
            self._check(f"mask.{name}", name, axes)
        return masks

    def lengths(self) -> dict[str, str]:
        """Graph input: the axis along which it gets the lengths of rows."""
        return self._of("lengths")

    def positions(self) -> dict[str, str]:
        """Graph input: the axis along which it gets positions."""
        return self._of("positions")

    def offsets(self) -> dict[str, str]:
        """Graph input: the axis of which it gets the accumulated lengths of rows."""
        offsets = self._of("offsets")
        for name in offsets if not self._batched else ():
            expected = "at least 1: without it there is no batch"
            self._errors.add(f"parameter 'offsets.{name}'", "max_batch_size 0", expected)
        return offsets

    def constants(self) -> dict[str, tuple[str, ...]]:
        """Graph input: its elements as they are written; of what type, the graph says."""
        constants = {name: split_names(text) for name, text in self._families["constant"].items()}
        for name, texts in constants.items():
            key = f"constant.{name}"
            for text in texts:
                if read_number(text, DType.FP64) is None and read_number(text, DType.BOOL) is None:
                    expected = "one value, or all elements: numbers, true or false"
                    self._errors.add(f"parameter '{key}'", f"'{text}'", expected)
            self.add_name(f"parameter '{key}'", f"'{key}'", name)
        return constants

    def _of(self, family: str) -> dict[str, str]:
        given = dict(self._families[family])
        for name, axis in given.items():
            self._check(f"{family}.{name}", name, (axis,))
        return given

    def _check(self, key: str, name: str, axes: tuple[str, ...]) -> None:
        for axis in axes:
            self._tensors.knows_axis(f"parameter '{key}'", axis, self._errors)
        self.add_name(f"parameter '{key}'", f"'{key}'", name)

    def add_name(self, field: str, label: str, name: str) -> None:
        """Add a generated input; an error at `field` if something else has its name.

        label: what the error of a later input of the same name calls this one.
        """
        if name in self._tensors.inputs or name in self._tensors.prepared:
            self._errors.add(field, f"'{name}' among the inputs", "a graph input requests lack")
        if name in self._labels:
            self._errors.add(field, f"{self._labels[name]} as well", "one of the two")
        self._labels.setdefault(name, label)


class BatchInputKind(Enum):
    """What is generated; values are the names in config.pbtxt. An item: a request of the batch."""

    ELEMENT_COUNT = "BATCH_ELEMENT_COUNT"
    """[items]: the elements of each."""
    ACCUMULATED_ELEMENT_COUNT = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    """[items]: the elements of each and of those before it."""
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    """[items + 1]: the same after a leading 0."""
    MAX_ELEMENT_COUNT_AS_SHAPE = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    """[the elements of the largest]: the shape is the answer, the content means nothing."""
    ITEM_SHAPE = "BATCH_ITEM_SHAPE"
    """[batch, number of dims]: the sizes of each row."""
    ITEM_SHAPE_FLATTEN = "BATCH_ITEM_SHAPE_FLATTEN"
    """[batch x number of dims]: the same, one row after the other."""


@dataclass(frozen=True, slots=True)
class BatchInput:
    """One entry of `batch_input`."""

    kind: BatchInputKind
    targets: tuple[str, ...]
    """Graph inputs, all with the same content."""
    dtype: DType
    source: str
    """The input that is described."""


_LARGEST_COUNT: Final = BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE
_KINDS: Final = {kind.value: kind for kind in BatchInputKind}
_NO_COUNTS: Final = (DType.BYTES, DType.BOOL, DType.BF16)


def read_batch_inputs(
    model_config: Mapping[str, object],
    tensors: ModelTensors,
    limits: Mapping[str, int],
    generated: GeneratedInputs,
    errors: ConfigErrors,
    *,
    rows: int,
) -> tuple[BatchInput, ...]:
    """All entries; rows: the most of a batch, 0 if there is none. A `batch_output` is an error."""
    if model_config.get("batch_output"):
        errors.add("batch_output", "entries", "none: 'axes.<output>' says what sizes it has")
    entries = read_entries(model_config, "batch_input", "batch inputs", errors)
    if entries and not rows:
        errors.add("batch_input", "max_batch_size 0", "at least 1: without it there is no batch")
    batch_inputs = []
    for field, entry in entries:
        batch_input = _read_batch_input(field, entry, tensors, errors)
        for target in batch_input.targets:
            generated.add_name(f"{field}: target_name", f"'{target}' in {field}", target)
        source = tensors.sources.get(batch_input.source)
        if source is not None and limits.keys() >= {*source.axes}:
            _check_holds(f"{field}: data_type", batch_input, source.shape(limits), rows, errors)
        batch_inputs.append(batch_input)
    return tuple(batch_inputs)


def axes_told_by(batch_inputs: Iterable[BatchInput], tensors: ModelTensors) -> set[str]:
    """The axes whose sizes, of each request or row, the graph gets from these."""
    # The largest element count is one number for the whole batch.
    telling = [own for own in batch_inputs if own.kind is not _LARGEST_COUNT]
    sources = [tensors.sources[own.source] for own in telling if own.source in tensors.sources]
    return {axis for source in sources for axis in source.axes}


def counted_targets(batch_inputs: Iterable[BatchInput]) -> list[str]:
    """The graph inputs whose shape or values tell of all requests of an execution together."""
    shapes = (BatchInputKind.ITEM_SHAPE, BatchInputKind.ITEM_SHAPE_FLATTEN)
    return [name for own in batch_inputs if own.kind not in shapes for name in own.targets]


def _check_holds(
    field: str, batch_input: BatchInput, shape: tuple[int, ...], rows: int, errors: ConfigErrors
) -> None:
    """An error for a type of integers too small to describe rows of this shape."""
    shapes = (BatchInputKind.ITEM_SHAPE, BatchInputKind.ITEM_SHAPE_FLATTEN)
    # A count is of all rows of a request, or of the batch: at most of all rows there can be.
    largest = max(shape, default=0) if batch_input.kind in shapes else rows * math.prod(shape)
    if batch_input.dtype.is_integer and batch_input.dtype.largest < largest:
        expected = f"a type that holds {largest}, which it may be at the limits"
        errors.add(field, batch_input.dtype.config_name, expected)


def _read_batch_input(
    field: str, entry: Mapping[str, object], tensors: ModelTensors, errors: ConfigErrors
) -> BatchInput:
    kind = str(entry.get("kind", BatchInputKind.ELEMENT_COUNT.value))
    if kind not in _KINDS:
        errors.add_unknown(f"{field}: kind", "kind", kind, _KINDS)
    dtype = read_dtype(field, entry, errors)
    if dtype in _NO_COUNTS:
        expected = "a type that holds counts, e.g. TYPE_INT32"
        errors.add(f"{field}: data_type", dtype.config_name, expected)
    targets = _read_names(f"{field}: target_name", entry.get("target_name"), errors)
    sources = _read_names(f"{field}: source_input", entry.get("source_input"), errors)
    if len(sources) > 1:
        errors.add(f"{field}: source_input", f"{len(sources)} inputs", "one")
    for source in sources:
        spec = tensors.sources.get(source)
        if spec is None:
            errors.add_unknown(f"{field}: source_input", "input", source, tensors.sources)
        elif UNKNOWN in spec.dims:
            expected = f"an input whose sizes have names: 'axes.{source}'"
            errors.add(f"{field}: source_input", f"input '{source}' {spec}", expected)
    source = sources[0] if sources else ""
    # What is wrong has its error: something stands in its place, so that reading goes on.
    return BatchInput(_KINDS.get(kind, BatchInputKind.ELEMENT_COUNT), targets, dtype, source)


def _read_names(field: str, value: object, errors: ConfigErrors) -> tuple[str, ...]:
    names = value if isinstance(value, list) else []
    if names and all(isinstance(name, str) and name for name in names):
        return tuple(names)
    errors.add(field, repr(value), "a list of at least one name")
    return ()
