"""Opens all that a runtime consists of, each part before those that need it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.batching.admission import Admission, Block
from ge_runtime.batching.calibration import calibrate
from ge_runtime.batching.cost import CostModel
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.grouping import InOrder
from ge_runtime.batching.ragged import Geometry
from ge_runtime.batching.regroup import Regrouper
from ge_runtime.config import RuntimeConfig
from ge_runtime.devices import HostDevice
from ge_runtime.engines.artifact import find_artifacts
from ge_runtime.engines.base import Engine
from ge_runtime.engines.chain import ChainEngine
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.loader import open_engine
from ge_runtime.errors import ArtifactFault, EngineFault, OutOfMemory, PlanFault
from ge_runtime.memory.arena import Arena
from ge_runtime.memory.plan import Need, Plan
from ge_runtime.memory.slots import AnswerSlots
from ge_runtime.planning.derive import derive
from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.scheduling.lane import BatchRules, Lane
from ge_runtime.scheduling.window import Grouping
from ge_runtime.specs import ROWS, UNKNOWN, Array, DType, TensorSpec
from ge_runtime.workspace.registry import PROCESS_POOLS, Membership

ANSWER_SLOTS: Final = 3
"""Batches whose answers have room: one is written, one is being sent, one waits between."""

CALIBRATION_S: Final = 1.0
"""Spent at load to learn what launches cost, if config.pbtxt does not say."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of an open runtime."""

    config: RuntimeConfig
    contract: Contract
    gears: Gears
    admission: Admission
    grouping: Grouping
    rules: BatchRules
    lanes: tuple[Lane, ...]
    """One per device that config.pbtxt names."""
    devices: tuple[HostDevice, ...]
    plan: Plan
    """Of each lane."""
    pool: Membership | None
    planned: Histogram | None
    """The sizes that gears were chosen for."""
    report: tuple[str, ...]


def assemble(
    version_dir: Path,
    model_config: Mapping[str, object],
    *,
    instance_name: str,
    derived: Collection[str],
) -> Assembly:
    """All parts of the model in `version_dir`, with its memory allocated and its engines warm.

    See `Runtime.open`. Raises ConfigFault, ArtifactFault or PlanFault; then nothing stays open.
    """
    cores = _cores()
    config = RuntimeConfig.parse(model_config, cores=cores, derived=derived)
    planned = _histogram(version_dir, config)
    tables, told = _tables(config, planned)
    gears = Gears(list(config.limits), config.limits, config.rows, tables)
    artifacts = find_artifacts(version_dir, config.engine, config.stages)
    asked = [spec.name for spec in config.outputs]
    with ExitStack() as opened:  # closed again if anything below fails
        engines: list[Engine] = []
        for _ in config.devices:
            engine = open_engine(*artifacts, threads=config.intra_op_threads, outputs=asked)
            opened.callback(engine.close)
            engines.append(engine)
        contract = Contract.between(config, engines[0].signature)
        rules = BatchRules(
            batched=config.batched,
            answered=contract.answered,
            packing=config.packing,
            terms=_terms(config, contract),
        )
        sizes = _Sizes(config, contract, gears, rules)
        plan = sizes.plan(engines[0])
        pool = None
        if config.workspace_pool_bytes is not None:
            pool = PROCESS_POOLS.join("cpu", config.workspace_pool_bytes, config.model)
            opened.callback(pool.leave)
            pool.pool.require(plan.workspace_bytes, config.model)
        devices = tuple(HostDevice(name) for name in config.devices)
        lanes = tuple(
            _lane(engine, device, contract, rules, plan, sizes)
            for engine, device in zip(engines, devices, strict=True)
        )
        cost, timed = _warm_up(lanes, config, gears, rules)
        for device in devices:
            device.freeze()
        opened.pop_all()
    report = (
        *(f"engine {artifact.engine}, because {artifact.reason}" for artifact in artifacts),
        f"{config.intra_op_threads} intra-op thread(s) on {cores} core(s)",
        *told,
        "memory planned:",
        *(f"  {line}" for line in plan.table() if line),
        f"a launch costs: {timed}",
    )
    return Assembly(
        config=config,
        contract=contract,
        gears=gears,
        admission=_admission(config, gears, tables),
        grouping=_grouping(config, Regrouper(gears, cost, config.rows)),
        rules=rules,
        lanes=lanes,
        devices=devices,
        plan=plan,
        pool=pool,
        planned=planned,
        report=tuple(f"{instance_name}: {line}" for line in report),
    )


