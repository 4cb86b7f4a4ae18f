"""The sizes that axes may have.

- `limit.<axis>`: the largest size of the axis; memory is planned from it. Every axis needs one.
- `min.<axis>`: the smallest size of a request along the axis; default 1.
- `align.<axis>`: executions have multiples of this size along the axis, as strides may need them;
  default 1. Requests must have such sizes along an `equal` axis, and are padded up to them along
  others. The limit is such a size, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.triton_config import ConfigErrors, Parameters, read_whole
from ge_runtime.relations import Relation
from ge_runtime.specs import TensorSpec


@dataclass(frozen=True, slots=True)
class AxisSizes:
    """The sizes of all axes, each in every mapping."""

    limits: Mapping[str, int]
    """The largest of each."""
    minimums: Mapping[str, int]
    """The smallest of a request."""
    steps: Mapping[str, int]
    """Of which executions have multiples."""

    @classmethod
    def read(cls, parameters: Parameters, tensors: ModelTensors, errors: ConfigErrors) -> AxisSizes:
        """What config.pbtxt says. A relation that has no size even at the limits is an error."""
        limits = _read_limits(parameters, tensors, errors)
        minimums = {**dict.fromkeys(limits, 1), **_read("min", parameters, tensors, errors)}
        steps = {**dict.fromkeys(limits, 1), **_read("align", parameters, tensors, errors)}
        for axis, limit in limits.items():
            if minimums[axis] > limit:
                expected = f"at most {limit} (limit.{axis})"
                errors.add(f"parameter 'min.{axis}'", minimums[axis], expected)
            if limit % steps[axis]:
                expected = f"a multiple of {steps[axis]} (align.{axis})"
                errors.add(f"parameter 'limit.{axis}'", limit, expected)
        return cls(limits, minimums, steps)

    def executed(self, axis: str, size: int) -> int:
        """The least size of an execution that holds `size` along the axis."""
        step = self.steps[axis]
        return -(-max(size, self.minimums[axis]) // step) * step

    def smallest(self, outputs: Iterable[TensorSpec]) -> dict[str, int]:
        """Every axis: the size of a small execution at which all outputs have a size."""
        sizes = {axis: self.executed(axis, 1) for axis in self.limits}
        for dim in (dim for spec in outputs for dim in spec.dims if isinstance(dim, Relation)):
            # A relation never falls, and has a size at the limits.
            while dim.size(sizes) < 1 and any(sizes[a] < self.limits[a] for a in dim.axes):
                for axis in dim.axes:
                    sizes[axis] = min(self.executed(axis, sizes[axis] + 1), self.limits[axis])
        return sizes


def _read(
    family: str, parameters: Parameters, tensors: ModelTensors, errors: ConfigErrors
) -> dict[str, int]:
    sizes = {}
    for axis, text in parameters.families[family].items():
        field = f"parameter '{family}.{axis}'"
        if tensors.knows_axis(field, axis, errors):
            sizes[axis] = read_whole(field, text, errors, least=1)
    return sizes


def _read_limits(
    parameters: Parameters, tensors: ModelTensors, errors: ConfigErrors
) -> dict[str, int]:
    limits = _read("limit", parameters, tensors, errors)
    for axis in dict.fromkeys(axis for spec in tensors.sources.values() for axis in spec.axes):
        if axis not in limits:
            expected = f"the largest size of axis '{axis}': memory is planned from it"
            errors.add(f"parameter 'limit.{axis}'", "nothing", expected)
    for spec in tensors.outputs.values():
        for dim in spec.dims:
            if isinstance(dim, Relation) and limits.keys() >= {*dim.axes} and dim.size(limits) < 1:
                found = f"'{dim}', {dim.size(limits)} where all axes are at their limits"
                errors.add(f"parameter 'axes.{spec.name}'", found, "at least 1")
    return limits
