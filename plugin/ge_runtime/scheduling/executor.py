"""Executors: each has one engine and its planned memory, and runs one execution at a time.

Inputs are written to an arena that the next batch reuses. Outputs are written to slots, as answers
are views of them and outlive the batch. `warm_up` runs the first executions, in which engines
prepare themselves and the cost of executions is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from ge_runtime.batching.admission import Block
from ge_runtime.batching.calibration import Sample, calibrate
from ge_runtime.batching.cost import CostModel, LiveCost, elements_of
from ge_runtime.batching.feeds import Joined, rows_first
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.groups import Reason, reason_of
from ge_runtime.batching.packing import unpack
from ge_runtime.batching.ragged import Geometry, Layout, scatter
from ge_runtime.config import PaddingRule, RuntimeConfig
from ge_runtime.counts import Counts
from ge_runtime.engines.base import Engine, InArena, Remote, WorkspaceArena
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.gearing import measured
from ge_runtime.errors import EngineFault, OutOfMemory
from ge_runtime.memory.arena import AnswerSlots, Arena
from ge_runtime.memory.plan import ALIGNMENT, Plan
from ge_runtime.specs import ROWS, UNKNOWN, Array, DType, Tensors, TensorSpec

if TYPE_CHECKING:
    # Only loaded for graphs with states that grow.
    from ge_runtime.scheduling.state_group import StateGroup

Limits: TypeAlias = tuple[Callable[[], float], Callable[[], bool]]
"""The arguments of `Remote.waiting`."""

CALIBRATION_S: Final = 1.0
"""Seconds spent on measuring executions if config.pbtxt does not give their cost."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Properties shared by all batches of a model."""

    batched: bool
    """True if the graph's tensors have a batch dimension."""
    packing: str | None
    """The axis along which rows are joined instead of padded."""
    terms: tuple[tuple[str, ...], ...]
    """The distinct tuples of axes of the request tensors that the graph takes."""
    padding: Mapping[str, PaddingRule]
    """By axis, the rule for different sizes along it within one execution."""
    computes_here: bool
    """True if this process computes the executions, not a device or the device service."""
    reproducible: bool = False
    """True if each request is executed at the gear that it would have alone."""

    @classmethod
    def of(cls, config: RuntimeConfig, contract: Contract) -> BatchRules:
        """Return the rules of a configuration and its contract with the graph."""
        fed = {feed.spec.name for feed in contract.feeds}
        axes = (spec.axes for spec in config.sources if spec.name in fed)
        terms = tuple(dict.fromkeys(own for own in axes if own))
        here = config.device_kind == "cpu" and config.service_share is None
        return cls(config.batched, config.packing, terms, config.padding, here, config.reproducible)


class _Size(NamedTuple):
    """The common properties of executions with the same rows and sizes."""

    layout: Layout
    """The layout of one request without padding. It has the block only during the execution."""
    feeds: Mapping[str, tuple[int, ...]]
    """The shape of each feed in that layout."""
    results: Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]]
    """The name, the type and the shape of each result in a slot."""
    nbytes: int
    """The bytes of these results, alignment included."""
    copied: Sequence[tuple[TensorSpec, int]]
    """The results from which answers may be copied, and the bytes of each."""
    elements: int
    """The executed elements."""
    context: AbstractContextManager[None]
    """The context in which the engine runs, unless it is remote."""