def _histogram(version_dir: Path, config: RuntimeConfig) -> Histogram | None:
    """What was recorded before; None if nothing was, or if it is of other axes."""
    if config.histogram is None:
        return None
    try:
        histogram = Histogram.load(version_dir / config.histogram)
    except (FileNotFoundError, HistogramFault):
        return None
    return histogram if histogram.axes == (ROWS, *config.limits) else None


def _tables(
    config: RuntimeConfig, histogram: Histogram | None
) -> tuple[dict[tuple[str, ...], Sequence[tuple[int, ...]]], list[str]]:
    """The tables of gears, those to be derived among them, and lines that tell of these."""
    tables: dict[tuple[str, ...], Sequence[tuple[int, ...]]] = {}
    told = []
    limits = {ROWS: config.rows, **config.limits}
    for axes, table in config.gears.items():
        if isinstance(table, int):
            derived = derive(axes, limits, table, histogram)
            told.append(derived.how)
            tables[axes] = derived.gears
        else:
            tables[axes] = table
    return tables, told


def _admission(
    config: RuntimeConfig, gears: Gears, tables: Mapping[tuple[str, ...], object]
) -> Admission:
    return Admission(
        config.sources,
        config.limits,
        config.axis_lengths,
        config.rows if config.batched else 0,
        rows_key=config.rows_key,
        defaults=config.defaults,
        outputs=config.outputs,
        gears=gears if config.oversize == "error" else None,
        gear_keys=tuple(tables),
    )


def _terms(config: RuntimeConfig, contract: Contract) -> tuple[tuple[str, ...], ...]:
    """The distinct tuples of axes among the requests' tensors that the graph is fed."""
    fed = {feed.spec.name for feed in contract.feeds}
    axes = (spec.axes for spec in config.sources if spec.name in fed)
    return tuple(dict.fromkeys(own for own in axes if own))


def _grouping(config: RuntimeConfig, regrouper: Regrouper) -> Grouping:
    return InOrder(regrouper, config.rows) if config.packing else regrouper


class _Sizes:
    """The largest executions that there can be, and what they take."""

    def __init__(
        self, config: RuntimeConfig, contract: Contract, gears: Gears, rules: BatchRules
    ) -> None:
        self._contract = contract
        self._rules = rules
        largest = Gear(config.rows, config.limits)
        more = (largest,) if config.oversize == "fallback" else ()
        self.gears = (*gears.every(), *more)

    def plan(self, engine: Engine) -> Plan:
        """What all gears take on this engine."""
        return Plan.of(
            (self._need(gear, engine) for gear in self.gears),
            weights_bytes=engine.weights_bytes(),
            answer_slots=ANSWER_SLOTS,
        )

    def shapes(self, gear: Gear) -> dict[str, tuple[int, ...]]:
        """The shapes of the graph's inputs at this gear."""
        geometry = self._geometry(gear)
        lead = 0 if self._rules.batched else 1
        return {feed.spec.name: feed.shape(geometry)[lead:] for feed in self._contract.feeds}

    def _need(self, gear: Gear, engine: Engine) -> Need:
        geometry = self._geometry(gear)
        outputs = [spec for spec in self._contract.outputs if UNKNOWN not in spec.dims]
        return Need(
            sizes={ROWS: gear.rows, **gear.extents},
            inputs={
                feed.spec.name: (feed.spec.dtype, feed.shape(geometry))
                for feed in self._contract.feeds
            },
            outputs={spec.name: (spec.dtype, geometry.shape(spec)) for spec in outputs},
            intermediates=engine.intermediates(self.shapes(gear)),
            # Answers that are cut along an axis are copied, at most one per row.
            copies={spec.name: gear.rows for spec in outputs if spec.axes},
        )

    def _geometry(self, gear: Gear) -> Geometry:
        packed, extents = self._rules.packing, dict(gear.extents)
        if packed is not None:
            extents[packed] *= gear.rows
        return Geometry(gear.rows, extents, packed=packed)


