"""Tensors beside the graph: outputs that are inputs, and inputs that the model's code makes.

- `pass.<output>`: the input, of any type, that is the request's output as it came.
- `prepared.<tensor>`: the type and dims of an input that the model's own code makes of those of
  the request, e.g. `INT64[tokens]`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from ge_runtime.config.declared import Declared
from ge_runtime.config.faults import Faults
from ge_runtime.config.naming import is_axis_name
from ge_runtime.config.parameters import Parameters, split_names
from ge_runtime.specs import DType, TensorSpec

_WRITTEN: Final = re.compile(r"(\w+)\s*\[(.*)\]", re.ASCII)
_SIZE: Final = re.compile(r"[1-9][0-9]*", re.ASCII)
_NUMBERS: Final = {dtype.value: dtype for dtype in DType if dtype is not DType.BYTES}


def read_prepared(
    parameters: Parameters, inputs: Collection[str], faults: Faults
) -> dict[str, TensorSpec]:
    """Each prepared tensor by name; none has the name of a declared input."""
    prepared = {}
    for name, text in parameters.families["prepared"].items():
        place = f"parameter 'prepared.{name}'"
        spec = _spec(name, text)
        if spec is None:
            expected = "a type of numbers, sizes and axes, e.g. INT64[tokens] or FP32[3,height]"
            faults.add(place, f"'{text}'", expected)
        prepared[name] = spec or TensorSpec(name, DType.FP32, ())
        if name in inputs:
            faults.add(place, f"'{name}' among the inputs", "a name that no input has")
    return prepared


def mentioned_axes(parameters: Parameters) -> tuple[str, ...]:
    """The axes that prepared tensors name, each once, in texts that are right or wrong."""
    words = (
        word
        for text in parameters.families["prepared"].values()
        for word in split_names(text.partition("[")[2].rstrip("] "))
    )
    return tuple(dict.fromkeys(filter(is_axis_name, words)))


def _spec(name: str, text: str) -> TensorSpec | None:
    """The tensor that is written as `str` of its spec, or None if none is."""
    match = _WRITTEN.fullmatch(text)
    if match is None or match[1] not in _NUMBERS:
        return None
    words = split_names(match[2]) if match[2].strip() else ()
    if not all(is_axis_name(word) or _SIZE.fullmatch(word) for word in words):
        return None
    dims = (word if is_axis_name(word) else int(word) for word in words)
    return TensorSpec(name, _NUMBERS[match[1]], tuple(dims))


def read_passes(
    parameters: Parameters,
    inputs: Mapping[str, Declared],
    outputs: Mapping[str, Declared],
    derived: Collection[str],
    faults: Faults,
) -> dict[str, str]:
    """Output: the input of equal type and dims that it is. `derived` outputs are none of these."""
    passes = {}
    for name, source in parameters.families["pass"].items():
        place = f"parameter 'pass.{name}'"
        if name in derived:
            faults.add(place, f"'{name}' among the derived outputs", "one of the two")
        if name not in outputs:
            faults.add_unknown(place, "output", name, outputs)
        elif source not in inputs:
            faults.add_unknown(place, "input", source, inputs)
        else:
            passes[name] = source
            given, wanted = inputs[source].spec, outputs[name].spec
            if (given.dtype, given.dims) != (wanted.dtype, wanted.dims):
                faults.add(
                    place, f"input '{source}' {given}", f"{wanted} as the output is declared"
                )
            if inputs[source].optional:
                expected = "an input that every request brings"
                faults.add(place, f"optional input '{source}'", expected)
    return passes
