"""The composition root: one open graph that answers windows of requests of any sizes."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from ge_runtime.batching.admission import Admission, Block
from ge_runtime.batching.grouping import group
from ge_runtime.batching.ragged import Layout, scatter
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.artifact import find_artifact
from ge_runtime.engines.base import Engine
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.loader import open_engine
from ge_runtime.errors import EngineFault, RequestFault, RuntimeClosed, RuntimeFault
from ge_runtime.memory.buffers import PlannedBuffers
from ge_runtime.memory.plan import MemoryPlan
from ge_runtime.specs import UNKNOWN, Array, Tensors, TensorSpec

Answer: TypeAlias = dict[str, Array] | RuntimeFault


class Runtime:
    """One instance of a model: its graph, opened, and the memory of its largest batch.

    Made by `open`. Safe from any thread; executions of one runtime take turns.
    """

    def __init__(
        self,
        name: str,
        config: RuntimeConfig,
        engine: Engine,
        contract: Contract,
        buffers: PlannedBuffers,
        report: Sequence[str],
    ) -> None:
        self._name = name
        self._config = config
        self._contract = contract
        self._buffers = buffers
        self._report = tuple(report)
        self._admission = Admission(
            config.inputs, config.limits, config.axis_lengths, config.max_batch_size
        )
        self._answered = {axis for spec in contract.outputs for axis in spec.axes}
        self._lock = threading.Lock()
        self._engine: Engine | None = engine  # None once closed; guarded by the lock

    @classmethod
    def open(
        cls,
        version_dir: Path,
        model_config: Mapping[str, object],
        *,
        instance_name: str,
        derived: Collection[str] = (),
    ) -> Runtime:
        """Read the configuration, open the artifact, hold both together, allocate all memory.

        version_dir: the folder with the artifact. model_config: Triton's JSON, parsed.
        instance_name: for people. derived: the outputs that the model's own code makes.
        Raises ConfigFault, ArtifactFault or PlanFault; then nothing stays open.
        """
        cores = _cores()
        config = RuntimeConfig.parse(model_config, cores=cores, derived=derived)
        artifact = find_artifact(version_dir, config.engine)
        engine = open_engine(
            artifact,
            threads=config.intra_op_threads,
            outputs=[spec.name for spec in config.outputs],
        )
        try:
            contract = Contract.between(config, engine.signature)
            plan = MemoryPlan.of(
                [feed.spec for feed in contract.feeds],
                [spec for spec in contract.outputs if UNKNOWN not in spec.dims],
                rows=config.rows,
                limits=config.limits,
            )
            buffers = PlannedBuffers(plan)
        except RuntimeFault:
            engine.close()
            raise
        report = (
            f"{instance_name}: engine {artifact.engine}, because {artifact.reason}",
            f"{instance_name}: {config.intra_op_threads} intra-op thread(s) on {cores} core(s)",
            f"{instance_name}: memory planned for batches of up to {config.rows} row(s):",
            *(f"{instance_name}:   {line}" for line in plan.table()),
        )
        return cls(instance_name, config, engine, contract, buffers, report)

    @property
    def config(self) -> RuntimeConfig:
        """What config.pbtxt says."""
        return self._config

    @property
    def report(self) -> tuple[str, ...]:
        """What was decided at load, line by line: the engine and why, threads, the memory plan."""
        return self._report

    def infer(self, requests: Sequence[Tensors]) -> list[Answer]:
        """One answer per request, in order: its outputs by name, or its own fault.

        requests: each all inputs by name, [rows, *dims]. Each is checked by itself; the sound
        ones are executed together, in as few executions as max_batch_size allows. When an
        execution fails, the requests in it share its fault. Outputs are [rows, *dims], with the
        request's own sizes, in memory of their own.
        Raises RuntimeClosed after `close`. Blocks until all is executed; from any thread.
        """
        verdicts = [self._judge(request) for request in requests]
        with self._lock:
            if self._engine is None:
                raise RuntimeClosed(f"{self._name} is closed")
            answers = iter(
                self._execute(self._engine, [v for v in verdicts if isinstance(v, Block)])
            )
        return [next(answers) if isinstance(v, Block) else v for v in verdicts]

    def close(self) -> None:
        """Free the graph, after the execution in progress. Safe to call twice."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    def _judge(self, request: Tensors) -> Block | RequestFault:
        try:
            return self._admission.admit(request)
        except RequestFault as fault:
            return fault

    def _execute(self, engine: Engine, blocks: Sequence[Block]) -> list[Answer]:
        answers: list[Answer] = []
        for run in group([block.rows for block in blocks], self._config.rows):
            members = blocks[run.start : run.stop]
            try:
                answers.extend(self._execute_batch(engine, members))
            except RuntimeFault as fault:
                answers.extend([fault] * len(members))
        return answers

    def _execute_batch(self, engine: Engine, blocks: Sequence[Block]) -> list[dict[str, Array]]:
        plan, layout = self._buffers.plan, Layout.of(blocks, self._answered)
        inputs: dict[str, Array] = {}
        for feed in self._contract.feeds:
            shape = (layout.rows, *feed.spec.shape(layout.extents))
            batch = self._buffers.view(plan.inputs[feed.spec.name], shape)
            feed.write(layout, batch)
            inputs[feed.spec.name] = self._bare(batch)
        outputs: dict[str, Array | None] = {}
        for spec in self._contract.outputs:
            outputs[spec.name] = None
            if region := plan.outputs.get(spec.name):
                shape = (layout.rows, *spec.shape(layout.extents))
                outputs[spec.name] = self._bare(self._buffers.view(region, shape))
        results = engine.run(inputs, outputs)
        answers: list[dict[str, Array]] = [{} for _ in blocks]
        for spec in self._contract.outputs:
            batch = self._with_rows(spec, results[spec.name])
            for answer, own in zip(answers, scatter(layout, spec, batch), strict=True):
                answer[spec.name] = self._bare(own)
        return answers

    def _bare(self, batch: Array) -> Array:
        """A batch as the graph and callers know it: without rows if requests have none."""
        return batch if self._config.max_batch_size else batch.reshape(batch.shape[1:])

    def _with_rows(self, spec: TensorSpec, result: Array) -> Array:
        """The opposite of `_bare`, for a result of the graph."""
        batch = result if self._config.max_batch_size else result[None]
        if batch.ndim != len(spec.dims) + 1:  # only where the engine chose the shape
            raise EngineFault(
                f"output '{spec.name}': found shape {list(result.shape)}, expected {spec}"
            )
        return batch

    def __repr__(self) -> str:
        state = "closed" if self._engine is None else "open"
        planned = f"{self._buffers.plan.total_bytes:,} bytes planned"
        return f"<Runtime {self._name}: {state}, up to {self._config.rows} row(s), {planned}>"


def _cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
