"""Graph inputs that the runtime generates for each batch, as requests do not have them.

Beside the parameters, Triton's own `batch_input` declares such inputs:

batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, target_name: "cu_seqlens",
                data_type: TYPE_INT32, source_input: "input_ids" } ]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ge_runtime.config import parameter_table as table
from ge_runtime.config.model_tensors import ModelTensors, read_dim, read_dtype, read_entries
from ge_runtime.config.parameters import ConfigErrors, Family, Parameters, read_number
from ge_runtime.specs import PAST, UNKNOWN, DType, Relation


class GeneratedInputs:
    """The generated graph inputs; each must have a name of its own. For one thread."""

    def __init__(self, parameters: Parameters, tensors: ModelTensors, *, batched: bool) -> None:
        """Read the inputs; batched: whether executions have a batch dimension."""
        self._batched = batched
        self._parameters = parameters
        self._tensors = tensors
        self._errors = parameters.errors
        self._labels: dict[str, str] = {}
        self.masks = self._read_masks()
        """Graph inputs with the axes of their masks, or one sum of PAST and other axes."""
        self.lengths = self._read(table.LENGTHS)
        """Graph inputs with the axis whose row lengths they get."""
        self.positions = self._read(table.POSITIONS)
        """Graph inputs with the axis whose positions they get."""
        self.offsets = self._read_offsets()
        """Graph inputs with the axis whose accumulated row lengths they get."""
        self.constants = self._read_constants()
        """Graph inputs with their elements as text; the graph has their type."""

    @property
    def marked_axes(self) -> set[str]:
        """The axes along which these inputs give the graph the ends of data."""
        # A sum with PAST marks where the past begins: nothing is padded behind it.
        masked = (
            PAST if isinstance(dim, Relation) else dim for own in self.masks.values() for dim in own
        )
        return {*masked, *self.lengths.values(), *self.offsets.values()}

    def _read_masks(self) -> dict[str, tuple[str | Relation, ...]]:
        masks: dict[str, tuple[str | Relation, ...]] = {}
        for field, name, texts in self._parameters.entries(table.MASK):
            dims: tuple[str | Relation, ...] = texts
            if self._tensors.grows and len(texts) == 1 and "+" in texts[0]:
                dims = self._sum_with_past(field, texts[0])
            axes = [each for dim in dims for each in ((dim,) if isinstance(dim, str) else dim.axes)]
            self._check(field, f"mask.{name}", name, tuple(axes))
            masks[name] = dims
        return masks

    def _sum_with_past(self, field: str, text: str) -> tuple[str | Relation, ...]:
        """Return the dim of a mask over the past and the request; add an error if invalid."""
        try:
            dim = read_dim(text)
        except ValueError:
            dim = text
        if isinstance(dim, Relation) and dim.text.startswith(f"{PAST} + "):
            return (dim,)
        self._errors.add(field, f"'{text}'", f"axes, or '{PAST} + ' and the growth of the states")
        return ()

    def _read_offsets(self) -> dict[str, str]:
        offsets = self._read(table.OFFSETS)
        for name in offsets if not self._batched else ():
            expected = "at least 1: without it there is no batch"
            self._errors.add(f"parameter 'offsets.{name}'", "max_batch_size 0", expected)
        return offsets

    def _read_constants(self) -> dict[str, tuple[str, ...]]:
        constants = {}
        for field, name, texts in self._parameters.entries(table.CONSTANT):
            for text in texts:
                if read_number(text, DType.FP64) is None and read_number(text, DType.BOOL) is None:
                    expected = "one value, or all elements: numbers, true or false"
                    self._errors.add(field, f"'{text}'", expected)
            self.add_name(field, f"'constant.{name}'", name)
            constants[name] = texts
        return constants

    def _read(self, family: Family[str]) -> dict[str, str]:
        given = {}
        for field, name, axis in self._parameters.entries(family):
            self._check(field, f"{family.name}.{name}", name, (axis,))
            given[name] = axis
        return given

    def _check(self, field: str, key: str, name: str, axes: tuple[str, ...]) -> None:
        for axis in axes:
            self._tensors.knows_axis(field, axis, self._errors)
        self.add_name(field, f"'{key}'", name)

    def add_name(self, field: str, label: str, name: str) -> None:
        """Add a generated input, and an error at `field` if its name is already used.

        label: the name of this input in the error of a later input of the same name.
        """
        if name in self._tensors.inputs or name in self._tensors.prepared:
            self._errors.add(field, f"'{name}' among the inputs", "a name that no input has")
        if name in self._labels:
            self._errors.add(field, f"{self._labels[name]} as well", "one of the two")
        self._labels.setdefault(name, label)


class BatchInputKind(Enum):
    """Kinds of `batch_input`, named as in config.pbtxt. An item is a request of the batch."""

    ELEMENT_COUNT = "BATCH_ELEMENT_COUNT"
    """[items]: the number of elements of each item."""
    ACCUMULATED_ELEMENT_COUNT = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    """[items]: the number of elements of each item and all earlier items."""
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    """[items + 1]: the accumulated numbers after a leading 0."""
    MAX_ELEMENT_COUNT_AS_SHAPE = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    """[elements of the largest item]: only the shape matters, the content is arbitrary."""
    ITEM_SHAPE = "BATCH_ITEM_SHAPE"
    """[batch, number of dims]: the sizes of each row."""
    ITEM_SHAPE_FLATTEN = "BATCH_ITEM_SHAPE_FLATTEN"
    """[batch x number of dims]: the sizes of each row, one row after the other."""


@dataclass(frozen=True, slots=True)
class BatchInput:
    """One entry of `batch_input`."""

    kind: BatchInputKind
    targets: tuple[str, ...]
    """Graph inputs; all get the same content."""
    dtype: DType
    source: str
    """The input whose sizes are described."""


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
    """Read all entries. A `batch_output` is an error.

    rows: largest number of rows of a batch; 0 without a batch dimension.
    """
    if model_config.get("batch_output"):
        errors.add("batch_output", "entries", "none: 'axes.<output>' gives the sizes")
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


def marked_axes(batch_inputs: Iterable[BatchInput], tensors: ModelTensors) -> set[str]:
    """Return the axes along which these inputs give the graph the sizes of each request or row."""
    # The largest element count is one number for the whole batch.
    each = [own for own in batch_inputs if own.kind is not _LARGEST_COUNT]
    sources = [tensors.sources[own.source] for own in each if own.source in tensors.sources]
    return {axis for source in sources for axis in source.axes}


def counted_targets(batch_inputs: Iterable[BatchInput]) -> list[str]:
    """Return the graph inputs whose shape or values depend on all requests of an execution."""
    shapes = (BatchInputKind.ITEM_SHAPE, BatchInputKind.ITEM_SHAPE_FLATTEN)
    return [name for own in batch_inputs if own.kind not in shapes for name in own.targets]


def _check_holds(
    field: str, batch_input: BatchInput, shape: tuple[int, ...], rows: int, errors: ConfigErrors
) -> None:
    """Add an error if the integer type is too small to describe rows of this shape."""
    shapes = (BatchInputKind.ITEM_SHAPE, BatchInputKind.ITEM_SHAPE_FLATTEN)
    # A count is over all rows of a request or of the batch, so over at most `rows` rows.
    largest = max(shape, default=0) if batch_input.kind in shapes else rows * math.prod(shape)
    if batch_input.dtype.is_integer and batch_input.dtype.largest < largest:
        expected = f"a type that holds {largest}, the largest value at the limits"
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
    # After an error a valid value is used, so that reading goes on.
    return BatchInput(_KINDS.get(kind, BatchInputKind.ELEMENT_COUNT), targets, dtype, source)


def _read_names(field: str, value: object, errors: ConfigErrors) -> tuple[str, ...]:
    names = value if isinstance(value, list) else []
    if names and all(isinstance(name, str) and name for name in names):
        return tuple(names)
    errors.add(field, repr(value), "a list of at least one name")
    return ()
