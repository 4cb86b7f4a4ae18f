"""A model's gears, and the memory that executions at these gears need.

Gears are declared in config.pbtxt, derived from recorded sizes, or given by a compiled graph, which
executes only the shapes it was compiled for. With a compiled graph, the gears that config.pbtxt
names are used; axes without gears have the sizes of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final, TypeAlias

from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.ragged import Geometry
from ge_runtime.config import RuntimeConfig
from ge_runtime.config.axis_sizes import GearSizes
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import AdaptsThreads, Engine, Shapes, Signature, WorkspaceArena
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.growing_states import group_places, pool_bytes
from ge_runtime.errors import ArtifactFault, ConfigFault, EngineFault, OutOfMemory, shown
from ge_runtime.memory.plan import ANSWER_SLOTS, GearPlan, Need, Plan
from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.specs import ROWS, UNKNOWN


@dataclass(frozen=True, slots=True)
class Gearing:
    """The gears of a model, and their origin."""

    tables: Mapping[tuple[str, ...], GearSizes]
    """The gears by axes, with ROWS for the rows."""
    gears: Gears
    planned: tuple[Gear, ...]
    """The gears to plan memory for: each execution fits into one of them."""
    histogram: Histogram | None
    """The sizes recorded so far, along rows and all axes; None if no sizes are usable."""
    report: tuple[str, ...]
    """Notes about the histogram and the derived gears, one line each."""

    @classmethod
    def of(cls, config: RuntimeConfig, version_dir: Path) -> Gearing:
        """Return the gears of the model in `version_dir`.

        A histogram that cannot be read, or has other axes, is not used; the report says so.
        """
        report: list[str] = []
        histogram = _histogram(config, version_dir, report)
        limits = {ROWS: config.rows, **config.limits}
        tables: dict[tuple[str, ...], GearSizes] = {}
        for axes, table in config.gears.items():
            if isinstance(table, int):
                # Imported here: only models with derived gears need the optimizer.
                from ge_runtime.planning.gear_optimizer import derive_gears

                derived = derive_gears(axes, limits, table, histogram)
                report.append(derived.how)
                table = _rounded_up(axes, derived.gears, config)
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
            totals=config.axis_sizes.totals,
        )
        planned = gears.every()
        if config.oversize == "fallback":  # batches that fit no gear are executed at their size
            largest = Gear(config.rows, config.limits)
            planned = planned if largest in planned else (*planned, largest)
        return cls(tables, gears, planned, histogram, tuple(report))


def _rounded_up(axes: Sequence[str], derived: GearSizes, config: RuntimeConfig) -> GearSizes:
    """Return the derived gears with each size rounded up to a size that executions may have."""
    own = config.axis_sizes
    raised = {
        tuple(
            size if axis == ROWS else own.executed(axis, size)
            for axis, size in zip(axes, gear, strict=True)
        )
        for gear in derived
    }
    return tuple(sorted(raised))


def _histogram(config: RuntimeConfig, version_dir: Path, report: list[str]) -> Histogram | None:
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


def with_graph_gears(
    config: RuntimeConfig, engine: Engine, artifacts: Sequence[Artifact]
) -> RuntimeConfig:
    """Return the configuration with the gears of a compiled file, or of a graph's fixed batch.

    Raises ArtifactFault or ConfigFault, see `with_compiled_gears` and `with_fixed_batch`.
    """
    if engine.shapes is None:
        return with_fixed_batch(config, engine.signature)
    return with_compiled_gears(
        config, engine.shapes, shown(*(artifact.path for artifact in artifacts))
    )


def with_fixed_batch(config: RuntimeConfig, signature: Signature) -> RuntimeConfig:
    """Return the configuration with one gear of rows, if the graph's batch has a fixed size.

    Raises:
        ConfigFault: The configuration has oversize: fallback, but the graph executes only batches
            of the fixed size.
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
    if len(sizes) != 1:  # if there are several, `Contract` reports the faults
        return config
    size = sizes.pop() or 1
    if config.oversize == "fallback":
        found = f"'fallback' and a graph with a fixed batch of {size}"
        fault = f"parameter 'oversize': found {found}, expected 'error': no other size is executed"
        raise ConfigFault(config.model, [fault])
    return replace(config, gears={**config.gears, (ROWS,): ((size,),)})


Sizes: TypeAlias = dict[str, int]


