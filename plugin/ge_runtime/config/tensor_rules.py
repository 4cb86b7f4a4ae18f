"""Rules for single tensors of the graph: rows, value ranges, states, padding, defaults, packing.

An input without rows (`batch_axis.<input>: none`) has one value for all rows of an execution, so
only requests with equal values share an execution. Requests and answers always have their rows
first.

A request with an element outside of `range.<input>` is refused before the graph receives it: the
graph could fail, for all requests of the execution, or read memory outside of a table of weights.

With `state.<graph input>`, requests bring no such input, and answers have the output only if it is
declared. The model needs Triton's `sequence_batching`: the requests of a sequence then arrive in
order, one at a time, at one instance, which keeps the state. The server's own `state` is not used,
as Triton keeps no states for models in Python.

Values are written as numbers, for floats also inf, -inf and nan; BOOL as true or false, 1 or 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ge_runtime.config import parameter_table as table
from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.parameters import Parameters, read_number
from ge_runtime.specs import ROWS, UNKNOWN, Dim, DType, Number, Relation


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """The dim of each graph tensor that counts rows."""

    batched: bool = True
    """True if any tensor has such a dim."""
    given: Mapping[str, int | None] = field(default_factory=dict)
    """The dims that config.pbtxt gives; None for a tensor without rows."""

    @classmethod
    def read(
        cls, parameters: Parameters, tensors: ModelTensors, *, batched: bool, packing: str | None
    ) -> BatchAxes:
        """Read config.pbtxt. Which tensors the graph has is not known here."""
        given: dict[str, int | None] = {}
        errors = parameters.errors
        for place, name, dim in parameters.entries(table.BATCH_AXIS):
            if not batched:
                errors.add(place, "max_batch_size 0", "at least 1: without it there are no rows")
            elif packing is not None:
                found = f"packing: {packing} as well"
                errors.add(place, found, "one of the two: packed rows are joined along that axis")
            given[name] = dim
            spec = tensors.sources.get(name)
            if dim is None and spec is not None and spec.axes:
                found = f"none and dims {list(map(str, spec.dims))} of input '{name}'"
                errors.add(place, found, "fixed dims: it is the same for requests of all sizes")
        return cls(batched, given)

    def of(self, name: str) -> int | None:
        """Return the dim of a graph tensor that counts rows, or None if it has no rows."""
        return self.given.get(name, 0) if self.batched else None

    def dims(self, name: str, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return the graph's dims of a tensor, given the dims of one row."""
        at = self.of(name)
        return dims if at is None else (*dims[:at], ROWS, *dims[at:])

    @property
    def without(self) -> frozenset[str]:
        """The tensors that have no rows according to config.pbtxt."""
        return frozenset(name for name, at in self.given.items() if at is None)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The lowest and the highest value of an element, both included."""

    least: Number
    largest: Number

    def __contains__(self, value: Number) -> bool:
        return self.least <= value <= self.largest

    def nearest(self, value: Number) -> Number:
        """Return the value of the range nearest to `value`."""
        return min(max(value, self.least), self.largest)

    def span(self, dtype: DType) -> tuple[float, float]:
        """Return the range from which to draw elements, the highest excluded for integers."""
        return float(self.least), float(self.largest + dtype.is_integer)

    def __str__(self) -> str:
        return f"{self.least} to {self.largest}"


def read_values(
    parameters: Parameters, tensors: ModelTensors, length_inputs: Collection[str], *, rows: bool
) -> tuple[dict[str, Number], dict[str, Number], dict[str, ValueRange]]:
    """Return the values of missing inputs, the values of padding, and the value ranges.

    length_inputs: the inputs with rows' lengths; their default is the size of their axis. rows:
    see `_read_pads`.
    """
    defaults = _read_defaults(parameters, tensors, length_inputs)
    pads = _read_pads(parameters, tensors, rows=rows)
    constants = {name: own for name, own in defaults.items() if name not in length_inputs}
    ranges = _read_ranges(parameters, tensors, {"pad": pads, "default": constants})
    nearest = {name: own.nearest(0) for name, own in ranges.items() if 0 not in own}
    return defaults, {**nearest, **pads}, ranges


def _read_ranges(
    parameters: Parameters, tensors: ModelTensors, fillers: Mapping[str, Mapping[str, Number]]
) -> dict[str, ValueRange]:
    """Return the value range of inputs or prepared tensors.

    Args:
        parameters: The model's parameters.
        tensors: The model's tensors.
        fillers: "pad" and "default", each with the values by input that batches hold besides data;
            they must be in the range too.
    """
    ranges = {}
    errors = parameters.errors
    for place, name, text in parameters.entries(table.RANGE, "input", tensors.sources):
        spec = tensors.sources[name]
        low, high = (read_number(own.strip(), spec.dtype) for own in text.partition("..")[::2])
        if spec.dtype in _NO_ORDER:
            errors.add(place, f"input '{name}' {spec}", "an input of numbers, not of BF16")
            continue
        if low is None or high is None or not low < high:
            expected = f"two numbers of type {spec.dtype.value}, the lower one first, e.g. 0..9"
            errors.add(place, f"'{text}'", expected)
            continue
        own = ranges[name] = ValueRange(low, high)
        for family, values in fillers.items():
            if name in values and values[name] not in own:
                errors.add(f"parameter '{family}.{name}'", values[name], f"{own} (range.{name})")
    return ranges


_NO_ORDER: Final = (DType.BOOL, DType.BYTES, DType.BF16)
"""Types without an order, and the type that is kept as its bits."""


class PaddingRule(Enum):
    """The rule for sizes along an axis in one execution; the values are texts of config.pbtxt."""

    MASKED = "masked"
    """Sizes may differ: a mask or lengths give the graph the ends of data."""
    EQUAL = "equal"
    """Sizes must be equal: nothing is padded."""
    NEUTRAL = "neutral"
    """Sizes may differ: the user states that padding of this axis changes no answer."""


def read_axis_lengths(
    parameters: Parameters, tensors: ModelTensors, limits: Mapping[str, int]
) -> dict[str, str]:
    """Return each axis with the input that holds each row's true length along it."""
    lengths, errors = dict(parameters.texts(table.AXIS_LENGTH)), parameters.errors
    for place, axis, name in parameters.entries(table.AXIS_LENGTH):
        tensors.knows_axis(place, axis, errors)
        if name not in tensors.sources:
            errors.add_unknown(place, "input", name, tensors.sources)
            continue
        spec = tensors.sources[name]
        if not spec.dtype.is_integer or spec.dims not in ((), (1,)):
            errors.add(place, f"input '{name}' {spec}", "integers, one for each row")
        elif name in tensors.optional:
            # For a request that lacks it, the input is filled with the size of the axis.
            if list(lengths.values()).count(name) > 1:
                expected = "one axis, as the input is optional"
                errors.add(place, f"'{name}' for other axes as well", expected)
            if spec.dtype.largest < limits.get(axis, 1):
                expected = f"a type that holds {limits[axis]} (limit.{axis}), the default"
                errors.add(place, f"input '{name}' {spec}", expected)
    return lengths


