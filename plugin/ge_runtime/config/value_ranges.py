"""The values that elements of inputs may have.

- `range.<input>`: the least and the largest, e.g. `0..30521` for ids of a vocabulary of 30522. A
  request with another element in its data is refused before the graph sees it: a graph may fail on
  it, for all requests of the execution, or read what lies beside its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.triton_config import ConfigErrors, Parameters, read_number
from ge_runtime.specs import DType, Number


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The least and the largest value of an element."""

    least: Number
    largest: Number

    def __contains__(self, value: Number) -> bool:
        return self.least <= value <= self.largest

    def nearest(self, value: Number) -> Number:
        """The value of the range that is nearest."""
        return min(max(value, self.least), self.largest)

    def span(self, dtype: DType) -> tuple[float, float]:
        """The range as elements of this type are drawn from it: high excluded for integers."""
        return float(self.least), float(self.largest + dtype.is_integer)

    def __str__(self) -> str:
        return f"{self.least} to {self.largest}"


def read_ranges(
    parameters: Parameters,
    tensors: ModelTensors,
    laid: Mapping[str, Mapping[str, Number]],
    errors: ConfigErrors,
) -> dict[str, ValueRange]:
    """Input or prepared tensor: the values of its elements.

    laid: what is laid into batches besides data, by `pad` and `default`: input to its value, which
    must be in the range too.
    """
    ranges = {}
    for name, text in parameters.families["range"].items():
        field = f"parameter 'range.{name}'"
        spec = tensors.sources.get(name)
        if spec is None:
            errors.add_unknown(field, "input", name, tensors.sources)
            continue
        low, high = (read_number(own.strip(), spec.dtype) for own in text.partition("..")[::2])
        if spec.dtype in _NO_ORDER:
            errors.add(field, f"input '{name}' {spec}", "an input of numbers, not of BF16")
            continue
        if low is None or high is None or not low < high:
            expected = f"two numbers of type {spec.dtype.value}, the lower one first, e.g. 0..9"
            errors.add(field, f"'{text}'", expected)
            continue
        own = ranges[name] = ValueRange(low, high)
        for family, values in laid.items():
            if name in values and values[name] not in own:
                errors.add(f"parameter '{family}.{name}'", values[name], f"{own} (range.{name})")
    return ranges


_NO_ORDER: Final = (DType.BOOL, DType.BYTES, DType.BF16)
"""Types without an order, and the one that is kept as its bits."""
