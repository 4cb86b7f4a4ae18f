"""The parameters that say how rows of different sizes become one batch: padding, packing.

- `axis_length.<axis>`: the input, integers and one for each row, with each row's true length along
  the axis. Without it, and for requests that lack it because it is optional, rows are as long as
  the request's tensor.
- `pad.<input>`: the value of padding; default 0.
- `padding.<axis>`: what rows of different sizes along the axis may do within one execution:
  `masked` are padded, and the graph is told where data ends; `equal` are never padded, so only
  equal sizes share an execution, and where there are gears they are a gear's; `neutral` are padded,
  and the user says that this changes no answer. Default: `masked` where the graph is told, by a
  mask, lengths, offsets, `packing`, or a `batch_input` that tells sizes; else `equal`.
- `default.<input>`: the value of all elements of an optional input where a request lacks it;
  default 0. An input that holds an axis' lengths has none: without it, rows are as long as the
  request's tensor.
- `packing`: an axis along which rows are joined end to end instead of padded. Tensors that have
  it, as their first dim, are [total, ...] for the graph: total is the sum of the rows' true
  lengths, and there is no batch dimension. `offsets.<graph input>` tells the graph where each row
  begins.

Values are written as numbers, for floats also inf, -inf and nan; BOOL as true or false, 1 or 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.triton_config import ConfigErrors, Parameters, read_number
from ge_runtime.specs import UNKNOWN, Dim, DType, Number


class PaddingRule(Enum):
    """Whether sizes along an axis may differ within one execution; values are config.pbtxt's."""

    MASKED = "masked"
    """They may: the graph is told where data ends."""
    EQUAL = "equal"
    """They may not: nothing is padded."""
    NEUTRAL = "neutral"
    """They may: padding of this axis changes no answer, says the user."""


def read_axis_lengths(
    parameters: Parameters, tensors: ModelTensors, limits: Mapping[str, int], errors: ConfigErrors
) -> dict[str, str]:
    """Axis: the input with each row's true length along it."""
    lengths = dict(parameters.families["axis_length"])
    for axis, name in lengths.items():
        field = f"parameter 'axis_length.{axis}'"
        tensors.knows_axis(field, axis, errors)
        if name not in tensors.sources:
            errors.add_unknown(field, "input", name, tensors.sources)
            continue
        spec = tensors.sources[name]
        if not spec.dtype.is_integer or spec.dims not in ((), (1,)):
            errors.add(field, f"input '{name}' {spec}", "integers, one for each row")
        elif name in tensors.optional:
            # Where a request lacks it, it is made up: it holds the size of the axis.
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
    errors: ConfigErrors,
    *,
    told: Collection[str],
    axis_lengths: Mapping[str, str],
    packing: str | None,
) -> dict[str, PaddingRule]:
    """Axis, each of `axes`: its rule.

    told: the axes along which generated inputs, or `packing`, tell the graph where data ends.
    axis_lengths: axis to
    the input with its lengths, which the graph may have as an input, too: known only once it is
    open, so that `Contract` refuses it if nothing tells the graph.
    """
    known = {*told, *axis_lengths}
    rules = {axis: PaddingRule.MASKED if axis in known else PaddingRule.EQUAL for axis in axes}
    for axis, text in parameters.families["padding"].items():
        field = f"parameter 'padding.{axis}'"
        if not tensors.knows_axis(field, axis, errors):
            continue
        choices = {rule.value: rule for rule in PaddingRule}
        if text not in choices:
            errors.add_unknown(field, "padding rule", text, choices)
        elif text == "masked" and axis not in known:
            expected = (
                f"'equal', 'neutral', or what tells the graph where data ends: 'mask.<graph "
                f"input>', 'lengths.<graph input>' or 'offsets.<graph input>' of '{axis}'"
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


def read_pads(
    parameters: Parameters, tensors: ModelTensors, errors: ConfigErrors, *, rows: bool
) -> dict[str, Number]:
    """Input: the value of its padding, where that is not 0.

    rows: batches have rows of padding, so that inputs without axes are padded as well.
    """
    pads: dict[str, Number] = {}
    for name, text in parameters.families["pad"].items():
        field = f"parameter 'pad.{name}'"
        if name not in tensors.sources:
            errors.add_unknown(field, "input", name, tensors.sources)
            continue
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
    parameters: Parameters,
    tensors: ModelTensors,
    length_inputs: Collection[str],
    errors: ConfigErrors,
) -> dict[str, Number]:
    """Optional input: its value where a request lacks it. All optional inputs are there."""
    defaults: dict[str, Number] = dict.fromkeys(tensors.optional, 0)
    for name, text in parameters.families["default"].items():
        field = f"parameter 'default.{name}'"
        if name not in tensors.inputs:
            errors.add_unknown(field, "input", name, tensors.inputs)
            continue
        dtype = tensors.inputs[name].dtype
        default = read_number(text, dtype)
        if tensors.prepared:
            expected = "nothing: the model's own code sees what a request lacks"
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
    errors: ConfigErrors,
    *,
    batched: bool,
) -> str | None:
    """The packed axis, None if there is none.

    steps: of `align.<axis>`. geared: the axes with gears. batched: requests have a batch dimension.
    """
    field, axis = "parameter 'packing'", parameters.settings.get("packing")
    if axis is None:
        return None
    if not batched:
        errors.add(field, "max_batch_size 0", "at least 1: without it there are no rows to join")
    if not tensors.knows_axis(field, axis, errors):
        return axis
    if axis in geared:
        # A packed axis has the sum of all rows, which no gear of one row's size says anything of.
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
            errors.add(
                field, found, f"masks of '{axis}' alone: rows have no dimension of their own"
            )
    return axis


def _leads(axis: str, dims: tuple[Dim, ...], axes: tuple[str, ...]) -> bool:
    """Whether the axis is the first dimension, and no other one nor part of a relation."""
    return dims[0] == axis and axes.count(axis) == 1
