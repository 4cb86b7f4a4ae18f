"""Rows laid one after the other along one axis, instead of one below the other with padding.

- `packing`: an axis. Tensors that have it, as their first dim, are [total, ...] for the graph:
  total is the sum of the rows' true lengths, and there is no batch dimension.
  `offsets.<graph input>` tells the graph where each row begins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ge_runtime.config.faults import Faults
from ge_runtime.config.parameters import Parameters
from ge_runtime.config.tensors import Tensors
from ge_runtime.specs import Dim


def read_packing(
    parameters: Parameters,
    tensors: Tensors,
    masks: Mapping[str, tuple[str, ...]],
    geared: Collection[str],
    faults: Faults,
    *,
    batched: bool,
) -> str | None:
    """The packed axis, None if there is none.

    geared: the axes with gears. batched: requests have a batch dimension.
    """
    place, axis = "parameter 'packing'", parameters.settings.get("packing")
    if axis is None:
        return None
    if not batched:
        faults.add(place, "max_batch_size 0", "at least 1: without it there are no rows to join")
    if not tensors.knows_axis(place, axis, faults):
        return axis
    if axis in geared:
        # A packed axis has the sum of all rows, which no gear of one row's size says anything of.
        faults.add(place, f"gears of axis '{axis}'", "an axis that is free")
    for kind, specs in {"input": tensors.sources, "output": tensors.outputs}.items():
        for name, spec in specs.items():
            if axis in spec.axes and not _leads(axis, spec.dims, spec.axes):
                faults.add(place, f"{kind} '{name}' {spec}", f"'{axis}' as its first dim alone")
    for name, axes in masks.items():
        if axis in axes and axes != (axis,):
            found = f"'mask.{name}' of {', '.join(axes)}"
            faults.add(
                place, found, f"masks of '{axis}' alone: rows have no dimension of their own"
            )
    return axis


def _leads(axis: str, dims: tuple[Dim, ...], axes: tuple[str, ...]) -> bool:
    """Whether the axis is the first dimension, and no other one nor part of a relation."""
    return dims[0] == axis and axes.count(axis) == 1
