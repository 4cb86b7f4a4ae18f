"""Opens all parts of a runtime in the order of their dependencies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ge_runtime import components
from ge_runtime.batching.admission import Admission
from ge_runtime.batching.cost import CostModel, LiveCost
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.partition import BatchPartitioner, InOrderPartitioner, Partitioner
from ge_runtime.config import EnginePlace, RuntimeConfig
from ge_runtime.engines.artifact import Artifact, experimental_notes, find_artifacts, for_chip
from ge_runtime.engines.backend import DeviceBackend, DeviceSettings, open_backend
from ge_runtime.engines.base import Engine, Estimating, Limited, Remote, Shapes, Unpadding
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.gearing import (
    Footprint,
    Gearing,
    adapt_threads,
    answer_slots,
    overlap_lines,
    with_graph_gears,
)
from ge_runtime.engines.growing_states import group_places, pool_bytes
from ge_runtime.errors import ArtifactFault, ConfigFault, OutOfMemory, PlanFault
from ge_runtime.memory.arena import AnswerSlots, Arena
from ge_runtime.memory.machine import MemoryLimit, ReadLimits, ensure_fits, host_bytes, read_limits
from ge_runtime.memory.plan import Plan
from ge_runtime.planning.histogram import Histogram
from ge_runtime.scheduling.executor import BatchRules, Executor, measured_plan, warm_up
from ge_runtime.scheduling.kept_costs import KeptCosts, cores_of_process
from ge_runtime.specs import Array, TensorSpec

if TYPE_CHECKING:
    # Loaded at run time only by models that need them.
    from ge_runtime.scheduling.sequences import SequenceStates
    from ge_runtime.scheduling.state_group import StateGroup
    from ge_runtime.workspace import Membership


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of an open runtime."""

    config: RuntimeConfig
    contract: Contract
    gears: Gears
    admission: Admission
    partitioner: Partitioner
    costs: LiveCost
    """The cost model of the partitioner, corrected by the times of executions."""
    kept_costs: KeptCosts | None
    """The file with the costs for the next start."""
    executors: tuple[Executor, ...]
    """One executor for each place of the configuration."""
    backends: tuple[DeviceBackend, ...]
    """The device backend of each executor."""
    plan: Plan
    """The memory plan of each executor."""
    pool: Membership | None
    sequences: SequenceStates | None
    """None if the graph has no state."""
    unplanned: tuple[str, ...]
    """Memory and work that no plan contains, as lines of the report."""
    histogram: Histogram | None
    """The sizes recorded earlier, from which gears were derived."""
    report: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """Decisions that users should know, as lines for the log."""


class _OneRow(Exception):
    """The graph executes one row only; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The folder and the configuration that a model is opened from."""

    version_dir: Path
    model_config: Mapping[str, object]
    """Triton's model configuration."""
    derived: Collection[str]
    cores: int
    """Number of cores that this process may use."""
    one_row: str = ""
    """The reason why the configuration was reduced to one row, for the log; "" if it was not."""

    def parsed(self) -> RuntimeConfig:
        """Return the parsed configuration. Raises ConfigFault."""
        return RuntimeConfig.parse(self.model_config, cores=self.cores, derived=self.derived)

    def changed(self, parameters: Mapping[str, str], *, one_row: str = "") -> _Source:
        """Return the source with these parameters added or replaced."""
        changed = with_parameters(self.model_config, parameters)
        return replace(self, model_config=changed, one_row=one_row)


@dataclass(frozen=True, slots=True)
class _OpenGraph:
    """The artifacts of a model, open at each place of its configuration."""

    artifacts: Sequence[Artifact]
    rewrites: Sequence[str]
    """Rewrites of the graphs, as lines of the report."""
    backends: Sequence[DeviceBackend]
    engines: Sequence[Engine]


