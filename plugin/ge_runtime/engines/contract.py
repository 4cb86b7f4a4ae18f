"""The contract between config.pbtxt and a graph: what feeds each input, and the wanted outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ge_runtime.batching.feeds import (
    AccumulatedElementCount,
    AccumulatedElementCountWithZero,
    Constant,
    ElementCount,
    Feed,
    ItemShape,
    ItemShapeFlattened,
    Joined,
    Lengths,
    Mask,
    MaxElementCountAsShape,
    Offsets,
    Positions,
)
from ge_runtime.config import BatchInputKind, ConfigErrors, PaddingRule, RuntimeConfig, read_number
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.relations import Relation
from ge_runtime.specs import ROWS, UNKNOWN, Dim, DType, TensorSpec

_BATCH_FEEDS: Final[Mapping[BatchInputKind, Callable[[TensorSpec, TensorSpec], Feed]]] = {
    BatchInputKind.ELEMENT_COUNT: ElementCount,
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT: AccumulatedElementCount,
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: AccumulatedElementCountWithZero,
    BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE: MaxElementCountAsShape,
    BatchInputKind.ITEM_SHAPE: ItemShape,
    BatchInputKind.ITEM_SHAPE_FLATTEN: ItemShapeFlattened,
}


@dataclass(frozen=True, slots=True)
class Contract:
    """One feed per graph input, and the outputs that are asked for."""

    feeds: tuple[Feed, ...]
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def between(cls, config: RuntimeConfig, signature: Signature) -> Contract:
        """The contract between `config` and the graph of `signature`.

        Every input, prepared tensor and generated input of the configuration must be the graph's
        and the other way round, save inputs that are used otherwise: for their lengths, or as an
        output. Every output must be the graph's; results that config.pbtxt does not declare are
        not asked for. Types, ranks and sizes must be equal. Raises ConfigFault with all that is
        not so.
        """
        faults = ConfigErrors(config.model)
        for section, specs in {"input": config.sources, "output": config.outputs}.items():
            if not specs:
                faults.add(section, "nothing", "at least one tensor of the graph")
        inputs = _Ports("graph input", signature.inputs, config, faults)
        feeds = (
            *_joined(config, inputs, faults),
            *_generated(config, inputs),
            *_batch_inputs(config, inputs),
            *_constants(config, inputs, faults),
        )
        inputs.refuse_unmatched()
        _refuse_untold(config, {feed.spec.name for feed in feeds}, faults)
        outputs = _Ports("graph output", signature.outputs, config, faults)
        for spec in config.outputs:
            outputs.match(f"output '{spec.name}'", spec)
        faults.raise_any()
        return cls(feeds, config.outputs)


def _refuse_untold(config: RuntimeConfig, fed: Collection[str], faults: ConfigErrors) -> None:
    """A fault for each axis whose rows end where no graph input says so."""
    for axis, name in config.axis_lengths.items():
        masked = config.padding[axis] is PaddingRule.MASKED
        if masked and axis not in config.told_axes and name not in fed:
            expected = (
                f"what tells it where rows end: 'mask.<graph input>', 'lengths.<graph input>' or "
                f"'offsets.<graph input>' of '{axis}'; or padding.{axis}: neutral, if it need not "
                "know"
            )
            faults.add(f"parameter 'axis_length.{axis}'", "nothing of it in the graph", expected)


def _joined(config: RuntimeConfig, inputs: _Ports, faults: ConfigErrors) -> Iterator[Feed]:
    """The feeds of what requests bring, or the model's code prepares, and the graph takes."""
    lengths = {*config.axis_lengths.values()}
    # Prepared tensors have no passthrough: the request's inputs have, which the graph never sees.
    elsewhere = lengths if config.prepared else lengths.union(config.passthrough.values())
    for spec in config.sources:
        if spec.name in elsewhere and spec.name not in inputs:
            continue
        if spec.dtype is DType.BYTES:
            expected = "a graph input of another name: BYTES are not laid into batches"
            faults.add(f"input '{spec.name}'", "a graph input of its name", expected)
            inputs.skip(spec.name)
            continue
        if UNKNOWN in spec.dims:
            expected = "a name for each -1, since the graph has an input of that name"
            faults.add(f"parameter 'axes.{spec.name}'", "nothing", expected)
        inputs.match(f"input '{spec.name}'", spec)
        # Rows of padding have length 1, so that no graph divides by 0.
        pad = config.pads.get(spec.name, 1 if spec.name in lengths else 0)
        yield Joined(spec, spec.dtype.scalar(pad))