def with_compiled_gears(
    config: RuntimeConfig, shapes: Sequence[Shapes], artifact: str
) -> RuntimeConfig:
    """Return the configuration with the gears of a compiled artifact.

    Args:
        config: The model's configuration.
        shapes: All input shapes that the artifact was compiled for, at least one.
        artifact: The artifact's name, for errors.

    Raises:
        ArtifactFault: The artifact lacks a gear that config.pbtxt names, or the configuration
            requires sizes that were not compiled, or it allows requests that fit no gear.
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
    gears = list(_chosen(config, compiled, artifact))
    _check_limits(config, axes, gears, artifact)
    table = tuple(sorted({tuple(sizes[axis] for axis in axes) for sizes in gears}))
    return replace(config, gears={axes: table})


def _sizes_of(config: RuntimeConfig, shapes: Sequence[Shapes]) -> Iterator[Sizes]:
    """Yield, for each set of shapes, the size of each axis of the inputs, including ROWS.

    Sets in which an axis has two sizes are skipped, because no execution has such shapes. Inputs
    with unknown names or other ranks are ignored here; `Contract` reports them.
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
            expected = config.batch_axes.dims(name, dims[name]) if name in dims else ()
            # Not strict: the tensor of a length may have one more dimension, of size 1.
            for dim, size in zip(expected, found, strict=False):
                if isinstance(dim, str):
                    agree &= sizes.setdefault(dim, size) == size
        if agree:
            yield {axis: sizes[axis] for axis in order if axis in sizes}


def _refuse_free_sizes(config: RuntimeConfig, artifact: str) -> None:
    if config.packing is not None:
        raise ArtifactFault(
            f"parameter 'packing': found {artifact}, which was compiled for certain sizes, "
            "expected a graph that takes rows of any total length"
        )
    if config.oversize == "fallback":
        raise ArtifactFault(
            f"parameter 'oversize': found {artifact}, which was compiled for certain sizes, "
            "expected 'error': it cannot execute other sizes"
        )


def _chosen(config: RuntimeConfig, compiled: Sequence[Sizes], artifact: str) -> Iterator[Sizes]:
    """Yield the compiled gears that config.pbtxt names; along axes without gears any size."""
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
            f"{artifact}: found no gear {_text(missing)} for {', '.join(axes)}, expected all that "
            f"config.pbtxt names, {_text(sorted(wanted))}; it was compiled for "
            f"{_text(sorted(there))}: run `ge-runtime build`, or name these gears"
        )
    for sizes in compiled:
        if tuple(sizes[axis] for axis in axes if axis in sizes) in wanted:
            yield sizes


def _check_limits(
    config: RuntimeConfig, axes: Sequence[str], gears: Sequence[Sizes], artifact: str
) -> None:
    # Rows are not checked: a request batch of max_batch_size rows may be executed in parts.
    largest = {axis: config.limits[axis] for axis in axes if axis != ROWS}
    if not any(all(sizes[axis] >= size for axis, size in largest.items()) for sizes in gears):
        wanted = ", ".join(f"{axis} {size}" for axis, size in largest.items())
        table = [tuple(sizes[axis] for axis in axes) for sizes in gears]
        raise ArtifactFault(
            f"{artifact}: found no gear that holds {wanted}, expected one, as the limits allow "
            f"requests of that size; it was compiled for {', '.join(axes)} {_text(sorted(table))}"
        )


def _text(gears: Sequence[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, gear)) for gear in gears)


def answer_slots(config: RuntimeConfig) -> int:
    """Return the number of slots, each with memory for the responses of one execution.

    With the device service there is one more slot, for use when all other slots are in use.
    """
    return ANSWER_SLOTS + (config.service_share is not None)


def overlap_lines(
    config: RuntimeConfig, artifacts: Sequence[Artifact], plan: Plan
) -> tuple[str, ...]:
    """Describe the memory for overlapping copies; empty for models whose copies cannot overlap."""
    if config.service_share is not None or any(each.engine != "om" for each in artifacts):
        return ()
    if not plan.workspace_bytes:  # a model with free shapes, whose copies cannot overlap
        return ()
    once = f"{plan.device_io_bytes:,} bytes of the card and {plan.io_bytes:,} of pinned memory"
    if config.io_buffers > 1:
        return (
            f"copies overlap with executions: {config.io_buffers} buffer sets of {once}; weights "
            "and workspace exist once",
        )
    return (
        "copies do not overlap with executions",
        f"  io_buffers: 2 would take {once} more",
        f"  a second executor would also take {plan.workspace_bytes:,} of workspace on the card",
    )


