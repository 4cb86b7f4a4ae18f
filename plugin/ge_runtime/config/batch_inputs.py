"""Triton's own `batch_input`: graph inputs that tell what a batch consists of.

batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, target_name: "cu_seqlens",
                data_type: TYPE_INT32, source_input: "input_ids" } ]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ge_runtime.config.declared import read_dtype, read_entries
from ge_runtime.config.faults import Faults
from ge_runtime.config.generated import Generated
from ge_runtime.config.tensors import Tensors
from ge_runtime.specs import UNKNOWN, DType


class BatchInputKind(Enum):
    """What is told; the value is the name in config.pbtxt. An item is one request of the batch."""

    ELEMENT_COUNT = "BATCH_ELEMENT_COUNT"
    """[items]: the elements of each."""
    ACCUMULATED_ELEMENT_COUNT = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    """[items]: the elements of each and of those before it."""
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    """[items + 1]: the same after a leading 0."""
    MAX_ELEMENT_COUNT_AS_SHAPE = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    """[the elements of the largest]: told by the shape."""
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
    """The input that is told of."""


_KINDS: Final = {kind.value: kind for kind in BatchInputKind}
_NO_COUNTS: Final = (DType.BYTES, DType.BOOL, DType.BF16)


def read_batch_inputs(
    model_config: Mapping[str, object],
    tensors: Tensors,
    limits: Mapping[str, int],
    generated: Generated,
    faults: Faults,
    *,
    rows: int,
) -> tuple[BatchInput, ...]:
    """All entries; rows: the most of a batch, 0 if there is none. A `batch_output` is a fault."""
    if model_config.get("batch_output"):
        faults.add("batch_output", "entries", "none: 'axes.<output>' says what sizes it has")
    entries = read_entries(model_config, "batch_input", "batch inputs", faults)
    if entries and not rows:
        faults.add("batch_input", "max_batch_size 0", "at least 1: without it there is no batch")
    batch_inputs = []
    for place, entry in entries:
        batch_input = _read(place, entry, tensors, faults)
        for target in batch_input.targets:
            generated.take(f"{place}: target_name", f"'{target}' in {place}", target)
        source = tensors.sources.get(batch_input.source)
        if source is not None and limits.keys() >= {*source.axes}:
            _check_holds(f"{place}: data_type", batch_input, source.shape(limits), rows, faults)
        batch_inputs.append(batch_input)
    return tuple(batch_inputs)


def _check_holds(
    place: str, batch_input: BatchInput, shape: tuple[int, ...], rows: int, faults: Faults
) -> None:
    """A fault for whole numbers too small for what is told of rows of this shape."""
    shapes = (BatchInputKind.ITEM_SHAPE, BatchInputKind.ITEM_SHAPE_FLATTEN)
    largest = max(shape, default=0) if batch_input.kind in shapes else rows * math.prod(shape)
    if batch_input.dtype.is_integer and batch_input.dtype.largest < largest:
        expected = f"a type that holds {largest}, which it may be at the limits"
        faults.add(place, batch_input.dtype.config_name, expected)


def _read(place: str, entry: Mapping[str, object], tensors: Tensors, faults: Faults) -> BatchInput:
    kind = str(entry.get("kind", BatchInputKind.ELEMENT_COUNT.value))
    if kind not in _KINDS:
        faults.add_unknown(f"{place}: kind", "kind", kind, _KINDS)
    dtype = read_dtype(place, entry, faults)
    if dtype in _NO_COUNTS:
        expected = "a type that holds counts, e.g. TYPE_INT32"
        faults.add(f"{place}: data_type", dtype.config_name, expected)
    targets = _read_names(f"{place}: target_name", entry.get("target_name"), faults)
    sources = _read_names(f"{place}: source_input", entry.get("source_input"), faults)
    if len(sources) > 1:
        faults.add(f"{place}: source_input", f"{len(sources)} inputs", "one")
    for source in sources:
        spec = tensors.sources.get(source)
        if spec is None:
            faults.add_unknown(f"{place}: source_input", "input", source, tensors.sources)
        elif UNKNOWN in spec.dims:
            expected = f"an input whose sizes have names: 'axes.{source}'"
            faults.add(f"{place}: source_input", f"input '{source}' {spec}", expected)
    source = sources[0] if sources else ""
    return BatchInput(_KINDS.get(kind, BatchInputKind.ELEMENT_COUNT), targets, dtype, source)


def _read_names(place: str, value: object, faults: Faults) -> tuple[str, ...]:
    names = value if isinstance(value, list) else []
    if names and all(isinstance(name, str) and name for name in names):
        return tuple(names)
    faults.add(place, repr(value), "a list of at least one name")
    return ()