class Executor:
    """Executes batches of one model on one engine. For one thread at a time."""

    def __init__(
        self,
        engine: Engine,
        contract: Contract,
        rules: BatchRules,
        inputs: Arena,
        answers: AnswerSlots,
        group: StateGroup | None = None,
    ) -> None:
        """Create an executor.

        Args:
            engine: The open graph.
            contract: Its feeds and results.
            rules: The rules of its batches.
            inputs: Memory for the inputs of the largest batch.
            answers: Slots for the outputs of batches.
            group: Memory for states that grow; None if there are none.
        """
        self.engine = engine
        """The open graph, for callers with exclusive use of the executor."""
        self.contract = contract
        """The feeds and results of the graph."""
        self._rules = rules
        self._inputs = inputs
        self._answers = answers
        self._slot: Arena | None = None  # holds the answers of the request batch in progress
        self._remote = engine if isinstance(engine, Remote) else None
        self.group = group
        """The growing states of sequences; None if no state grows."""
        grown = {state.spec.name for state in contract.growing}
        # Each feed with its name, its type, and whether it is a tensor of requests.
        self._feeds = [
            (feed, feed.spec.name, feed.spec.dtype.numpy, isinstance(feed, Joined))
            for feed in contract.feeds
            if feed.spec.name not in grown
        ]
        # True if the engine reads the tensors of a lone request without padding in place.
        self._binds = (
            rules.computes_here
            and not rules.reproducible
            and rules.packing is None
            and not contract.batch_axes.given
        )
        self._planned = [spec for spec in contract.results if UNKNOWN not in spec.dims]
        self._outputs: dict[str, Array | None] = {spec.name: None for spec in contract.outputs}
        self.arena: WorkspaceArena | None = engine.arena if isinstance(engine, InArena) else None
        """The shared arena with the engine's workspace; None if the engine has its own."""
        self._plan: Plan | None = None  # of workspace in the arena
        self._sizes: dict[tuple[object, ...], _Size] = {}
        self.sample = Sample(0.0, None)
        """The time of the last execution, with gather and scatter."""

    def variant(
        self, *, engine: Engine | None = None, contract: Contract | None = None
    ) -> Executor:
        """Return an executor that uses the memory of this executor, while this executor is idle.

        The caller closes `engine`, and does not close the new executor.
        """
        new = Executor(
            engine or self.engine,
            contract or self.contract,
            self._rules,
            self._inputs,
            self._answers,
            self.group,
        )
        new._plan = self._plan if engine is None else None
        return new

    @property
    def lost(self) -> bool:
        """True if the engine is lost, permanently or until its process is restarted."""
        return self.engine.lost

    def join_arena(self, plan: Plan) -> None:
        """Reserve the planned workspace in the shared arena, if the engine uses one."""
        if self.arena is not None and plan.workspace_known:
            self._plan = plan
            self._sizes.clear()
            self.arena.join(self.engine, plan.workspace_bytes)

    @property
    def spilled(self) -> int:
        """Number of batches that found no free slot and allocated memory."""
        return self._answers.spilled

    def execute(
        self, blocks: Sequence[Block], gear: Gear, limits: Limits | None = None
    ) -> tuple[list[dict[str, Array]], Counts]:
        """Execute a batch.

        Args:
            blocks: The requests.
            gear: The size of the batch, unless the blocks need more.
            limits: The arguments of `Remote.waiting`, for engines that wait for their device; None
                for waiting without an end.

        Returns:
            The outputs of each block by name, [rows, *dims] with the block's own sizes, and the
            counts. The memory of outputs is not reused while they are referenced.

        Raises:
            EngineFault: The engine failed. All exceptions of the engine are possible; the blocks
                can be executed again.
        """
        if self.group is not None and len(blocks) > 1:
            order = self.group.in_order(blocks)
            if order != sorted(order):
                ordered, counts = self.execute([blocks[at] for at in order], gear, limits)
                answers = [ordered[order.index(at)] for at in range(len(order))]
                return answers, counts
        here = self._rules.computes_here
        wall_s, cpu_s = time.perf_counter(), time.process_time() if here else 0.0
        lone = blocks[0] if self._binds and len(blocks) == 1 else None
        if lone is not None and _fills_gear(lone, gear):
            size = self._sizes.get((gear.rows, *gear.extents.items())) or self._size_of(gear)
            layout = size.layout
            layout.blocks = blocks
        else:
            extents, lone, packed = gear.extents, None, self._rules.packing
            if packed is not None:  # its size in a batch is the sum of the rows, not the gear's
                extents = {axis: size for axis, size in extents.items() if axis != packed}
            layout = Layout.of(blocks, rows=gear.rows, extents=extents, packed=packed)
            key = (layout.rows, *layout.extents.items())
            size = self._sizes.get(key) or self._size_of(layout)
        try:
            answers, counts = self._execute(layout, size, lone, limits)
        finally:
            size.layout.blocks = ()  # their memory is the server's
        wall_s = time.perf_counter() - wall_s
        self.sample = Sample(wall_s, time.process_time() - cpu_s if here else None)
        # At most the CPU time: in the rest of the time other processes used the cores.
        counts.measured_seconds = min(wall_s, self.sample.cpu_s or wall_s)
        return answers, counts

    def _execute(
        self, layout: Layout, size: _Size, lone: Block | None, limits: Limits | None
    ) -> tuple[list[dict[str, Array]], Counts]:
        """Execute a batch. `lone` is its only request, if nothing of it is padded."""
        batched = self._rules.batched
        self._inputs.used_bytes = 0  # the engine has finished reading: `run` is synchronous
        inputs: dict[str, Array] = {}
        for feed, name, dtype, joined in self._feeds:
            batch = lone.tensors[name] if lone is not None and joined else None
            if batch is None or not _is_bindable(batch):
                shape = feed.shape(layout) if lone is None else size.feeds[name]
                batch = self._inputs.carve(dtype, shape)
                feed.write(layout, batch)
            inputs[name] = batch if batched else _without_rows(batch)
        if self.group is not None:
            inputs |= self.group.past(layout)
        needed = size.nbytes
        if lone is None:
            for spec, whole in size.copied:
                needed += self._copied_bytes(layout, spec, whole)
        # A request batch with different sizes becomes many small batches, which share a slot.
        slot = self._slot
        if slot is None or slot.free_bytes < needed:
            slot = self._slot = self._answers.take()
        carved = slot.used_bytes
        try:
            return self._run(layout, size, inputs, slot, lone, limits)
        except BaseException:
            slot.reset(carved)  # there is no answer of this batch
            raise

    def end_batch(self) -> None:
        """End the request batch: answers of the next batch get another slot. From any thread."""
        self._slot = None

    def _run(
        self,
        layout: Layout,
        size: _Size,
        inputs: Tensors,
        slot: Arena,
        lone: Block | None,
        limits: Limits | None,
    ) -> tuple[list[dict[str, Array]], Counts]:
        """Run the engine on `inputs`, with results in `slot`. `lone` is as in `_execute`."""
        contract, batched = self.contract, self._rules.batched
        outputs = self._outputs.copy()
        for name, dtype, shape in size.results:
            own = slot.carve(dtype, shape)
            outputs[name] = own if batched else _without_rows(own)
        if self.group is not None:
            outputs |= self.group.present(layout)
        executed = slot.used_bytes
        context = size.context
        if self._remote is not None:
            self._remote.expect_rows(layout.filled)
            if limits is not None:
                context = self._remote.waiting(*limits)
        start = time.perf_counter()
        with context:
            results = self.engine.run(inputs, outputs)
        seconds = time.perf_counter() - start
        answers: list[dict[str, Array]] = [{}] if lone is not None else [{} for _ in layout.blocks]
        for spec in contract.outputs:
            planned = outputs[spec.name]
            if lone is not None and planned is not None:
                answers[0][spec.name] = planned
                continue
            batch = self._with_rows(spec, results[spec.name], layout)
            # Memory that the engine chose is copied: it may belong to inputs, and is then reused.
            carve = None if UNKNOWN in spec.dims else slot.carve
            split = unpack if layout.packs(spec) else scatter
            for answer, own in zip(answers, split(layout, spec, batch, carve), strict=True):
                answer[spec.name] = own if batched else _without_rows(own)
        # Last, so that an execution that fails leaves all states unchanged.
        for state in contract.states:
            batch = self._with_rows(state.spec, results[state.spec.name], layout)
            for block, span in zip(layout.blocks, layout.spans, strict=True):
                if block.state is not None:
                    block.state[state.source][...] = batch[span]
        if self.group is not None:
            self.group.commit(layout)
        counts = Counts(
            launches=1,
            launch_seconds=seconds,
            useful_elements=self._useful_elements(layout) if lone is None else size.elements,
            executed_elements=size.elements,
            copied_bytes=self._inputs.used_bytes + slot.used_bytes - executed,
        )
        counts.launch_rows[layout.filled] = 1
        if len(layout.blocks) > 1:
            counts.shared_launches[self._reason(layout).value] = 1
        return answers, counts

    def _size_of(self, batch: Layout | Gear) -> _Size:
        rows, extents = batch.rows, batch.extents
        geometry = Geometry(rows, extents, packed=self._rules.packing)
        results, copied, nbytes = [], [], 0
        for spec in self._planned:
            dtype, shape = spec.dtype.numpy, self.contract.result_shape(geometry, spec)
            results.append((spec.name, dtype, shape))
            whole = math.prod(shape) * dtype.itemsize + ALIGNMENT
            nbytes += whole
            if self.contract.copies(spec):
                copied.append((spec, whole))
        context: AbstractContextManager[None] = _NO_CONTEXT
        if self.arena is not None:
            about = 0 if self._plan is None else self._plan.workspace_about({ROWS: rows, **extents})
            context = self.arena.execution(about)
        full = Layout.of([Block(rows, extents, {}, {}, extents)])
        if len(self._sizes) >= _MOST_SIZES:
            self._sizes.clear()
        feeds = {feed.spec.name: feed.shape(full) for feed in self.contract.feeds if self._binds}
        size = _Size(full, feeds, results, nbytes, copied, self._elements(geometry), context)
        self._sizes[(rows, *extents.items())] = size
        return size

    def poison(self, byte: int | None) -> None:
        """For tests: fill memory with `byte` before it is written; None disables this.

        Applies from the next batch on. Shows memory that neither a feed nor the graph writes.
        """
        self._inputs.poison = byte
        self._answers.poison = byte
        self._slot = None

    def close(self) -> None:
        """Free the graph and release all memory. Safe to call twice."""
        self.engine.close()
        self._slot = None
        self._inputs.close()
        self._answers.close()

    def _copied_bytes(self, layout: Layout, spec: TensorSpec, whole: int) -> int:
        """Return the largest size of the answers that are copied from a result of `whole` bytes."""
        parts = whole
        if layout.packs(spec):  # answers are as large as the requests' tensors, padding included
            shapes = ((block.rows, *spec.shape(block.sizes)) for block in layout.blocks)
            parts = sum(map(math.prod, shapes)) * spec.dtype.numpy.itemsize
        return parts + len(layout.blocks) * ALIGNMENT

    def _reason(self, layout: Layout) -> Reason:
        if self._rules.reproducible:
            return Reason.REPRODUCIBLE
        return reason_of([block.needs for block in layout.blocks], self._rules.padding)

    def _useful_elements(self, layout: Layout) -> int:
        if not self._rules.terms:
            return layout.filled
        useful = 0
        for term in self._rules.terms:
            columns = [layout.row_ends[axis][: layout.filled] for axis in term]
            useful += sum(map(math.prod, zip(*columns, strict=True)))
        return useful

    def _elements(self, geometry: Geometry) -> int:
        terms, packed = self._rules.terms, geometry.packed
        if packed is None or not terms:
            return geometry.rows * elements_of(terms, geometry.extents)
        return sum(
            (1 if packed in term else geometry.rows) * elements_of((term,), geometry.extents)
            for term in terms
        )

    def _with_rows(self, spec: TensorSpec, result: Array, layout: Layout) -> Array:
        """Add the dimension for rows that `_without_rows` removes."""
        batch = result if self._rules.batched else result[None]
        axes = self.contract.batch_axes
        if spec.name in axes.given:
            batch = rows_first(batch, axes.of(spec.name), layout.rows)
        if UNKNOWN in spec.dims:  # the engine chose the shape
            expected = layout.shape(spec)
            if len(batch.shape) != len(expected) or any(
                size not in (UNKNOWN, found)
                for found, size in zip(batch.shape, expected, strict=True)
            ):
                raise EngineFault(
                    f"output '{spec.name}': found shape {list(result.shape)}, expected {spec}"
                )
        return batch


