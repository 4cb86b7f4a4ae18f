"""A model's gears, and the memory that executions at them take.

Gears are declared in config.pbtxt, derived from recorded sizes, or those of a compiled graph. A
compiled graph executes no other shapes: where config.pbtxt names gears, those are used, and for
axes that it leaves open the graph's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TypeAlias

from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.ragged import Geometry
from ge_runtime.config import RuntimeConfig
from ge_runtime.config.axis_sizes import GearSizes
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Engine, Shapes, Signature
from ge_runtime.engines.contract import Contract
from ge_runtime.errors import ArtifactFault, ConfigFault
from ge_runtime.memory.plan import ANSWER_SLOTS, Need, Plan
from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.specs import ROWS, UNKNOWN


@dataclass(frozen=True, slots=True)
class Gearing:
    """The gears, and how they came about."""

    tables: Mapping[tuple[str, ...], GearSizes]
    """Axes, ROWS for the rows among them: their gears."""
    gears: Gears
    planned: tuple[Gear, ...]
    """What memory has to be planned for: no execution is larger than all of these."""
    histogram: Histogram | None
    """The sizes recorded so far, along rows and all axes; None if nothing usable is there."""
    report: tuple[str, ...]
    """What is worth knowing of the histogram and the derived gears, line by line."""

    @classmethod
    def of(cls, config: RuntimeConfig, version_dir: Path) -> Gearing:
        """The gears of a configuration whose model is in `version_dir`.

        A histogram that cannot be read, or is of other axes, is told in the report and not used.
        """
        report: list[str] = []
        histogram = _recorded(config, version_dir, report)
        limits = {ROWS: config.rows, **config.limits}
        tables: dict[tuple[str, ...], GearSizes] = {}
        for axes, table in config.gears.items():
            if isinstance(table, int):
                # The optimizer is loaded by models that leave their gears to it.
                from ge_runtime.planning.gear_optimizer import derive_gears

                derived = derive_gears(axes, limits, table, histogram)
                report.append(derived.how)
                table = _executable(axes, derived.gears, config)
            tables[axes] = table
        axes = tuple(config.limits)
        gears = Gears(
            axes,
            config.limits,
            config.rows,
            tables,
            config.equal_axes,
            smallest=config.axis_sizes.smallest(config.outputs),
            steps=config.axis_sizes.steps,
        )
        planned = gears.every()
        if config.oversize == "fallback":  # what no gear holds is executed at its own size
            largest = Gear(config.rows, config.limits)
            planned = planned if largest in planned else (*planned, largest)
        return cls(tables, gears, planned, histogram, tuple(report))


def _executable(axes: Sequence[str], derived: GearSizes, config: RuntimeConfig) -> GearSizes:
    """The derived gears with each size raised to the next that executions may have."""
    own = config.axis_sizes
    raised = {
        tuple(
            size if axis == ROWS else own.executed(axis, size)
            for axis, size in zip(axes, gear, strict=True)
        )
        for gear in derived
    }
    return tuple(sorted(raised))


def _recorded(config: RuntimeConfig, version_dir: Path, report: list[str]) -> Histogram | None:
    if config.histogram is None:
        return None
    path, axes = version_dir / config.histogram, (ROWS, *config.limits)
    try:
        histogram = Histogram.load(path)
    except FileNotFoundError:
        return None
    except (HistogramFault, OSError) as error:
        report.append(f"the histogram is not used: {error}")
        return None
    if histogram.axes != axes:
        found, expected = ", ".join(histogram.axes), ", ".join(axes)
        report.append(f"the histogram is not used: found axes {found}, expected {expected}")
        return None
    return histogram


def with_fixed_batch(config: RuntimeConfig, signature: Signature) -> RuntimeConfig:
    """The configuration with one gear of rows, where the graph's batch dimension has a fixed size.

    Raises ConfigFault for oversize: fallback: a graph with a fixed batch executes no other rows.
    """
    geared = {axis for axes in config.gears for axis in axes}
    if not config.batched or config.packing is not None or ROWS in geared:
        return config
    names = {spec.name for spec in config.sources}
    names |= config.masks.keys() | config.positions.keys() | config.states.outputs.keys()
    sizes = set()
    for tensor in signature.inputs:
        dims, at = tensor.dims or (), config.batch_axes.of(tensor.name)
        if tensor.name in names and at is not None and at < len(dims) and dims[at] is not None:
            sizes.add(dims[at])
    if len(sizes) != 1:  # of several, the contract tells which are wrong
        return config
    size = sizes.pop() or 1
    if config.oversize == "fallback":
        found = f"'fallback' and a graph with a fixed batch of {size}"
        fault = f"parameter 'oversize': found {found}, expected 'error': it executes no other rows"
        raise ConfigFault(config.model, [fault])
    return replace(config, gears={**config.gears, (ROWS,): ((size,),)})


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
            # Unknown ones are told by `Contract`.
            expected = config.batch_axes.dims(name, dims[name]) if name in dims else ()
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
    # Not of rows: a request batch of max_batch_size rows may be executed in several parts.
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


def answer_slots(config: RuntimeConfig) -> int:
    """How many executions' answers a model has room for.

    With the device service one more, through which answers go that all slots are in use for.
    """
    return ANSWER_SLOTS + (config.service_share is not None)


def overlap_lines(
    config: RuntimeConfig, artifacts: Sequence[Artifact], plan: Plan
) -> tuple[str, ...]:
    """What it takes of memory, or would, that copies are made while another execution computes.

    Empty for models that cannot have it.
    """
    if config.service_share is not None or any(each.engine != "om" for each in artifacts):
        return ()
    if not plan.workspace_bytes:  # free shapes, with which nothing overlaps
        return ()
    once = f"{plan.device_io_bytes:,} bytes of the card and {plan.io_bytes:,} of pinned memory"
    if config.io_buffers > 1:
        return (
            f"copies overlap with executions: {config.io_buffers} buffer sets of {once}; weights "
            "and workspace are there once",
        )
    return (
        "copies do not overlap with executions",
        f"  io_buffers: 2 would take {once} more",
        f"  a second executor {plan.workspace_bytes:,} of workspace on the card besides",
    )


@dataclass(frozen=True, slots=True)
class Footprint:
    """The sizes of a model's tensors at any gear."""

    contract: Contract
    batched: bool
    """Whether the graph's tensors have a batch dimension."""
    packed: str | None
    """The axis along which rows are joined; a gear's extent of it is that of one row."""
    sequences: int = 0
    """The sequences of which the state is kept."""

    @classmethod
    def of(cls, config: RuntimeConfig, contract: Contract) -> Footprint:
        """The footprint of a model with this configuration."""
        return cls(contract, config.batched, config.packing, config.states.kept)

    def shapes(self, gear: Gear) -> dict[str, tuple[int, ...]]:
        """The shapes of the graph's inputs, by name."""
        geometry = self._geometry(gear)
        first = 0 if self.batched else 1  # without rows, batches still have a first dim of 1
        return {feed.spec.name: feed.shape(geometry)[first:] for feed in self.contract.feeds}

    def plan(
        self, engine: Engine, gears: Iterable[Gear], *, answer_slots: int = ANSWER_SLOTS
    ) -> Plan:
        """The plan for executions at these gears, at least one, one at a time.

        answer_slots: how many executions' answers are kept. Outputs with UNKNOWN dims are not
        planned: the engine allocates them. Takes milliseconds for each gear, as the graph is
        analysed at its shapes; nothing is executed.
        """
        needs = [self._need(engine, gear) for gear in gears]
        io_bytes = engine.device_io_bytes()
        return Plan.of(
            needs,
            weights_bytes=engine.weights_bytes(),
            answer_slots=answer_slots,
            device_io_bytes=max(need.io_bytes for need in needs) if io_bytes is None else io_bytes,
            state_bytes=sum(
                self.sequences * math.prod(state.spec.shape({})) * state.spec.dtype.numpy.itemsize
                for state in self.contract.states
            ),
        )

    def _need(self, engine: Engine, gear: Gear) -> Need:
        geometry = self._geometry(gear)
        outputs = [spec for spec in self.contract.results if UNKNOWN not in spec.dims]
        return Need(
            sizes={ROWS: gear.rows, **geometry.extents},
            inputs={
                feed.spec.name: (feed.spec.dtype, feed.shape(geometry))
                for feed in self.contract.feeds
            },
            outputs={spec.name: (spec.dtype, geometry.shape(spec)) for spec in outputs},
            intermediates=engine.intermediates(self.shapes(gear)),
            # What is cut to a request's own sizes is copied, for each row at most.
            copies={spec.name: gear.rows for spec in outputs if self.contract.copies(spec)},
            pieces=gear.rows,
        )

    def _geometry(self, gear: Gear) -> Geometry:
        extents = dict(gear.extents)
        if self.packed is not None:  # rows end to end: at most all of them at their limit
            extents[self.packed] *= gear.rows
        return Geometry(gear.rows, extents, packed=self.packed)