@dataclass(frozen=True, slots=True)
class Footprint:
    """The sizes of a model's tensors at any gear."""

    contract: Contract
    batched: bool
    """True if the graph's tensors have a batch dimension."""
    packed: str | None
    """The axis along which rows are concatenated; a gear has the extent of one row along it."""
    sequences: int = 0
    """The maximum number of sequences whose state is kept."""
    blocks: int = 0
    """The number of blocks of states that grow."""

    @classmethod
    def of(cls, config: RuntimeConfig, contract: Contract) -> Footprint:
        """Return the footprint of a model with this configuration."""
        growth = config.states.growth
        blocks = 0 if growth is None else growth.blocks
        return cls(contract, config.batched, config.packing, config.states.kept, blocks)

    def shapes(self, gear: Gear) -> dict[str, tuple[int, ...]]:
        """Return the shape of each graph input at a gear, by name."""
        geometry = self.geometry(gear)
        first = 0 if self.batched else 1  # batches without rows still have a first dim of 1
        return {feed.spec.name: feed.shape(geometry)[first:] for feed in self.contract.feeds}

    def plan(
        self, engine: Engine, gears: Iterable[Gear], *, answer_slots: int = ANSWER_SLOTS
    ) -> Plan:
        """Plan the memory of executions at these gears, one execution at a time.

        Outputs with UNKNOWN dims are not planned, because the engine allocates them. Analysing
        the graph takes milliseconds for each gear; nothing is executed.

        Args:
            engine: The open graph.
            gears: At least one gear.
            answer_slots: The number of executions whose responses are kept.
        """
        gears = tuple(gears)
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
            )
            + sum(self.growing_bytes(gears)),
        )

    def growing_bytes(self, gears: Iterable[Gear]) -> tuple[int, int]:
        """Return the memory of states that grow: of all blocks, and of the executor's group."""
        growing = self.contract.growing
        _, buffer = group_places(growing, [self.geometry(gear) for gear in gears])
        return pool_bytes(growing, self.blocks), 2 * buffer

    def _need(self, engine: Engine, gear: Gear) -> Need:
        geometry = self.geometry(gear)
        outputs = [spec for spec in self.contract.results if UNKNOWN not in spec.dims]
        grown = {state.spec.name for state in self.contract.growing}
        return Need(
            sizes={ROWS: gear.rows, **geometry.extents},
            inputs={
                feed.spec.name: (feed.spec.dtype, feed.shape(geometry))
                for feed in self.contract.feeds
                if feed.spec.name not in grown
            },
            outputs={spec.name: (spec.dtype, geometry.shape(spec)) for spec in outputs},
            intermediates=engine.intermediates(self.shapes(gear)),
            # Results that are cut to a request's sizes are copied, at most once for each row.
            copies={spec.name: gear.rows for spec in outputs if self.contract.copies(spec)},
            pieces=gear.rows,
        )

    def geometry(self, gear: Gear) -> Geometry:
        """Return the size of an execution at a gear."""
        extents = dict(gear.extents)
        if self.packed is not None:  # rows are concatenated: at most all of them at their limit
            extents[self.packed] *= gear.rows
        return Geometry(gear.rows, extents, packed=self.packed)


def adapt_threads(
    config: RuntimeConfig, engines: Sequence[Engine], footprint: Footprint, gears: Sequence[Gear]
) -> str:
    """Let engines on the CPU choose the threads of executions; return the decision, or "".

    Args:
        config: The model. Nothing is chosen if it gives the number of threads.
        engines: The open engines of its graph.
        footprint: The sizes of its tensors.
        gears: The planned gears.
    """
    if not config.adapts_threads or config.device_kind != "cpu":
        return ""
    largest = max(gears, key=lambda gear: gear.rows * math.prod(gear.extents.values()))
    decision = ""
    for engine in engines:
        if isinstance(engine, AdaptsThreads):
            decision = engine.adapt_threads(footprint.shapes(largest))
    return decision


_ABOUT_BYTES: Final = 16 * 2**20
"""Target workspace of a measured execution: large compared with the share that does not grow with
the rows, and executed in milliseconds."""
_MOST_GEARS: Final = 16
"""Number of the largest gears that are measured. The others keep the graph's workspace."""


def measured(
    arena: WorkspaceArena, execute: Callable[[Gear], object], gears: Sequence[Gear], plan: Plan
) -> Plan:
    """Return the plan with the measured workspace of executions, scaled from a few rows of a gear.

    An engine's workspace differs from the graph's results: fused kernels need less, scratch memory
    and own layouts need more. The ratio depends on the gear, but hardly on the rows.

    Args:
        arena: The arena of the workspace.
        execute: Executes once at a gear of the plan (`gears`), or with fewer rows.
    """
    largest = sorted(plan.gears, key=lambda gear: gear.workspace_bytes)[-_MOST_GEARS:]
    return plan.measured(
        [
            _measure(arena, execute, gear, planned) if planned in largest else None
            for gear, planned in zip(gears, plan.gears, strict=True)
        ]
    )


def _measure(
    arena: WorkspaceArena, execute: Callable[[Gear], object], gear: Gear, planned: GearPlan
) -> int | None:
    """Return the workspace of an execution at the gear; None if it cannot be measured."""
    for rows in _rows_to_try(gear, planned):
        smaller = Gear(rows, gear.extents)
        about_bytes = planned.workspace_bytes * rows // gear.rows
        try:
            found = arena.measure(lambda: execute(smaller), about_bytes)  # noqa: B023
        except (EngineFault, OutOfMemory):  # e.g. because the graph has a fixed number of rows
            continue
        return None if found is None else found * gear.rows // rows
    return None


def _rows_to_try(gear: Gear, planned: GearPlan) -> Iterator[int]:
    per_row = max(1, planned.workspace_bytes // gear.rows)
    rows = max(1, min(gear.rows, _ABOUT_BYTES // per_row))
    yield rows
    if rows < gear.rows and planned.workspace_bytes <= 4 * _ABOUT_BYTES:
        yield gear.rows