def read_padding_rules(
    parameters: Parameters,
    tensors: ModelTensors,
    axes: Collection[str],
    *,
    masked: Collection[str],
    axis_lengths: Mapping[str, str],
    packing: str | None,
) -> dict[str, PaddingRule]:
    """Return the rule of each of `axes`.

    Args:
        parameters: The model's parameters.
        tensors: The model's tensors.
        axes: All axes.
        masked: The axes along which generated inputs, or `packing`, give the graph the ends of
            data.
        axis_lengths: The input with the lengths along each axis. `Contract` refuses the axis if the
            graph, which is not open yet, does not have that input too.
        packing: The packed axis.
    """
    known = {*masked, *axis_lengths}
    rules = {axis: PaddingRule.MASKED if axis in known else PaddingRule.EQUAL for axis in axes}
    choices = {rule.value: rule for rule in PaddingRule}
    errors = parameters.errors
    for place, axis, text in parameters.entries(table.PADDING, "axis", tensors.axes):
        if text not in choices:
            errors.add_unknown(place, "padding rule", text, choices)
        elif text == "masked" and axis not in known:
            expected = (
                f"'equal', 'neutral', or an input that gives the graph the ends of the data: "
                f"'mask.<graph input>', 'lengths.<graph input>' or 'offsets.<graph input>' of "
                f"'{axis}'"
            )
            errors.add(place, "'masked'", expected)
        elif text != "masked" and axis == packing:
            errors.add(place, f"'{text}'", "'masked': rows of any lengths are joined along it")
        elif text == "equal" and axis in axis_lengths:
            found = f"'equal', and 'axis_length.{axis}'"
            errors.add(place, found, "one of the two: rows that end earlier have to be padded")
        else:
            rules[axis] = choices[text]
    return rules


