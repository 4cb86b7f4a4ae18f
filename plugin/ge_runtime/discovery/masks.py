"""Experiments that confirm which input marks the end of the data along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ge_runtime.discovery.graph import Port
from ge_runtime.discovery.study import Axis, Content, Study
from ge_runtime.specs import Array, DType, Relation, TensorSpec
from ge_runtime.verification.distance import compare

_TOLERANCE: Final = 1e-3
"""Relative difference between padded and unpadded answers that may be rounding here; the load check
decides with measured rounding."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding that an input marks the end of the data, or does not."""

    confirmed: bool
    evidence: str


def confirm(
    study: Study,
    port: Port,
    axes: Sequence[Axis],
    sizes: Mapping[str, int],
    relations: Mapping[str, tuple[int | str, ...]],
    rows: Mapping[str, int | None],
) -> Verdict:
    """Test that values behind the mask, or the length, do not change the answer.

    The graph executes the same data with two different paddings, and without padding. The answers
    beside both paddings must be equal in every bit; the answer without padding may differ by
    rounding.

    Args:
        study: The graph; `port` has the content MASK or LENGTH.
        port: The input.
        axes: The axes that it marks.
        sizes: Symbol to size; large enough for one unit of data and one of padding.
        relations: Output to its dims without rows, as fitted.
        rows: Output to its dim of rows; None: it has none.
    """
    symbols = {symbol for axis in axes for symbol in axis.symbols}
    if not any(
        study.contents[own.name] is Content.VALUES and symbols & {*own.symbols}
        for own in study.graph.inputs
    ):
        return Verdict(False, "no other input has values along its axes")
    true = {symbol: _part(axis) for axis in axes for symbol in axis.symbols}
    padded = study.run(sizes, seed=1, true=true, behind=2)
    other = study.run(sizes, seed=1, true=true, behind=3)
    alone = study.graph.run(_cut(study, sizes, true))
    if padded is None or other is None or alone is None:
        return Verdict(False, f"an execution failed: {study.graph.last_error}")
    by_axis = {axis.name: _part(axis) for axis in axes}
    for output in study.graph.outputs:
        spec = TensorSpec(output.name, output.dtype, ())
        at = rows[output.name]
        first, second = (
            _within(found[output.name], relations[output.name], by_axis, at)
            for found in (padded, other)
        )
        if (difference := compare(spec, first, second)) is not None:
            return Verdict(False, f"values behind it change the answer: {difference}")
        single = _within(alone[output.name], relations[output.name], by_axis, at)
        scale = float(np.max(np.abs(np.nan_to_num(single.astype(np.float64))), initial=0.0))
        difference = compare(spec, first, single)
        if difference is not None and difference.distance > _TOLERANCE * scale:
            return Verdict(False, f"padding changes the answer: {difference}")
    unmasked = study.run(sizes, seed=1, behind=2)
    if unmasked is not None and _equal(study, unmasked, padded):
        return Verdict(False, "the answer does not depend on it")
    ends = ", ".join(f"{axis.name} {_part(axis)} of {axis.base}" for axis in axes)
    return Verdict(True, f"values behind {ends} do not change the answer")


def _part(axis: Axis) -> int:
    """Return a true size below the base."""
    step = axis.multiple
    return max(axis.smallest, (axis.base * 5 // 8) // step * step)


def _cut(study: Study, sizes: Mapping[str, int], true: Mapping[str, int]) -> dict[str, Array]:
    """Return the inputs of the padded execution without the padding."""
    values = study.values(sizes, seed=1, true=true, behind=2)
    return {
        port.name: np.ascontiguousarray(
            values[port.name][
                tuple(
                    slice(true[dim]) if isinstance(dim, str) and dim in true else slice(None)
                    for dim in port.dims
                )
            ]
        )
        for port in study.graph.inputs
    }


def _within(
    array: Array, dims: Sequence[int | str], sizes: Mapping[str, int], rows: int | None
) -> Array:
    """Return the part of an output that belongs to the data."""
    places: list[slice] = []
    for dim in dims:
        if isinstance(dim, int):
            places.append(slice(None))
            continue
        relation = Relation.parse(dim)
        known = {*relation.axes} <= sizes.keys()
        places.append(slice(max(relation.size(sizes), 0)) if known else slice(None))
    if rows is not None:
        places.insert(rows, slice(None))
    return array[tuple(places)]


def _equal(study: Study, one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return all(
        one[port.name].shape == other[port.name].shape
        and np.array_equal(one[port.name], other[port.name])
        for port in study.graph.outputs
    )


def candidates(study: Study, axes: Sequence[Axis]) -> list[tuple[Port, Content, list[Axis]]]:
    """Return the inputs that may mark the end of data, as what, and along which axes.

    A mask has the rows and one or more axes of another input, and no other dims. A length has one
    element for each row. Inputs with such names come first.
    """
    found = []
    for port in study.graph.inputs:
        if port.name in study.constants or port.dtype is DType.BYTES:
            continue
        own = [axis for axis in axes if {*axis.symbols} & {*port.symbols}]
        others = {dim for other in study.graph.inputs if other is not port for dim in other.dims}
        named = study.contents[port.name]
        shared = bool(own) and all({*axis.symbols} & others for axis in own)
        if named is Content.MASK or (named is Content.VALUES and not _is_float(port)):
            if shared and len(port.dims) == len(own) + 1:
                found.append((port, Content.MASK, own))
        elif named is Content.LENGTH and axes:
            found.append((port, Content.LENGTH, list(axes[:1])))
    return sorted(
        found,
        key=lambda each: (
            study.contents[each[0].name] is Content.VALUES or each[0].name in study.unnamed
        ),
    )


def _is_float(port: Port) -> bool:
    return not (port.dtype.is_integer or port.dtype is DType.BOOL)
