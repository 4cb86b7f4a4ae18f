"""The contract between config.pbtxt and a graph: a feed for each input, and the outputs."""

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
    Past,
    PastMask,
    Positions,
    PositionsAfterPast,
    RowsLater,
    Shared,
    State,
    graph_shape,
)
from ge_runtime.batching.images import Images
from ge_runtime.batching.ragged import Geometry
from ge_runtime.config import (
    BatchAxes,
    BatchInputKind,
    ConfigErrors,
    PaddingRule,
    RuntimeConfig,
    read_number,
)
from ge_runtime.engines.base import Signature
from ge_runtime.engines.growing_states import GrowingState
from ge_runtime.engines.ports import GraphPorts
from ge_runtime.specs import PAST, ROWS, UNKNOWN, Dim, DType, Relation, TensorSpec

_BATCH_FEEDS: Final[Mapping[BatchInputKind, Callable[[TensorSpec, TensorSpec], Feed]]] = {
    BatchInputKind.ELEMENT_COUNT: ElementCount,
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT: AccumulatedElementCount,
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: AccumulatedElementCountWithZero,
    BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE: MaxElementCountAsShape,
    BatchInputKind.ITEM_SHAPE: ItemShape,
    BatchInputKind.ITEM_SHAPE_FLATTEN: ItemShapeFlattened,
}


@dataclass(frozen=True, slots=True)
class StateResult:
    """A result of the graph that becomes an input of the sequence's next execution."""

    spec: TensorSpec
    """The output, with the dims of the input."""
    source: str
    """The name of the input."""


