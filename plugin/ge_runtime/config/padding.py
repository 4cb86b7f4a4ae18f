"""Parameters about rows of different sizes in one batch: lengths, padding, defaults, packing.

Values are written as numbers, for floats also inf, -inf and nan; BOOL as true or false, 1 or 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from ge_runtime.config import parameter_table as table
from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.parameters import Parameters
from ge_runtime.config.values import read_number
from ge_runtime.specs import UNKNOWN, Dim, DType, Number


class PaddingRule(Enum):
    """Whether sizes along an axis may differ in one execution; values are those of config.pbtxt."""

    MASKED = "masked"
    """They may differ: the graph receives where data ends."""
    EQUAL = "equal"
    """They must be equal: nothing is padded."""
    NEUTRAL = "neutral"
    """They may differ: the user states that padding of this axis changes no answer."""


def read_axis_lengths(
    parameters: Parameters, tensors: ModelTensors, limits: Mapping[str, int]
) -> dict[str, str]:
    """Return each axis with the input that holds each row's true length along it."""
    lengths, errors = dict(parameters.texts(table.AXIS_LENGTH)), parameters.errors
    for field, axis, name in parameters.entries(table.AXIS_LENGTH):
        tensors.knows_axis(field, axis, errors)
        if name not in tensors.sources:
            errors.add_unknown(field, "input", name, tensors.sources)
            continue
        spec = tensors.sources[name]
        if not spec.dtype.is_integer or spec.dims not in ((), (1,)):
            errors.add(field, f"input '{name}' {spec}", "integers, one for each row")
        elif name in tensors.optional:
            # For a request that lacks it, the input is filled with the size of the axis.
            if list(lengths.values()).count(name) > 1:
                errors.add(field, f"'{name}' for other axes as well", "one axis: it is optional")
            if spec.dtype.largest < limits.get(axis, 1):
                expected = f"a type that holds {limits[axis]} (limit.{axis}): it is optional"
                errors.add(field, f"input '{name}' {spec}", expected)
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
        axis_lengths: Axis to the input with its lengths. The graph may have that input too, which
            is only known once it is open: `Contract` refuses the axis if the graph does not.
        packing: The packed axis.
    """
    known = {*masked, *axis_lengths}
    rules = {axis: PaddingRule.MASKED if axis in known else PaddingRule.EQUAL for axis in axes}
    choices = {rule.value: rule for rule in PaddingRule}
    errors = parameters.errors
    for field, axis, text in parameters.entries(table.PADDING, "axis", tensors.axes):
        if text not in choices:
            errors.add_unknown(field, "padding rule", text, choices)
        elif text == "masked" and axis not in known:
            expected = (
                f"'equal', 'neutral', or an input from which the graph knows where data ends: "
                f"'mask.<graph input>', 'lengths.<graph input>' or 'offsets.<graph input>' of "
                f"'{axis}'"
            )
            errors.add(field, "'masked'", expected)
        elif text != "masked" and axis == packing:
            errors.add(field, f"'{text}'", "'masked': rows of any lengths are joined along it")
        elif text == "equal" and axis in axis_lengths:
            found = f"'equal', and 'axis_length.{axis}'"
            errors.add(field, found, "one of the two: rows that end earlier have to be padded")
        else:
            rules[axis] = choices[text]
    return rules


def read_pads(parameters: Parameters, tensors: ModelTensors, *, rows: bool) -> dict[str, Number]:
    """Return the padding value of inputs that give one.

    rows: batches may have rows of padding, so that inputs without axes are padded as well.
    """
    pads: dict[str, Number] = {}
    errors = parameters.errors
    for field, name, text in parameters.entries(table.PAD, "input", tensors.sources):
        spec = tensors.sources[name]
        if not spec.axes and UNKNOWN not in spec.dims and not rows:
            errors.add(field, f"no -1 in dims {list(spec.dims)}", "an input with axes")
        pad = read_number(text, spec.dtype)  # None for BYTES as well
        if spec.dtype is DType.BYTES:
            errors.add(field, f"input '{name}' {spec}", "an input of numbers")
        elif pad is None:
            errors.add(field, f"'{text}'", f"a value of type {spec.dtype.value}")
        else:
            pads[name] = pad
    return pads


def read_defaults(
    parameters: Parameters, tensors: ModelTensors, length_inputs: Collection[str]
) -> dict[str, Number]:
    """Return the value of each optional input for requests that lack it; 0 unless given."""
    defaults: dict[str, Number] = dict.fromkeys(tensors.optional, 0)
    errors = parameters.errors
    for field, name, text in parameters.entries(table.DEFAULT, "input", tensors.inputs):
        dtype = tensors.inputs[name].dtype
        default = read_number(text, dtype)
        if tensors.prepared:
            expected = "nothing: the model's own code handles inputs that a request lacks"
            errors.add(field, f"'{text}'", expected)
        elif name not in tensors.optional:
            errors.add(field, f"input '{name}', which every request brings", "an optional input")
        elif name in length_inputs:
            errors.add(field, f"'{text}'", "nothing: rows without a length have their full size")
        elif default is None:
            errors.add(field, f"'{text}'", f"a value of type {dtype.value}")
        else:
            defaults[name] = default
    return defaults


def read_packing(
    parameters: Parameters,
    tensors: ModelTensors,
    masks: Mapping[str, tuple[str, ...]],
    geared: Collection[str],
    steps: Mapping[str, int],
    *,
    batched: bool,
) -> str | None:
    """Return the packed axis, or None.

    Tensors that have the axis, as their first dim, are [total, ...] for the graph: total is the sum
    of the rows' true lengths, and there is no batch dimension.

    Args:
        parameters: The model's parameters.
        tensors: The model's tensors.
        masks: Generated masks with their axes.
        geared: The axes with gears.
        steps: The values of `align.<axis>`.
        batched: Whether requests have a batch dimension.
    """
    field, axis, errors = "parameter 'packing'", parameters.get(table.PACKING), parameters.errors
    if axis is None:
        return None
    if not batched:
        errors.add(field, "max_batch_size 0", "at least 1: without it there are no rows to join")
    if not tensors.knows_axis(field, axis, errors):
        return axis
    if axis in geared:
        # A packed axis has the sum of all rows, which no gear for the size of one row limits.
        errors.add(field, f"gears of axis '{axis}'", "an axis that is free")
    if steps.get(axis, 1) > 1:
        found = f"align.{axis}: {steps[axis]}"
        errors.add(field, found, "an axis that is not aligned: rows of any lengths are joined")
    for kind, specs in {"input": tensors.sources, "output": tensors.outputs}.items():
        for name, spec in specs.items():
            if axis in spec.axes and not _leads(axis, spec.dims, spec.axes):
                errors.add(field, f"{kind} '{name}' {spec}", f"'{axis}' as its first dim alone")
    for name, axes in masks.items():
        if axis in axes and axes != (axis,):
            found = f"'mask.{name}' of {', '.join(axes)}"
            expected = f"masks of '{axis}' alone: rows have no dimension of their own"
            errors.add(field, found, expected)
    return axis


def _leads(axis: str, dims: tuple[Dim, ...], axes: tuple[str, ...]) -> bool:
    """Return whether the axis is the first dim, and neither another dim nor in a relation."""
    return dims[0] == axis and axes.count(axis) == 1