def assemble(
    version_dir: Path,
    model_config: Mapping[str, object],
    *,
    instance_name: str,
    derived: Collection[str],
    limits: ReadLimits = read_limits,
) -> Assembly:
    """Open all parts of the model in `version_dir`, allocate its memory and warm up its engines.

    See `Runtime.open` for arguments and exceptions. After an exception nothing stays open. A graph
    that executes one row only is opened again for executions of one row.
    """
    source = _Source(version_dir, model_config, derived, cores_of_process())
    try:
        return _assemble(source, instance_name, limits)
    except _OneRow as found:
        reason = str(found)
    source = source.changed({"gears.batch": "1"}, one_row=reason)
    parts = _assemble(source, instance_name, limits)
    warning = (
        f"{instance_name}: load check: {reason}; it is served with one row in each execution, as "
        "with 'gears.batch: 1'"
    )
    return replace(parts, warnings=(warning,))


def _assemble(source: _Source, instance_name: str, limits: ReadLimits) -> Assembly:
    """Open all parts once. Raises _OneRow if the graph executes one row only."""
    config = source.parsed()
    components.prepare(config.device_kind)
    with ExitStack() as opened:  # closed if anything below fails
        graph = _open(source, config, instance_name, opened)
        engine, backend = graph.engines[0], graph.backends[0]
        # A compiled file contains its gears: they are known once it is open, and needed for all
        # planning below.
        config = with_graph_gears(config, engine, graph.artifacts)
        gearing = Gearing.of(config, source.version_dir)
        unplanned = _limits(engine, config, gearing.gears)
        contract = Contract.between(config, engine.signature)
        footprint = Footprint.of(config, contract)
        threads = adapt_threads(config, graph.engines, footprint, gearing.planned)
        plan = footprint.plan(engine, gearing.planned, answer_slots=answer_slots(config))
        free = limits()  # before planned memory counts as used
        rules = BatchRules.of(config, contract)
        executors = _executors(graph, footprint, rules, gearing.planned, plan)
        plan = measured_plan(executors[0], config, gearing.planned, plan)
        pool = _join_workspace(executors, config, plan, free, opened)
        kept_costs = KeptCosts.of(
            config, graph.artifacts, rules.terms, source.version_dir, backend.hardware, source.cores
        )
        kept = None if kept_costs is None else kept_costs.load()
        costs, cost_text = warm_up(executors, config, gearing.gears, rules.terms, kept)
        checked = _load_check(source, graph, executors, config, gearing.gears, footprint)
        # Only now, as engines may allocate in their first executions, and never later.
        sequences = _sequences(config, contract, executors[0].group, backend, plan)
        for each in graph.backends:
            each.freeze()
        opened.pop_all()
    if kept_costs is not None and kept is None:
        kept_costs.save(costs)
    elif kept_costs is not None:
        cost_text += f", kept in {kept_costs.path}"
    report = (
        *_graph_report(source, config, graph, threads),
        *gearing.report,
        *_memory_report(config, graph, plan, unplanned),
        *checked,
        f"an execution costs: {cost_text}",
    )
    return Assembly(
        config=config,
        contract=contract,
        gears=gearing.gears,
        admission=_admission(config, gearing, one_row=bool(source.one_row)),
        partitioner=_partitioner(config, gearing.gears, costs.cost, engine),
        costs=costs,
        kept_costs=kept_costs,
        executors=executors,
        backends=tuple(graph.backends),
        plan=plan,
        pool=pool,
        sequences=sequences,
        unplanned=tuple(unplanned),
        histogram=gearing.histogram,
        report=tuple(f"{instance_name}: {line}" for line in report),
    )


def with_parameters(
    model_config: Mapping[str, object], parameters: Mapping[str, str]
) -> dict[str, object]:
    """Return Triton's model configuration with these parameters added or replaced."""
    given = model_config.get("parameters")
    own = given if isinstance(given, Mapping) else {}
    added = {key: {"string_value": text} for key, text in parameters.items()}
    return {**model_config, "parameters": {**own, **added}}