def _lane(
    engine: Engine,
    device: HostDevice,
    contract: Contract,
    rules: BatchRules,
    plan: Plan,
    sizes: _Sizes,
) -> Lane:
    """The engine with its memory on the device. Raises PlanFault if it cannot be had."""
    try:
        if isinstance(engine, ChainEngine):
            handover = engine.plan(map(sizes.shapes, sizes.gears))
            arena = device.allocate("between stages", handover.packing.peak)
            engine.bind(handover, arena.memory)
        inputs = device.allocate("inputs", plan.inputs_bytes)
        answers = [device.allocate("answers", plan.answers_bytes) for _ in range(plan.answer_slots)]
    except OutOfMemory as fault:
        table = "\n".join(plan.table())
        raise PlanFault(f"the planned memory cannot be allocated: {fault}\n{table}") from fault
    return Lane(
        engine,
        contract,
        rules,
        inputs=Arena(inputs.memory, "inputs"),
        answers=AnswerSlots([buffer.memory for buffer in answers]),
    )


def _warm_up(
    lanes: Iterable[Lane], config: RuntimeConfig, gears: Gears, rules: BatchRules
) -> tuple[CostModel, str]:
    """Execute gears once on each lane, and learn what a launch costs; also says so."""
    first, *others = lanes

    def launch(lane: Lane, gear: Gear) -> float:
        block = _blank(config, gear)
        start = time.perf_counter()
        lane.execute([block], gear)
        return time.perf_counter() - start

    def warm(lane: Lane) -> None:
        if config.warmup == "gears":
            for gear in gears.every() if gears.fixed else [_least(gears)]:
                launch(lane, gear)

    try:
        warm(first)
        if config.cost is None:
            calibration = calibrate(
                lambda gear: launch(first, gear), gears, rules.terms, budget_s=CALIBRATION_S
            )
            cost, timed = calibration.cost, str(calibration)
        else:
            cost = CostModel(*config.cost, rules.terms)
            timed = f"{cost}, given by config.pbtxt"
        for lane in others:
            warm(lane)
    except (EngineFault, OutOfMemory) as fault:
        raise ArtifactFault(f"the graph fails when it is warmed up: {fault}") from fault
    return cost, timed


def _least(gears: Gears) -> Gear:
    """The smallest execution that there is."""
    ones = dict.fromkeys(gears.limits, 1)
    return gears.fit(1, ones) or Gear(1, ones)


def _blank(config: RuntimeConfig, gear: Gear) -> Block:
    """Rows of zeros that fill the gear."""

    def tensor(spec: TensorSpec) -> Array:
        return np.zeros((gear.rows, *spec.shape(gear.extents)), spec.dtype.numpy)

    fed = [
        spec
        for spec in config.sources
        if spec.dtype is not DType.BYTES and UNKNOWN not in spec.dims
    ]
    tensors = {spec.name: tensor(spec) for spec in fed}
    lengths = {}
    for axis, name in config.axis_lengths.items():
        lengths[axis] = [gear.extents[axis]] * gear.rows
        tensors[name] += np.asarray(gear.extents[axis], tensors[name].dtype)
    return Block(gear.rows, gear.extents, lengths, tensors)


def _cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