def _read_pads(parameters: Parameters, tensors: ModelTensors, *, rows: bool) -> dict[str, Number]:
    """Return the padding value of inputs that give one.

    rows: True if batches may have rows of padding: inputs without axes are then padded as well.
    """
    pads: dict[str, Number] = {}
    errors = parameters.errors
    for place, name, text in parameters.entries(table.PAD, "input", tensors.sources):
        spec = tensors.sources[name]
        if not spec.axes and UNKNOWN not in spec.dims and not rows:
            errors.add(place, f"no -1 in dims {list(spec.dims)}", "an input with axes")
        pad = read_number(text, spec.dtype)  # None for BYTES as well
        if spec.dtype is DType.BYTES:
            errors.add(place, f"input '{name}' {spec}", "an input of numbers")
        elif pad is None:
            errors.add(place, f"'{text}'", f"a value of type {spec.dtype.value}")
        else:
            pads[name] = pad
    return pads


def _read_defaults(
    parameters: Parameters, tensors: ModelTensors, length_inputs: Collection[str]
) -> dict[str, Number]:
    """Return the value of each optional input for requests that lack it; 0 unless given."""
    defaults: dict[str, Number] = dict.fromkeys(tensors.optional, 0)
    errors = parameters.errors
    for place, name, text in parameters.entries(table.DEFAULT, "input", tensors.inputs):
        dtype = tensors.inputs[name].dtype
        default = read_number(text, dtype)
        if tensors.prepared:
            expected = "nothing: the model's own code handles inputs that a request lacks"
            errors.add(place, f"'{text}'", expected)
        elif name not in tensors.optional:
            errors.add(place, f"input '{name}', which every request brings", "an optional input")
        elif name in length_inputs:
            errors.add(place, f"'{text}'", "nothing: rows without a length have their full size")
        elif default is None:
            errors.add(place, f"'{text}'", f"a value of type {dtype.value}")
        else:
            defaults[name] = default
    return defaults


def read_packing(
    parameters: Parameters,
    tensors: ModelTensors,
    masks: Mapping[str, tuple[str | Relation, ...]],
    geared: Collection[str],
    steps: Mapping[str, int],
    *,
    batched: bool,
) -> str | None:
    """Return the packed axis, or None.

    The axis is the first dim of each tensor that has it. For the graph the tensor is [total, ...]:
    total is the sum of the rows' true lengths, and there is no batch dimension.

    Args:
        parameters: The model's parameters.
        tensors: The model's tensors.
        masks: Generated masks with their axes.
        geared: The axes with gears.
        steps: The values of `align.<axis>`.
        batched: True if requests have a batch dimension.
    """
    place, axis, errors = "parameter 'packing'", parameters.get(table.PACKING), parameters.errors
    if axis is None:
        return None
    if not batched:
        errors.add(place, "max_batch_size 0", "at least 1: without it there are no rows to join")
    if not tensors.knows_axis(place, axis, errors):
        return axis
    if axis in geared:
        # The size of a packed axis is the sum over all rows; gears are for the size of one row.
        errors.add(place, f"gears of axis '{axis}'", "an axis that is free")
    if steps.get(axis, 1) > 1:
        found = f"align.{axis}: {steps[axis]}"
        errors.add(place, found, "an axis that is not aligned: rows of any lengths are joined")
    for kind, specs in {"input": tensors.sources, "output": tensors.outputs}.items():
        for name, spec in specs.items():
            if axis in spec.axes and (spec.dims[0] != axis or spec.axes.count(axis) > 1):
                errors.add(place, f"{kind} '{name}' {spec}", f"'{axis}' as its first dim alone")
    for name, axes in masks.items():
        if axis in axes and axes != (axis,):
            found = f"'mask.{name}' of {', '.join(map(str, axes))}"
            expected = f"masks of '{axis}' alone: rows have no dimension of their own"
            errors.add(place, found, expected)
    return axis