def _generated(config: RuntimeConfig, inputs: _Ports) -> Iterator[Feed]:
    """The feeds of what config.pbtxt asks to be generated, of the graph's own types."""
    for name, axes in config.masks.items():
        spec = TensorSpec(name, inputs.mask_dtype(name), axes)
        inputs.match(f"parameter 'mask.{name}'", spec)
        yield Mask(spec)
    for name, axis in config.lengths.items():
        dtype = inputs.integer_dtype(name, config.limits[axis])
        spec = TensorSpec(name, dtype, inputs.lengths_dims(name))
        inputs.match(f"parameter 'lengths.{name}'", spec)
        yield Lengths(spec, axis)
    for name, axis in config.positions.items():
        spec = TensorSpec(name, inputs.integer_dtype(name, config.limits[axis]), (axis,))
        inputs.match(f"parameter 'positions.{name}'", spec)
        yield Positions(spec)
    for name, axis in config.offsets.items():
        # The last offset is the sum of all rows' lengths.
        spec = TensorSpec(name, inputs.integer_dtype(name, config.rows * config.limits[axis]), ())
        inputs.match(f"parameter 'offsets.{name}'", spec, (Relation.parse(f"{ROWS} + 1"),))
        yield Offsets(spec, axis)


def _batch_inputs(config: RuntimeConfig, inputs: _Ports) -> Iterator[Feed]:
    """The feeds that Triton's own `batch_input` asks for."""
    sources = {spec.name: spec for spec in config.sources}
    for index, batch_input in enumerate(config.batch_inputs):
        source = sources[batch_input.source]
        for name in batch_input.targets:
            spec = TensorSpec(name, batch_input.dtype, ())
            dims = _batch_dims(batch_input.kind, source, config.rows)
            inputs.match(f"batch_input[{index}]", spec, dims)
            yield _BATCH_FEEDS[batch_input.kind](spec, source)


def _constants(config: RuntimeConfig, inputs: _Ports, faults: ConfigErrors) -> Iterator[Feed]:
    """The feeds of what config.pbtxt says is the same in every execution, of the graph's types."""
    for name, texts in config.constants.items():
        field = f"parameter 'constant.{name}'"
        tensor = inputs.get(name)
        dtype = DType.FP32 if tensor is None else tensor.dtype
        values = [read_number(text, dtype) for text in texts]
        wrong = [text for text, value in zip(texts, values, strict=True) if value is None]
        if wrong:
            faults.add(field, f"'{wrong[0]}'", f"a value of type {dtype.value}")
            inputs.skip(name)
            continue
        shape = _constant_shape(None if tensor is None else tensor.dims, len(texts))
        spec = TensorSpec(name, dtype, shape)
        inputs.match(field, spec, shape)
        if len(texts) not in (1, math.prod(shape)):
            expected = f"1, or {math.prod(shape)} for shape {list(shape)}"
            faults.add(field, f"{len(texts)} values", expected)
            continue
        # BF16 is made of its bits: one element after the other.
        elements = np.array([dtype.scalar(value) for value in values if value is not None])
        value = np.broadcast_to(elements, math.prod(shape)).reshape(shape)
        yield Constant(spec, value if config.batched else value[None])


def _constant_shape(dims: tuple[int | None, ...] | None, count: int) -> tuple[int, ...]:
    """The shape of a constant of so many values for a graph's dims; None: the rank is not known.

    A single size that varies follows from the values; of unknown rank are scalars, for which some
    engines tell none.
    """
    if dims is None:
        return (count,) if count > 1 else ()
    known = math.prod(dim for dim in dims if dim is not None)
    left = count // known if dims.count(None) == 1 else 1
    return tuple(max(1, left) if dim is None else dim for dim in dims)


def _batch_dims(kind: BatchInputKind, source: TensorSpec, rows: int) -> tuple[Dim, ...]:
    """The dims of a graph input of this kind; UNKNOWN where requests of several rows decide."""
    if kind is BatchInputKind.ITEM_SHAPE:
        return (ROWS, len(source.dims))
    if kind is BatchInputKind.ITEM_SHAPE_FLATTEN:
        return (Relation.parse(f"{ROWS} * {len(source.dims)}"),)
    # Counts are one for each request, as in Triton, whose rows may be several.
    if rows > 1 or kind is BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE:
        return (UNKNOWN,)
    zero = kind is BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
    return (2 if zero else 1,)