def _open(
    source: _Source, config: RuntimeConfig, instance_name: str, opened: ExitStack
) -> _OpenGraph:
    """Open a backend and an engine for each place; `opened` closes them."""
    artifacts = find_artifacts(
        source.version_dir, config.engine, config.stages, device_kind=config.device_kind
    )
    rewrites: list[str] = []
    if config.unpad or config.int8:
        # Only loaded for models whose graphs are rewritten.
        from ge_runtime.rewriting.at_load import rewrite_graphs

        artifacts, rewrites = rewrite_graphs(config, artifacts, source.cores)
    backends: list[DeviceBackend] = []
    engines: list[Engine] = []
    for place in config.places:
        backend = _backend(place, artifacts[0].engine, config, instance_name)
        opened.callback(backend.close)
        try:
            engine = backend.open(
                for_chip(artifacts, backend.hardware),
                threads=config.intra_op_threads,
                outputs=config.results,
            )
        except OutOfMemory as fault:
            raise PlanFault(f"the graph does not fit: {fault}") from fault
        opened.callback(engine.close)
        backends.append(backend)
        engines.append(engine)
    artifacts = for_chip(artifacts, backends[0].hardware)  # all devices have the same chip
    return _OpenGraph(artifacts, rewrites, backends, engines)


def _backend(
    place: EnginePlace, engine: str, config: RuntimeConfig, instance_name: str
) -> DeviceBackend:
    share = config.service_share
    if share is None:
        settings = DeviceSettings.of(
            config,
            executor=place.executor,
            buffers=place.buffers,
            records=place == config.places[0],  # only the first engine's executions are recorded
        )
        return open_backend(place.device, settings, engine=engine)
    service_backend = components.load(components.PLACEMENTS["service"])
    backend: DeviceBackend = service_backend(
        place.device,
        instance_name,
        weight=share.weight,
        priority=share.priority,
        resident=config.resident,
    )
    return backend


def _limits(engine: Engine, config: RuntimeConfig, gears: Gears) -> Sequence[str]:
    """Return the memory and work outside of all plans.

    Raises ConfigFault if sizes would be compiled while serving.
    """
    if not isinstance(engine, Limited):
        return ()
    if engine.compiles_each_shape and not (gears.fixed and config.oversize == "error"):
        fault = (
            "parameter 'gears.<axes>': found sizes without gears, expected gears for batch and "
            "every axis, and 'oversize: error'. The engine compiles each set of sizes at its first "
            "execution, which takes seconds to minutes"
        )
        raise ConfigFault(config.model, [fault])
    return engine.unplanned


def _graph_report(
    source: _Source, config: RuntimeConfig, graph: _OpenGraph, threads: str
) -> Iterator[str]:
    """Yield lines about the engines and devices; `threads` is the decision about threads."""
    for artifact in graph.artifacts:
        yield f"engine {artifact.engine}, because {artifact.reason}"
    yield from graph.rewrites
    yield from experimental_notes(graph.artifacts, config.device_kind)
    if config.device_kind == "cpu":
        where = f"{config.intra_op_threads} intra-op thread(s) on {source.cores} core(s)"
    else:
        where = ", ".join(f"{backend.name} is {backend.hardware}" for backend in graph.backends)
    yield where + (threads and f"; {threads}")


def _memory_report(
    config: RuntimeConfig, graph: _OpenGraph, plan: Plan, unplanned: Sequence[str]
) -> Iterator[str]:
    yield "memory planned:"
    yield from (f"  {line}" for line in plan.table() if line)
    yield from (f"not planned: {line}" for line in unplanned)
    yield from overlap_lines(config, graph.artifacts, plan)
    yield from (f"stays in the device service: {line}" for line in config.resident.report)


def _admission(config: RuntimeConfig, gearing: Gearing, *, one_row: bool) -> Admission:
    return Admission(
        config.sources,
        config.limits,
        config.axis_lengths,
        config.rows if config.batched else 0,
        rows_key=config.rows_key,
        defaults=config.defaults,
        outputs=config.outputs,
        gears=gearing.gears if config.oversize == "error" else None,
        minimums=config.axis_sizes.minimums,
        steps=config.axis_sizes.steps,
        equal=config.equal_axes,
        ranges=config.ranges,
        shared=config.batch_axes.without,
        one_row=one_row,
        grows=config.states.growth is not None,
    )


