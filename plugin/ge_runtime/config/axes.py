"""The sizes of axes, and how far the data of a row reaches along them.

- `limit.<axis>`: the largest size of the axis; memory is planned from it. Every axis needs one.
- `axis_length.<axis>`: the input, integers and one for each row, with each row's true length along
  the axis. Without it, and for requests that lack it because it is optional, rows are as long as
  the request's tensor.
"""

from __future__ import annotations

from collections.abc import Mapping

from ge_runtime.config.faults import Faults
from ge_runtime.config.parameters import Parameters
from ge_runtime.config.tensors import Tensors
from ge_runtime.config.values import read_whole
from ge_runtime.relations import Relation


def read_limits(parameters: Parameters, tensors: Tensors, faults: Faults) -> dict[str, int]:
    """Axis: its largest size. A relation that has no size even there is a fault."""
    limits = {}
    for axis, text in parameters.families["limit"].items():
        place = f"parameter 'limit.{axis}'"
        if tensors.knows_axis(place, axis, faults):
            limits[axis] = read_whole(place, text, faults, least=1)
    for axis in dict.fromkeys(axis for spec in tensors.sources.values() for axis in spec.axes):
        if axis not in limits:
            expected = f"the largest size of axis '{axis}': memory is planned from it"
            faults.add(f"parameter 'limit.{axis}'", "nothing", expected)
    for spec in tensors.outputs.values():
        for dim in spec.dims:
            if isinstance(dim, Relation) and limits.keys() >= {*dim.axes} and dim.size(limits) < 1:
                found = f"'{dim}', {dim.size(limits)} where all axes are at their limits"
                faults.add(f"parameter 'axes.{spec.name}'", found, "at least 1")
    return limits


def read_axis_lengths(
    parameters: Parameters, tensors: Tensors, limits: Mapping[str, int], faults: Faults
) -> dict[str, str]:
    """Axis: the input with each row's true length along it."""
    lengths = dict(parameters.families["axis_length"])
    for axis, name in lengths.items():
        place = f"parameter 'axis_length.{axis}'"
        tensors.knows_axis(place, axis, faults)
        if name not in tensors.sources:
            faults.add_unknown(place, "input", name, tensors.sources)
            continue
        spec = tensors.sources[name]
        if not spec.dtype.is_integer or spec.dims not in ((), (1,)):
            faults.add(place, f"input '{name}' {spec}", "integers, one for each row")
        elif name in tensors.optional:
            # Where a request lacks it, it is made up: it holds the size of the axis.
            if list(lengths.values()).count(name) > 1:
                faults.add(place, f"'{name}' for other axes as well", "one axis: it is optional")
            if spec.dtype.largest < limits.get(axis, 1):
                expected = f"a type that holds {limits[axis]} (limit.{axis}): it is optional"
                faults.add(place, f"input '{name}' {spec}", expected)
    return lengths