_MOST_SIZES: Final = 1024
"""Sizes of executions that are remembered."""


_NO_CONTEXT: Final = nullcontext()


def _fills_gear(block: Block, gear: Gear) -> bool:
    fills = block.rows == gear.rows and block.sizes == gear.extents
    for axis, ends in block.lengths.items():
        fills = fills and sum(ends) == block.rows * block.sizes[axis]
    return fills


def _without_rows(batch: Array) -> Array:
    """Remove the dimension for rows, for graphs whose tensors have none."""
    return batch.reshape(batch.shape[1:])


_BINDABLE: Final = 16
"""Alignment in bytes of Triton's tensors, and of the vectors with which ONNX Runtime sums; sums of
tensors at other addresses could be rounded differently."""


def _is_bindable(tensor: Array) -> bool:
    # The last term reads the address, as `tensor.ctypes` takes three calls of Python functions.
    return tensor.flags.carray and not tensor.__array_interface__["data"][0] % _BINDABLE


def warm_up(
    executors: Sequence[Executor],
    config: RuntimeConfig,
    gears: Gears,
    terms: tuple[tuple[str, ...], ...],
    kept: LiveCost | None = None,
) -> tuple[LiveCost, str]:
    """Execute every gear once on each executor, and determine the cost of executions.

    With axes without gears, only the smallest execution is warmed up. Rows are zeros.

    Args:
        executors: The executors of the model.
        config: The model.
        gears: Its sizes.
        terms: See CostModel.
        kept: The costs of an earlier start; then nothing is measured.

    Returns:
        The costs, and their text for the report.

    Raises:
        ArtifactFault: The graph cannot execute such rows.
    """
    first, *others = executors
    tried = [gears.smallest]

    def execute(gear: Gear, executor: Executor = first) -> Sample:
        tried.append(gear)
        return execute_blank(executor, config, gear)

    warmed_up = gears.every() if gears.fixed else (gears.smallest,)
    try:
        if config.warmup == "gears":
            for gear in warmed_up:
                execute(gear)
        if config.cost is not None:
            given = CostModel(*config.cost[:3], terms, config.cost.growth_s)
            costs, text = LiveCost(given), f"{given}, given by config.pbtxt"
        elif kept is not None:
            costs, text = kept, str(kept.cost)
        else:
            calibration = calibrate(execute, gears, terms, budget_s=CALIBRATION_S)
            # Packed batches learn no costs: costs do not change their order, and their size is not
            # a multiple of a row.
            learns = config.packing is None
            costs = LiveCost(calibration.cost, calibration.evidence if learns else None)
            text = str(calibration)
        if config.warmup == "gears":
            for executor in others:
                for gear in warmed_up:
                    execute(gear, executor)
    except (EngineFault, OutOfMemory) as fault:
        # Imported here: only models whose warm-up fails need it.
        from ge_runtime.scheduling.warm_up_fault import warm_up_fault

        raise warm_up_fault(fault, tried[-1], config, execute) from fault
    return costs, text