def _load_check(
    source: _Source,
    graph: _OpenGraph,
    executors: Sequence[Executor],
    config: RuntimeConfig,
    gears: Gears,
    footprint: Footprint,
) -> tuple[str, ...]:
    """Return the verdict and the measurements, as lines of the report.

    Raises ConfigFault if answers depend on other requests, _OneRow if the graph executes one row
    only.
    """
    reduced = f"; reduced to one row in each execution: {source.one_row}" if source.one_row else ""
    if not config.load_check:
        return (f"load check: off, by config.pbtxt{reduced}",)
    # Only loaded for models that are checked.
    from ge_runtime.verification.load_check import LoadCheck

    first, *others = executors
    engine = first.engine

    def flops(gear: Gear) -> int | None:
        return engine.flops(footprint.shapes(gear)) if isinstance(engine, Estimating) else None

    def reconfigure(parameters: Mapping[str, str]) -> tuple[RuntimeConfig, Gears] | None:
        changed = source.changed(parameters)
        try:
            own = with_graph_gears(changed.parsed(), engine, graph.artifacts)
        except (ConfigFault, ArtifactFault):
            return None
        return own, Gearing.of(own, source.version_dir).gears

    contract = footprint.contract
    growing = [state.spec for state in contract.growing]
    checked = LoadCheck(
        first,
        config,
        gears,
        others=others,
        states=[*_fixed_states(contract), *growing],  # as inputs of the graph
        flops=flops,
        weights_bytes=engine.weights_bytes(),
        reconfigure=reconfigure,
    ).run()
    if checked.one_row:
        raise _OneRow(checked.one_row)
    return f"load check: {checked.report}{reduced}", f"rounding: {checked.measured}"


def _fixed_states(contract: Contract) -> list[TensorSpec]:
    """Return the states whose size does not change, with the names of the graph's inputs."""
    return [replace(state.spec, name=state.source) for state in contract.states]


def _sequences(
    config: RuntimeConfig,
    contract: Contract,
    group: StateGroup | None,
    backend: DeviceBackend,
    plan: Plan,
) -> SequenceStates | None:
    """Return the states of sequences, and give `group` the blocks of the growing states."""
    if not contract.states and group is None:
        return None
    # Only loaded for graphs with states.
    from ge_runtime.scheduling.sequences import SequenceStates

    specs, growth = _fixed_states(contract), None
    if group is not None and (growth := config.states.growth) is not None:
        from ge_runtime.scheduling.state_blocks import BlockPool

        nbytes = pool_bytes(contract.growing, growth.blocks)
        group.pool = BlockPool(
            contract.growing, growth.blocks, _allocate(backend, "blocks of states", nbytes, plan)
        )
        return SequenceStates(specs, config.states.kept, growth, group.pool)
    return SequenceStates(specs, config.states.kept)


def _executors(
    graph: _OpenGraph, footprint: Footprint, rules: BatchRules, gears: Sequence[Gear], plan: Plan
) -> tuple[Executor, ...]:
    """Return an executor of each engine, with its planned memory. Raises PlanFault."""
    largest = [footprint.shapes(gear) for gear in gears]
    return tuple(
        Executor(
            engine,
            footprint.contract,
            rules,
            *_planned_memory(engine, backend, largest, plan),
            _state_group(footprint, gears, backend, plan),
        )
        for engine, backend in zip(graph.engines, graph.backends, strict=True)
    )


def _state_group(
    footprint: Footprint, gears: Sequence[Gear], backend: DeviceBackend, plan: Plan
) -> StateGroup | None:
    """Return an executor's memory for states that grow; None if there are none."""
    growing = footprint.contract.growing
    if not growing:
        return None
    # Only loaded for graphs with states that grow.
    from ge_runtime.scheduling.state_group import StateGroup

    geometries = [footprint.geometry(gear) for gear in gears]
    nbytes = 2 * group_places(growing, geometries)[1]
    return StateGroup(growing, geometries, _allocate(backend, "growing states", nbytes, plan))


