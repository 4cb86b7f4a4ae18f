"""The runtime: one open graph that answers batches of requests of any sizes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, TypeAlias

from ge_runtime.assembly import Assembly, assemble
from ge_runtime.batching.admission import Block
from ge_runtime.clock import Clock, SystemClock
from ge_runtime.config import HANDLE_DIMS, HANDLE_DTYPE, RuntimeConfig
from ge_runtime.counts import Counts, SharedCounts
from ge_runtime.engines.backend import DecodesJpeg, ReleasesRows, Watched
from ge_runtime.errors import (
    GearOverflow,
    RequestFault,
    RuntimeClosed,
    RuntimeFault,
    forget_frames,
)
from ge_runtime.memory.machine import ReadLimits, own_resident_bytes, read_limits
from ge_runtime.memory.plan import Plan
from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.scheduling.dispatch import Dispatcher
from ge_runtime.scheduling.early_answers import EarlyAnswers
from ge_runtime.scheduling.request_batch import (
    ANONYMOUS_CALLER,
    Answer,
    Caller,
    PooledWorkspace,
    RequestBatch,
)
from ge_runtime.scheduling.sequences import State, with_state
from ge_runtime.specs import ROWS, Tensors

if TYPE_CHECKING:
    from ge_runtime.devices.jpeg import JpegDecoder

Leave: TypeAlias = Callable[[int, Answer], None]
"""Takes the answer of the request at a place in the batch while others are still executed."""

_log = logging.getLogger(__name__)


class Runtime:
    """One instance of a model: its graph, opened, and all memory that it will ever need.

    Made by `open`. Safe from any thread; executions on one device take turns.
    """

    def __init__(self, name: str, version_dir: Path, parts: Assembly, clock: Clock) -> None:
        self._name = name
        self._version_dir = version_dir
        self._parts = parts
        self._clock = clock
        self._dispatcher = Dispatcher(parts.executors, name, lambda executor: executor.lost)
        self._counts = SharedCounts()
        # None: engines allocate what they need.
        self._workspace = (
            PooledWorkspace(parts.pool.pool, parts.plan, name, self._counts)
            if parts.pool is not None
            else None
        )
        self._watched = [own for own in parts.backends if isinstance(own, Watched)]
        self._letting_go = [own for own in parts.backends[:1] if isinstance(own, ReleasesRows)]
        self._recorded = Histogram((ROWS, *parts.config.limits))
        self._open = True  # this and the next guarded by the condition
        self._batches = 0  # in progress
        self._idle = Condition()

    @classmethod
    def open(
        cls,
        version_dir: Path,
        model_config: Mapping[str, object],
        *,
        instance_name: str,
        derived: Collection[str] = (),
        clock: Clock | None = None,
        limits: ReadLimits = read_limits,
    ) -> Runtime:
        """Read the configuration, open the artifact, plan and allocate all memory, warm up.

        version_dir: the folder with the artifact. model_config: Triton's JSON, parsed.
        instance_name: for people. derived: the outputs that the model's own code makes. clock: of
        the callers' deadlines. limits: what the machine has of memory. Raises ConfigFault,
        ArtifactFault, PlanFault, NoDevice, EngineLost for a card that was lost before,
        ServiceFault, or NeverFits if an execution needs more workspace than the pool has; then
        nothing stays open.
        """
        parts = assemble(
            version_dir,
            model_config,
            instance_name=instance_name,
            derived=derived,
            limits=limits,
        )
        return cls(instance_name, version_dir, parts, clock or SystemClock())

    @property
    def config(self) -> RuntimeConfig:
        """What config.pbtxt says."""
        return self._parts.config

    @property
    def plan(self) -> Plan:
        """What was planned for each device."""
        return self._parts.plan

    @property
    def report(self) -> tuple[str, ...]:
        """What was decided at load, line by line: engines and why, threads, gears, memory, cost."""
        return self._parts.report

    def infer(
        self,
        requests: Sequence[Tensors],
        callers: Sequence[Caller] | None = None,
        *,
        originals: Sequence[Tensors] | None = None,
        leave: Leave | None = None,
    ) -> list[Answer]:
        """One answer per request, in order: its outputs by name, or its own fault.

        requests: each all inputs by name, [rows, *dims]; where config.pbtxt declares prepared
        tensors, those instead. callers: of each request, if anything is known of them.
        originals: the requests as they came, if tensors were prepared from them.
        leave: is given each answer that is there while other requests are still executed, on the
        calling thread; it must not raise. A caller who has been answered is not asked any more.
        With `early_answers: false` it is given none.

        Each request is checked by itself. The sound ones are partitioned into the executions of
        least predicted time; one that makes its execution fail is found, and alone gets the fault.
        Those whose callers have left are not executed. Outputs are [rows, *dims], with the
        request's own sizes, in memory that is not written again while they are in use. Raises
        RuntimeClosed after `close`. Blocks until all are answered; from any thread.
        """
        callers = [ANONYMOUS_CALLER] * len(requests) if callers is None else callers
        originals = requests if originals is None else originals
        with self._serving():
            steps = [caller.sequence for caller in callers]
            sequences = self._parts.sequences
            states = [None] * len(steps) if sequences is None else sequences.find(steps)
            verdicts = [
                self._judge(request, caller, state)
                for request, caller, state in zip(requests, callers, states, strict=True)
            ]
            pairs = zip(verdicts, callers, strict=True)
            request_batch = RequestBatch(
                [verdict for verdict in verdicts if isinstance(verdict, Block)],
                [caller for verdict, caller in pairs if isinstance(verdict, Block)],
                gears=self._parts.gears if self.config.gears else None,
                partitioner=self._parts.partitioner,
                costs=self._parts.costs,
                workspace=self._workspace,
                counts=self._counts,
                clock=self._clock,
            )
            let_go = None
            if leave is not None and self.config.early_answers:
                places = [place for place, own in enumerate(verdicts) if isinstance(own, Block)]
                let_go = partial(self._let_go, leave, request_batch, places, originals)
            self._execute(request_batch, let_go)
            for executor in self._parts.executors:
                executor.end_batch()
            if sequences is not None:
                sequences.end(steps)
        executed = iter(request_batch.results())
        answers = [
            next(executed) if isinstance(verdict, Block) else verdict for verdict in verdicts
        ]
        self._finish(answers, originals)
        return answers

    def jpeg_decoder(self) -> JpegDecoder:
        """The device's, where it has one; else the host's. Raises ArtifactFault without Pillow."""
        from ge_runtime.devices.jpeg import PillowDecoder

        host = PillowDecoder()
        backend = self._parts.backends[0]
        own = backend.jpeg_decoder(host) if isinstance(backend, DecodesJpeg) else None
        return own or host

    def let_go(self, request: Tensors) -> None:
        """The request fails: rows of its that stay on the device, for this model, may go.

        Those that `infer` answers with a fault are let go of there.
        """
        for name in self.config.resident.inputs if self._letting_go else ():
            handles = request.get(name)
            if (
                handles is not None
                and handles.dtype == HANDLE_DTYPE.numpy
                and handles.ndim == 1 + len(HANDLE_DIMS)
                and handles.shape[1:] == HANDLE_DIMS
            ):
                self._letting_go[0].release_rows(handles)

    def is_ready(self) -> bool:
        """Whether requests would be executed: open, no engine lost, and its devices are well."""
        return (
            self._open
            and not any(executor.lost for executor in self._parts.executors)
            and not any(backend.fault() for backend in self._watched)
        )

    def counts(self) -> Counts:
        """All that was counted since the runtime was opened."""
        counts = self._counts.snapshot()
        counts.answers_spilled = sum(executor.spilled for executor in self._parts.executors)
        return counts

    def gauges(self) -> dict[str, float]:
        """Values at this moment, by the names that `adapters.metrics_exporter` has for them."""
        parts, plan = self._parts, self._parts.plan
        gauges: dict[str, float] = {
            "cost_drift": parts.costs.drift,
            "weights_bytes": plan.weights_bytes,
            "workspace_bytes": plan.workspace_bytes,
            "io_bytes": plan.io_bytes + plan.device_io_bytes,
            "total_bytes": plan.total_bytes,
            "memory_unplanned": bool(parts.unplanned),
            "allocations_after_freeze": sum(
                memory.allocations_after_freeze
                for backend in parts.backends
                for memory in backend.memories
            ),
        }
        for backend in self._watched[:1]:  # gauges are an instance's: of several its first device's
            gauges |= backend.telemetry()
        resident = own_resident_bytes()
        if resident is not None:
            gauges["resident_bytes"] = resident
        if parts.pool is not None:
            gauges["workspace_leased_bytes"] = parts.pool.pool.stats().leased
        if parts.histogram is not None:
            gauges["size_drift"] = self._recorded.drift(parts.histogram)
        return gauges

    def memory_usage(self) -> list[dict[str, object]]:
        """What is planned per device, in the form of Triton's model statistics."""
        plan, usage = self._parts.plan, []
        pinned = plan.io_bytes if plan.device_io_bytes else 0
        for place, backend in zip(self.config.places, self._parts.backends, strict=True):
            own, device = plan.total_bytes - pinned, int(backend.name.partition(":")[2] or 0)
            if place.buffers:  # weights and workspace are those of the executor's first set
                own = plan.device_io_bytes
            usage.append({"type": backend.kind.upper(), "id": device, "byte_size": own})
            if pinned:
                usage.append({"type": "CPU_PINNED", "id": device, "byte_size": pinned})
        return usage

    def close(self) -> None:
        """Free the graph and all memory, after the executions in progress. Safe to call twice.

        What answers are views of stays theirs.
        """
        with self._idle:
            if not self._open:
                return
            self._open = False
            self._idle.wait_for(lambda: not self._batches)
        # The reverse of how they were opened: engines work in the backends' memory.
        self._dispatcher.close()
        for executor in self._parts.executors:
            executor.close()
        for backend in self._parts.backends:
            backend.close()
        if self._parts.pool is not None:
            self._parts.pool.leave()
        if self._parts.kept_costs is not None and self._parts.costs.learned:
            self._parts.kept_costs.save(self._parts.costs)
        if self.config.histogram is not None:
            self._record(self._version_dir / self.config.histogram)

    @contextmanager
    def _serving(self) -> Iterator[None]:
        with self._idle:
            if not self._open:
                raise RuntimeClosed(f"{self._name} is closed")
            self._batches += 1
        try:
            yield
        finally:
            with self._idle:
                self._batches -= 1
                self._idle.notify_all()

    def _judge(
        self, request: Tensors, caller: Caller, state: State | RequestFault | None
    ) -> Block | RequestFault:
        try:
            if isinstance(state, RequestFault):
                raise state
            block = self._parts.admission.admit(request, caller.request_id)
            if state is not None:
                block = with_state(block, state)
        except RequestFault as fault:
            missed = isinstance(fault, GearOverflow)
            self._counts.add(Counts(refused=1, gear_misses=missed))
            return fault
        if self.config.histogram is not None:
            # What an execution needs for it, not the size of its tensors: gears hold the former.
            self._recorded.add((block.rows, *(block.needs[axis] for axis in self.config.limits)))
        return block

    def _execute(
        self, request_batch: RequestBatch, let_go: Callable[[Sequence[int]], None] | None
    ) -> None:
        """Returns when all executions have run.

        let_go: takes requests, places in the batch, that are answered early; None: all wait.
        """
        plan, executors = request_batch.plan(), len(self._parts.executors)
        seconds = sum(execution.seconds for execution in plan)
        early = EarlyAnswers(len(request_batch), seconds, executors, let_go, self._clock)

        def in_order(places: Sequence[int]) -> Sequence[int]:
            if let_go is None:
                return places
            own = request_batch.earliest_answers([plan[place] for place in places])
            return [places[place] for place in own]

        tasks = [(own.gear.rows, partial(request_batch.run, own)) for own in plan]
        self._dispatcher.run_all(tasks, early.hear, in_order)
        self._counts.add(early.counts())

    def _let_go(
        self,
        leave: Leave,
        request_batch: RequestBatch,
        places: Sequence[int],
        originals: Sequence[Tensors],
        members: Sequence[int],
    ) -> None:
        """Give away the answers of `members`; places: of all sound requests among all requests."""
        own = [places[member] for member in members]
        answers = request_batch.answers(members)
        self._finish(answers, [originals[place] for place in own])
        for place, answer in zip(own, answers, strict=True):
            leave(place, answer)

    def _finish(self, answers: Sequence[Answer], originals: Sequence[Tensors]) -> None:
        """Make answers what callers get. Those that left early are finished once more."""
        for answer, original in zip(answers, originals, strict=True):
            if isinstance(answer, RuntimeFault):
                forget_frames(answer)  # which hold the tensors of the whole batch
                self.let_go(original)
        self._pass(answers, originals)

    def _pass(self, answers: Sequence[Answer], originals: Sequence[Tensors]) -> None:
        """Add the outputs that are inputs."""
        passthrough = self.config.passthrough
        if passthrough:
            for answer, original in zip(answers, originals, strict=True):
                if not isinstance(answer, RuntimeFault):
                    answer.update({name: original[source] for name, source in passthrough.items()})

    def _record(self, path: Path) -> None:
        """Add the sizes of this run to those in the file, other instances' among them."""
        # Read and written in two steps: of instances that close at the same moment one's sizes may
        # be lost, but never a part of the file.
        with suppress(FileNotFoundError, HistogramFault):
            self._recorded.merge(Histogram.load(path))
        try:
            self._recorded.save(path)
        except OSError as error:
            _log.warning("%s: the histogram cannot be written: %s", self._name, error)

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        planned = f"{self._parts.plan.total_bytes:,} bytes planned"
        return f"<Runtime {self._name}: {state}, up to {self.config.rows} row(s), {planned}>"
