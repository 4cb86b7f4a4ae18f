"""The values of elements that requests do not bring.

- `pad.<input>`: the value of padding; default 0.
- `default.<input>`: the value of all elements of an optional input where a request lacks it;
  default 0. An input that holds an axis' lengths has none: without it, rows are as long as the
  request's tensor.

Values are written as numbers, for floats also inf, -inf and nan; BOOL as true or false, 1 or 0.
"""

from __future__ import annotations

from collections.abc import Collection

from ge_runtime.config.faults import Faults
from ge_runtime.config.parameters import Parameters
from ge_runtime.config.tensors import Tensors
from ge_runtime.config.values import read_number
from ge_runtime.specs import UNKNOWN, DType, Number


def read_pads(
    parameters: Parameters, tensors: Tensors, faults: Faults, *, rows: bool
) -> dict[str, Number]:
    """Input: the value of its padding, where that is not 0.

    rows: batches have rows of padding, so that inputs without axes are padded as well.
    """
    pads: dict[str, Number] = {}
    for name, text in parameters.families["pad"].items():
        place = f"parameter 'pad.{name}'"
        if name not in tensors.sources:
            faults.add_unknown(place, "input", name, tensors.sources)
            continue
        spec = tensors.sources[name]
        if not spec.axes and UNKNOWN not in spec.dims and not rows:
            faults.add(place, f"no -1 in dims {list(spec.dims)}", "an input with axes")
        pad = read_number(text, spec.dtype)
        if spec.dtype is DType.BYTES:
            faults.add(place, f"input '{name}' {spec}", "an input of numbers")
        elif pad is None:
            faults.add(place, f"'{text}'", f"a value of type {spec.dtype.value}")
        else:
            pads[name] = pad
    return pads


def read_defaults(
    parameters: Parameters, tensors: Tensors, length_inputs: Collection[str], faults: Faults
) -> dict[str, Number]:
    """Optional input: its value where a request lacks it. All optional inputs are there."""
    defaults: dict[str, Number] = dict.fromkeys(tensors.optional, 0)
    for name, text in parameters.families["default"].items():
        place = f"parameter 'default.{name}'"
        if name not in tensors.inputs:
            faults.add_unknown(place, "input", name, tensors.inputs)
            continue
        dtype = tensors.inputs[name].dtype
        default = read_number(text, dtype)
        if tensors.prepared:
            expected = "nothing: the model's own code sees what a request lacks"
            faults.add(place, f"'{text}'", expected)
        elif name not in tensors.optional:
            faults.add(place, f"input '{name}', which every request brings", "an optional input")
        elif name in length_inputs:
            faults.add(place, f"'{text}'", "nothing: rows without a length have their full size")
        elif default is None:
            faults.add(place, f"'{text}'", f"a value of type {dtype.value}")
        else:
            defaults[name] = default
    return defaults