@dataclass(frozen=True, slots=True)
class Contract:
    """One feed for each graph input, and the outputs that are requested."""

    feeds: tuple[Feed, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[StateResult, ...] = ()
    """The results that are kept as the state of sequences."""
    growing: tuple[GrowingState, ...] = ()
    """The states of sequences that grow. Their results are not among `results`."""
    batch_axes: BatchAxes = BatchAxes()  # noqa: RUF009 - it is frozen

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """All results that are requested: the outputs, and states that are not outputs."""
        answered = {spec.name for spec in self.outputs}
        states = (state.spec for state in self.states if state.spec.name not in answered)
        return (*self.outputs, *states)

    def copies(self, spec: TensorSpec) -> bool:
        """Return whether responses are copied from this result, whose rows are not contiguous."""
        return bool(spec.axes) or spec.name in self.batch_axes.given

    def result_shape(self, geometry: Geometry, spec: TensorSpec) -> tuple[int, ...]:
        """Return a result's shape in a batch; without a batch dimension it begins with 1."""
        shape = geometry.shape(spec)
        at = self.batch_axes.of(spec.name)
        return graph_shape(shape, at) if self.batch_axes.given else shape

    @classmethod
    def between(cls, config: RuntimeConfig, signature: Signature) -> Contract:
        """Match a configuration with a graph.

        Each input, prepared tensor and generated input of the configuration must be an input of
        the graph, and each input of the graph must be one of them. Inputs that are used only for
        their lengths or passed through to an output are exempt. Each output of the configuration
        must be an output of the graph; other outputs are not requested. Types, ranks and sizes
        must be equal.

        Raises:
            ConfigFault: Lists all differences.
        """
        faults = ConfigErrors(config.model)
        for section, specs in {"input": config.sources, "output": config.outputs}.items():
            if not specs:
                faults.add(section, "nothing", "at least one tensor of the graph")
        inputs = GraphPorts("graph input", signature.inputs, config, faults)
        feeds = (
            *_joined_feeds(config, inputs, faults),
            *_generated_feeds(config, inputs),
            *_batch_input_feeds(config, inputs),
            *_constant_feeds(config, inputs, faults),
            *_state_feeds(config, inputs, faults),
        )
        inputs.refuse_unmatched()
        _check_row_ends(config, {feed.spec.name for feed in feeds}, faults)
        outputs = GraphPorts("graph output", signature.outputs, config, faults)
        for spec in config.outputs:
            outputs.match(f"output '{spec.name}'", spec)
        states = tuple(_state_results(config, feeds, outputs, faults))
        growing = tuple(_growing_states(config, feeds, outputs, faults))
        _check_batch_axes(config, signature, feeds, faults)
        faults.raise_any()
        axes = config.batch_axes
        graph_feeds = tuple(_feed_in_graph(feed, axes) for feed in feeds)
        return cls(graph_feeds, config.outputs, states, growing, axes)


def _check_row_ends(config: RuntimeConfig, fed: Collection[str], faults: ConfigErrors) -> None:
    """Add a fault for each masked axis whose row lengths no graph input receives."""
    for axis, name in config.axis_lengths.items():
        masked = config.padding[axis] is PaddingRule.MASKED
        if masked and axis not in config.marked_axes and name not in fed:
            expected = (
                f"an input with the ends of rows: 'mask.<graph input>', 'lengths.<graph input>' or "
                f"'offsets.<graph input>' of '{axis}'; or padding.{axis}: neutral, if the graph "
                "does not need them"
            )
            faults.add(f"parameter 'axis_length.{axis}'", "no graph input for it", expected)


def _joined_feeds(
    config: RuntimeConfig, inputs: GraphPorts, faults: ConfigErrors
) -> Iterator[Feed]:
    lengths = {*config.axis_lengths.values()}
    # Passthrough applies to the request's inputs; prepared tensors replace them for the graph.
    elsewhere = lengths if config.prepared else lengths.union(config.passthrough.values())
    for spec in config.sources:
        if spec.name in elsewhere and spec.name not in inputs:
            continue
        if spec.dtype is DType.BYTES:
            expected = "a graph input of another name: BYTES cannot be batched"
            faults.add(f"input '{spec.name}'", "a graph input of its name", expected)
            inputs.skip(spec.name)
            continue
        if UNKNOWN in spec.dims:
            expected = "a name for each -1, since the graph has an input of that name"
            faults.add(f"parameter 'axes.{spec.name}'", "nothing", expected)
        aipp = config.aipp.get(spec.name)
        if aipp is not None and not inputs.takes_images(spec.name):
            made = aipp.output(spec, inputs.image_dtype(spec.name))
            inputs.match(f"parameter 'aipp.{spec.name}'", made)
            yield Images.of(aipp, spec, made, int(config.pads.get(spec.name, 0)))
            continue
        inputs.match(f"input '{spec.name}'", spec)
        # Padding rows have length 1, so that the graph does not divide by 0.
        pad = config.pads.get(spec.name, 1 if spec.name in lengths else 0)
        yield Joined(spec, spec.dtype.scalar(pad))


def _generated_feeds(config: RuntimeConfig, inputs: GraphPorts) -> Iterator[Feed]:
    for name, axes in config.masks.items():
        spec = TensorSpec(name, inputs.mask_dtype(name), axes)
        inputs.match(f"parameter 'mask.{name}'", spec)
        yield PastMask(spec) if _has_past(config) and spec.axes[:1] == (PAST,) else Mask(spec)
    for name, axis in config.lengths.items():
        dtype = inputs.integer_dtype(name, config.limits[axis])
        spec = TensorSpec(name, dtype, inputs.lengths_dims(name))
        inputs.match(f"parameter 'lengths.{name}'", spec)
        yield Lengths(spec, axis)
    for name, axis in config.positions.items():
        largest = config.limits[axis] + (config.limits[PAST] if _has_past(config) else 0)
        spec = TensorSpec(name, inputs.integer_dtype(name, largest), (axis,))
        inputs.match(f"parameter 'positions.{name}'", spec)
        yield PositionsAfterPast(spec) if _has_past(config) else Positions(spec)
    for name, axis in config.offsets.items():
        # The last offset is the sum of all rows' lengths.
        spec = TensorSpec(name, inputs.integer_dtype(name, config.rows * config.limits[axis]), ())
        inputs.match(f"parameter 'offsets.{name}'", spec, (Relation.parse(f"{ROWS} + 1"),))
        yield Offsets(spec, axis)


def _batch_input_feeds(config: RuntimeConfig, inputs: GraphPorts) -> Iterator[Feed]:
    sources = {spec.name: spec for spec in config.sources}
    for index, batch_input in enumerate(config.batch_inputs):
        source = sources[batch_input.source]
        for name in batch_input.targets:
            spec = TensorSpec(name, batch_input.dtype, ())
            dims = _batch_dims(batch_input.kind, source, config.rows)
            inputs.match(f"batch_input[{index}]", spec, dims)
            yield _BATCH_FEEDS[batch_input.kind](spec, source)


def _constant_feeds(
    config: RuntimeConfig, inputs: GraphPorts, faults: ConfigErrors
) -> Iterator[Feed]:
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
        # Element by element: a BF16 value is made from its bits.
        elements = np.array([dtype.scalar(value) for value in values if value is not None])
        value = np.broadcast_to(elements, math.prod(shape)).reshape(shape)
        yield Constant(spec, value if config.batched else value[None])


def _state_feeds(config: RuntimeConfig, inputs: GraphPorts, faults: ConfigErrors) -> Iterator[Feed]:
    for name in config.states.outputs:
        field = f"parameter 'state.{name}'"
        tensor = inputs.get(name)
        dims = [] if tensor is None or tensor.dims is None else list(tensor.dims)
        at = config.batch_axes.of(name)
        if at is not None and at < len(dims):
            del dims[at]
        sizes = tuple(dim for dim in dims if dim is not None)
        if tensor is not None and dims.count(None) == 1 and _has_past(config):
            grown = tuple(PAST if dim is None else dim for dim in dims)
            spec = TensorSpec(name, tensor.dtype, grown)
            inputs.match(field, spec)
            yield Past(spec)
            continue
        if tensor is not None and (len(sizes) < len(dims) or tensor.dims is None):
            rows = "" if at is None else f", apart from rows along dim {at} (batch_axis.{name})"
            grows = f"; or 'limit.{PAST}', if it grows" if dims.count(None) == 1 else ""
            faults.add(field, f"{tensor} in the graph", f"fixed sizes{rows}{grows}")
            inputs.skip(name)
            continue
        spec = TensorSpec(name, DType.FP32 if tensor is None else tensor.dtype, sizes)
        inputs.match(field, spec)
        yield State(spec)


def _has_past(config: RuntimeConfig) -> bool:
    return config.states.growth is not None


def _growing_states(
    config: RuntimeConfig, feeds: Sequence[Feed], outputs: GraphPorts, faults: ConfigErrors
) -> Iterator[GrowingState]:
    """Yield the states that grow; their results have the size after the request along PAST."""
    growth, axes = config.states.growth, config.batch_axes
    grown = [feed.spec for feed in feeds if isinstance(feed, Past)]
    if growth is None:
        return
    if not grown:
        found = "no state that grows"
        faults.add(f"parameter 'limit.{PAST}'", found, "a state with one size that varies")
    declared = {spec.name for spec in config.outputs}
    for spec in grown:
        name = config.states.outputs[spec.name]
        dims: tuple[Dim, ...] = tuple(
            growth.size_after if dim == PAST else dim for dim in spec.dims
        )
        result = TensorSpec(name, spec.dtype, dims)
        field = f"parameter 'state.{spec.name}'"
        if name in declared:
            faults.add(field, f"output '{name}' in config.pbtxt", "no output: the state grows")
        elif axes.of(name) != axes.of(spec.name):
            expected = f"{axes.of(spec.name)}, as that of its input '{spec.name}'"
            faults.add(f"parameter 'batch_axis.{name}'", axes.of(name), expected)
        else:
            outputs.match(field, result)
        yield GrowingState(spec, result, axes.of(spec.name) or 0)


def _state_results(
    config: RuntimeConfig, feeds: Sequence[Feed], outputs: GraphPorts, faults: ConfigErrors
) -> Iterator[StateResult]:
    """Yield the results that are kept as state; each has the size of the input it becomes."""
    declared = {spec.name: spec for spec in config.outputs}
    for feed in feeds:
        if not isinstance(feed, State):
            continue
        source = feed.spec.name
        spec = TensorSpec(config.states.outputs[source], feed.spec.dtype, feed.spec.dims)
        if declared.get(spec.name, spec) != spec:
            found = f"output {declared[spec.name]}"
            faults.add(f"parameter 'state.{source}'", found, f"{spec}, as the input has it")
        elif spec.name not in declared:
            outputs.match(f"parameter 'state.{source}'", spec)
        yield StateResult(spec, source)


def _check_batch_axes(
    config: RuntimeConfig, signature: Signature, feeds: Sequence[Feed], faults: ConfigErrors
) -> None:
    """Add faults for batch axes out of range, and of tensors that are unknown or have no rows."""
    dims = {feed.spec.name: feed.spec.dims for feed in feeds if isinstance(feed, _MOVABLE)}
    dims |= {spec.name: spec.dims for spec in config.outputs}
    dims |= {output: dims.get(source, ()) for source, output in config.states.outputs.items()}
    known = {tensor.name for tensor in (*signature.inputs, *signature.outputs)}
    joined = {feed.spec.name for feed in feeds if isinstance(feed, Joined | Images)}
    answered = {spec.name for spec in config.outputs}
    for name, at in config.batch_axes.given.items():
        field = f"parameter 'batch_axis.{name}'"
        if name not in known:
            faults.add_unknown(field, "tensor", name, known)
        elif name not in dims:
            faults.add(field, f"'{name}', which has no rows of requests", "no batch axis")
        elif at is None and name not in joined | answered:
            faults.add(field, "none", f"0 to {len(dims[name])}: each row has a value of its own")
        elif at is not None and at > len(dims[name]):
            faults.add(field, at, f"0 to {len(dims[name])}, or none")


_MOVABLE: Final = (
    *(Joined, Images, Mask, Positions, Lengths, State),
    *(Past, PastMask, PositionsAfterPast),
)
"""Feeds whose rows are the rows of the batch."""


def _feed_in_graph(feed: Feed, axes: BatchAxes) -> Feed:
    at = axes.given.get(feed.spec.name, 0)
    if at is None:
        return Shared(feed.spec)
    return RowsLater(feed, at) if at else feed


def _constant_shape(dims: tuple[int | None, ...] | None, count: int) -> tuple[int, ...]:
    """Return the shape of a constant of `count` values for a graph's dims.

    A single size that varies follows from the number of values. An unknown rank (None) may be a
    scalar, because some engines do not report the rank of scalars.
    """
    if dims is None:
        return (count,) if count > 1 else ()
    known = math.prod(dim for dim in dims if dim is not None)
    left = count // known if dims.count(None) == 1 else 1
    return tuple(max(1, left) if dim is None else dim for dim in dims)


def _batch_dims(kind: BatchInputKind, source: TensorSpec, rows: int) -> tuple[Dim, ...]:
    """Return the dims of a batch input; UNKNOWN if they depend on the rows of the requests."""
    if kind is BatchInputKind.ITEM_SHAPE:
        return (ROWS, len(source.dims))
    if kind is BatchInputKind.ITEM_SHAPE_FLATTEN:
        return (Relation.parse(f"{ROWS} * {len(source.dims)}"),)
    # As in Triton there is one count for each request, which may have several rows.
    if rows > 1 or kind is BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE:
        return (UNKNOWN,)
    zero = kind is BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
    return (2 if zero else 1,)
