"""The gears of a graph that was compiled for certain shapes only, in the words of config.pbtxt.

Such a graph executes no others, so its shapes are the gears, whatever config.pbtxt leaves open.
Where it names gears, those are used and no more of the graph's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeAlias

from ge_runtime.config import RuntimeConfig
from ge_runtime.config.gear_sizes import GearSizes
from ge_runtime.engines.base import Shapes
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import ROWS

Sizes: TypeAlias = dict[str, int]


def with_compiled_gears(
    config: RuntimeConfig, shapes: Sequence[Shapes], artifact: str
) -> RuntimeConfig:
    """The configuration with the gears that the artifact has.

    shapes: all that the graph can execute, at least one. artifact: for people.
    Raises ArtifactFault if config.pbtxt names a gear that the artifact lacks, asks for sizes that
    nothing was compiled for, or allows requests that none of the gears holds.
    """
    compiled = list(_sizes_of(config, shapes))
    if not compiled:
        raise ArtifactFault(
            f"{artifact}: found no gear whose inputs agree in size, expected one in which each "
            "axis of config.pbtxt has one size: run `ge-runtime build`"
        )
    axes = tuple(compiled[0])
    if not axes:
        return config
    _refuse_free_sizes(config, artifact)
    gears = list(_named(config, compiled, artifact))
    _check_limits(config, axes, gears, artifact)
    table = tuple(sorted({tuple(sizes[axis] for axis in axes) for sizes in gears}))
    return replace(config, gears={axes: table})


def _sizes_of(config: RuntimeConfig, shapes: Sequence[Shapes]) -> Iterator[Sizes]:
    """Each set of shapes as the size of every axis that an input has, ROWS among them.

    Not those in which an axis has two sizes, as no execution has. Inputs of other ranks or names
    than config.pbtxt has are left to `Contract`, which tells them.
    """
    dims = {spec.name: spec.dims for spec in config.sources}
    dims |= dict(config.masks)
    dims |= {name: (axis,) for name, axis in config.positions.items()}
    dims |= dict.fromkeys(config.lengths, ())
    rows = (ROWS,) if config.batched else ()
    order = [*rows, *config.limits]
    for own in shapes:
        sizes: Sizes = {}
        agree = True
        for name, found in own.items():
            expected = (*rows, *dims[name]) if name in dims else ()
            # A length may have a dimension of its own: behind those that are expected.
            for dim, size in zip(expected, found, strict=False):
                if isinstance(dim, str):
                    agree &= sizes.setdefault(dim, size) == size
        if agree:
            yield {axis: sizes[axis] for axis in order if axis in sizes}


def _refuse_free_sizes(config: RuntimeConfig, artifact: str) -> None:
    if config.packing is not None:
        raise ArtifactFault(
            f"parameter 'packing': found {artifact}, which was compiled for certain sizes, "
            "expected a graph that takes rows of any lengths together"
        )
    if config.oversize == "fallback":
        raise ArtifactFault(
            f"parameter 'oversize': found {artifact}, which was compiled for certain sizes, "
            "expected 'error': it cannot execute others"
        )


def _named(config: RuntimeConfig, compiled: Sequence[Sizes], artifact: str) -> Iterator[Sizes]:
    """The compiled gears that config.pbtxt names; all, where it leaves an axis open."""
    tables: Mapping[tuple[str, ...], GearSizes] = {
        axes: table for axes, table in config.gears.items() if isinstance(table, tuple)
    }
    axes = [axis for own in tables for axis in own]
    wanted = {
        tuple(size for gear in combination for size in gear)
        for combination in product(*tables.values())
    }
    there = {tuple(sizes[axis] for axis in axes if axis in sizes) for sizes in compiled}
    if missing := sorted(wanted - there):
        raise ArtifactFault(
            f"{artifact}: found no gear {_shown(missing)} for {', '.join(axes)}, expected all that "
            f"config.pbtxt names, {_shown(sorted(wanted))}; it was compiled for "
            f"{_shown(sorted(there))}: run `ge-runtime build`, or name these"
        )
    for sizes in compiled:
        if tuple(sizes[axis] for axis in axes if axis in sizes) in wanted:
            yield sizes


def _check_limits(
    config: RuntimeConfig, axes: Sequence[str], gears: Sequence[Sizes], artifact: str
) -> None:
    largest = {axis: config.limits[axis] for axis in axes if axis != ROWS}
    if not any(all(sizes[axis] >= size for axis, size in largest.items()) for sizes in gears):
        wanted = ", ".join(f"{axis} {size}" for axis, size in largest.items())
        table = [tuple(sizes[axis] for axis in axes) for sizes in gears]
        raise ArtifactFault(
            f"{artifact}: found no gear that holds {wanted}, expected one, as the limits allow "
            f"requests of that size; it was compiled for {', '.join(axes)} {_shown(sorted(table))}"
        )


def _shown(gears: Sequence[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, gear)) for gear in gears)