class _Ports:
    """The graph's inputs, or its outputs, held one by one against what is expected of them."""

    def __init__(
        self, kind: str, tensors: Sequence[GraphTensor], config: RuntimeConfig, faults: ConfigErrors
    ) -> None:
        self._kind = kind
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._unmatched = dict(self._tensors)
        self._batch: tuple[Dim, ...] = (ROWS,) if config.batched else ()
        self._packed = config.packing
        self._only = _only_sizes(config)
        self._faults = faults

    def get(self, name: str) -> GraphTensor | None:
        """The tensor of this name, None if there is none."""
        return self._tensors.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def match(self, place: str, spec: TensorSpec, dims: tuple[Dim, ...] | None = None) -> None:
        """A fault unless the graph has a tensor of this name, type, rank and size.

        dims: with the batch dimension; the default is the spec's behind it, or without it where
        the spec is packed.
        """
        if dims is None:
            packed = self._packed is not None and spec.dims[:1] == (self._packed,)
            dims = spec.dims if packed else (*self._batch, *spec.dims)
        # Taken away: of what is left in the end, nothing feeds it.
        tensor = self._unmatched.pop(spec.name, None)
        if tensor is None:
            self._faults.add_unknown(place, self._kind, spec.name, self._tensors)
        elif tensor.dtype is not spec.dtype or not self._fit(tensor.dims, dims):
            expected = TensorSpec(spec.name, spec.dtype, dims)
            hint = self._batch_hint(tensor.dims, dims) if tensor.dtype is spec.dtype else ""
            self._faults.add(place, f"{tensor} in the graph", f"{expected}{hint}")

    def skip(self, name: str) -> None:
        """Expect nothing of this tensor."""
        self._unmatched.pop(name, None)

    def refuse_unmatched(self) -> None:
        """A fault for each tensor that was never matched."""
        families = ("mask", "lengths", "positions", "offsets", "constant", "prepared")
        for name, tensor in self._unmatched.items():
            keys = ", ".join(f"'{family}.{name}'" for family in families)
            cure = f"an input in config.pbtxt, one of the parameters {keys}, or a batch_input"
            self._faults.add(f"{self._kind} '{name}' {tensor}", "nothing that feeds it", cure)

    def mask_dtype(self, name: str) -> DType:
        """The graph's own type, or what to expect instead if it holds no mask."""
        dtype = self._tensors[name].dtype if name in self else DType.FP32
        return DType.FP32 if dtype in (DType.BYTES, DType.BF16) else dtype

    def integer_dtype(self, name: str, largest: int) -> DType:
        """The graph's own type, or what to expect instead if it cannot hold `largest`."""
        dtype = self._tensors[name].dtype if name in self else DType.INT64
        return dtype if dtype.is_integer and dtype.largest >= largest else DType.INT64

    def lengths_dims(self, name: str) -> tuple[int, ...]:
        """One length per row, in a dimension of its own if the graph has one for it."""
        dims = self._tensors[name].dims if name in self else None
        return (1,) if len(dims or ()) > len(self._batch) else ()

    def _batch_hint(self, found: tuple[int | None, ...] | None, expected: Sequence[Dim]) -> str:
        """What to do where only the batch dimension is too many, in words."""
        if self._batch or found is None or found[:1] != (None,):
            return ""
        fits = self._fit(found[1:], expected)
        return "; or max_batch_size above 0, if the first * is the batch" if fits else ""

    def _fit(self, found: tuple[int | None, ...] | None, expected: Sequence[Dim]) -> bool:
        """Whether a graph's dims take all sizes that the expected ones may have, and no others."""
        return found is None or (
            len(found) == len(expected)
            and all(
                size is None or size == self._only_size(dim)
                for size, dim in zip(found, expected, strict=True)
            )
        )

    def _only_size(self, dim: Dim) -> int | None:
        """The one size that a dimension can have; None if there are more."""
        if isinstance(dim, Relation):
            known = self._only.keys() >= {*dim.axes}
            return dim.size(self._only) if known else None
        return self._only.get(dim) if isinstance(dim, str) else None if dim == UNKNOWN else dim


def _only_sizes(config: RuntimeConfig) -> dict[str, int]:
    """The axes that have one size only in all batches, ROWS among them, and that size."""
    own = config.axis_sizes
    only = {axis: limit for axis, limit in own.limits.items() if own.executed(axis, 1) == limit}
    if config.oversize == "error":  # with "fallback" executions have other sizes than the gears'
        for axes, table in config.gears.items():
            columns = zip(*table, strict=True) if isinstance(table, tuple) else ()
            sizes = dict(zip(axes, map(set, columns), strict=False))
            only.update((axis, own.pop()) for axis, own in sizes.items() if len(own) == 1)
    if config.rows == 1:
        only.setdefault(ROWS, 1)
    elif config.packing in only:  # [total], and so as large as there are rows
        del only[config.packing]
    return only