def _partitioner(
    config: RuntimeConfig, gears: Gears, cost: CostModel, engine: Engine
) -> Partitioner:
    equal = config.equal_axes
    unpadded = isinstance(engine, Unpadding) and engine.unpadded
    grows = config.states.growth is not None
    partitioner = BatchPartitioner(
        gears, cost, config.rows, equal, unpadded=unpadded, together=grows
    )
    if config.reproducible:
        # Only loaded for models whose answers are reproducible.
        from ge_runtime.batching.own_gears import OwnGearPartitioner

        return OwnGearPartitioner(partitioner, gears)
    if config.packing is None:
        return partitioner
    return InOrderPartitioner(partitioner, gears, equal)


def _join_workspace(
    executors: Sequence[Executor],
    config: RuntimeConfig,
    plan: Plan,
    free: Sequence[MemoryLimit],
    opened: ExitStack,
) -> Membership | None:
    """Give executors the workspace of the plan; return the membership in its pool, if any.

    Raises PlanFault if the machine has too little memory, and as `_join_pool` does.
    """
    on_host, engines = config.device_kind == "cpu", len(config.places)
    ensure_fits(host_bytes(plan, on_host=on_host, engines=engines), free, plan)
    pool = _join_pool(config, plan, opened)
    for executor in executors:
        executor.join_arena(plan)
    return pool


def _join_pool(config: RuntimeConfig, plan: Plan, opened: ExitStack) -> Membership | None:
    """Join the pool of the host if the model has one.

    Executors of a card and engines on a GPU have their own workspace.

    Raises NeverFits if the pool is too small, ConfigFault if the model's workspace is unknown.
    """
    if config.workspace_pool_bytes is None or config.device_kind != "cpu":
        return None
    if not plan.workspace_known:
        found = "parameter 'workspace_pool_mib': found a graph whose workspace cannot be computed"
        expected = "the package that reads the graph: `pip install 'ge-runtime[plan]'`"
        raise ConfigFault(config.model, [f"{found}, expected {expected}"])
    # Only loaded for models that have a pool.
    from ge_runtime.workspace import PROCESS_POOLS

    membership = PROCESS_POOLS.join("cpu", config.workspace_pool_bytes, config.model)
    opened.callback(membership.leave)
    membership.pool.require(plan.workspace_bytes, config.model)
    return membership


def _planned_memory(
    engine: Engine, backend: DeviceBackend, largest: Sequence[Shapes], plan: Plan
) -> tuple[Arena, AnswerSlots]:
    """Allocate memory of the backend for the inputs and answers of the engine's executions.

    For `largest` see `Engine.bind`. Raises PlanFault if the memory cannot be allocated.
    """
    try:
        engine.bind(largest, backend.memory)
        slots = plan.answer_slots
        if isinstance(engine, Remote):
            # One planned slot is the engine's own: see `gearing.answer_slots`.
            engine.reserve(plan.answers_bytes)
            slots -= 1
    except OutOfMemory as fault:
        raise _too_little(fault, plan) from fault
    inputs = _allocate(backend, "inputs", plan.inputs_bytes, plan)
    answers = [_allocate(backend, "answers", plan.answers_bytes, plan) for _ in range(slots)]
    return Arena(inputs, "inputs"), AnswerSlots(answers)


def _allocate(backend: DeviceBackend, label: str, nbytes: int, plan: Plan) -> Array:
    try:
        return backend.memory.allocate(label, nbytes).memory
    except OutOfMemory as fault:
        raise _too_little(fault, plan) from fault


def _too_little(fault: OutOfMemory, plan: Plan) -> PlanFault:
    table = "\n".join(plan.table())
    return PlanFault(f"the planned memory cannot be allocated: {fault}\n{table}")