def measured_plan(
    executor: Executor, config: RuntimeConfig, gears: Sequence[Gear], plan: Plan
) -> Plan:
    """Return the plan with the measured workspace of these gears in the shared arena.

    Unchanged if the engine uses no arena, or its workspace is not planned. Rows are zeros.
    """
    arena = executor.arena
    if arena is None or not plan.workspace_known:
        return plan
    return measured(arena, lambda gear: execute_blank(executor, config, gear), gears, plan)


def execute_blank(executor: Executor, config: RuntimeConfig, gear: Gear) -> Sample:
    """Execute generated rows that fill a gear; return the time, with gather and scatter."""
    executor.execute([_blank(config, gear)], gear)
    return executor.sample


def _blank(config: RuntimeConfig, gear: Gear) -> Block:
    """Return rows that fill the gear: zeros, or the allowed value nearest to 0."""

    def zeros(spec: TensorSpec) -> Array:
        shape = (gear.rows, *spec.shape(gear.extents))
        if spec.name in config.ranges:
            return np.full(shape, config.ranges[spec.name].nearest(0), spec.dtype.numpy)
        return np.zeros(shape, spec.dtype.numpy)

    specs = {
        spec.name: spec
        for spec in config.sources
        # An input that bypasses the graph may be of any type and size.
        if spec.dtype is not DType.BYTES and UNKNOWN not in spec.dims
    }
    tensors = {name: zeros(spec) for name, spec in specs.items()}
    lengths = {}
    for axis, name in config.axis_lengths.items():
        lengths[axis] = [gear.extents[axis]] * gear.rows
        tensors[name][...] = min(gear.extents[axis], specs[name].dtype.largest)
    return Block(gear.rows, gear.extents, lengths, tensors, needs=gear.extents)
