"""The runtime: one open graph that answers batches of requests of any sizes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Condition, Lock
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from ge_runtime.assembly import Assembly, assemble
from ge_runtime.batching.admission import Block
from ge_runtime.clock import Clock, SystemClock
from ge_runtime.config import HANDLE_DIMS, HANDLE_DTYPE, RuntimeConfig
from ge_runtime.counts import Counts, SharedCounts
from ge_runtime.engines.backend import DecodesJpeg, ReleasesRows, Watched
from ge_runtime.errors import (
    BlocksTaken,
    GearOverflow,
    RequestFault,
    RuntimeClosed,
    RuntimeFault,
    ShapeMismatch,
    forget_frames,
)
from ge_runtime.memory.machine import ReadLimits, own_resident_bytes, read_limits
from ge_runtime.memory.plan import Plan
from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.scheduling.dispatch import Dispatcher
from ge_runtime.scheduling.early_answers import EarlyAnswers
from ge_runtime.scheduling.executor import execute_blank
from ge_runtime.scheduling.failing_shapes import FailingShapes
from ge_runtime.scheduling.request_batch import (
    ANONYMOUS_CALLER,
    Answer,
    Caller,
    PooledWorkspace,
    RequestBatch,
)
from ge_runtime.specs import PAST, ROWS, Tensors

if TYPE_CHECKING:
    from ge_runtime.devices.jpeg import JpegDecoder
    from ge_runtime.scheduling.sequences import SequenceId, SequenceStates, SequenceStep, State
    from ge_runtime.scheduling.state_blocks import SequenceState

OnAnswer: TypeAlias = Callable[[int, Answer], None]
"""Receives the index of a request in the batch and its answer, before the batch is complete."""

_NOT_EXECUTED: Final = RuntimeFault("not executed")
"""Placeholder for the answer of a request that will be executed; never returned."""

_log = logging.getLogger(__name__)


class Runtime:
    """One instance of a model: its open graph and all memory that it will ever need.

    Created by `open`. Safe from any thread; executions on one device are serialized.
    """

    def __init__(self, name: str, version_dir: Path, parts: Assembly, clock: Clock) -> None:
        self.config: RuntimeConfig = parts.config
        """The model's configuration."""
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
        config = parts.config
        # None if blank executions cannot test a size: that of a packed execution is the sum of its
        # rows, and rows that stay on the device cannot be generated.
        self._failing = (
            FailingShapes(
                name, lambda executor, gear: execute_blank(executor, config, gear), self._counts
            )
            if config.packing is None and not config.resident.tensors
            else None
        )
        self._watched = [own for own in parts.backends if isinstance(own, Watched)]
        self._releasing = [own for own in parts.backends[:1] if isinstance(own, ReleasesRows)]
        self._recorded = Histogram((ROWS, *parts.config.limits))
        self._lock = Lock()
        self._open = True  # this and the next are guarded by `_lock`
        self._batches = 0  # in progress
        self._idle = Condition(self._lock)

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

        After an exception nothing stays open.

        Args:
            version_dir: The folder with the artifact.
            model_config: Triton's model configuration, parsed from JSON.
            instance_name: The name used in logs, reports and errors.
            derived: Names of the outputs that the model's own code computes.
            clock: The clock of the callers' deadlines; by default the machine's.
            limits: Returns the memory that the machine has available.

        Returns:
            The open runtime. The caller closes it.

        Raises:
            ConfigFault: The configuration is invalid or does not match the graph, or the load check
                found answers that depend on padding or on other requests.
            ArtifactFault: The artifact is missing or cannot be opened.
            PlanFault: The planned memory does not fit.
            NoDevice: A device is not available.
            EngineLost: The card was lost earlier in this process.
            ServiceFault: The device service cannot be started or reached.
            NeverFits: An execution needs more workspace than the pool has.
        """
        parts = assemble(
            version_dir, model_config, instance_name=instance_name, derived=derived, limits=limits
        )
        return cls(instance_name, version_dir, parts, clock or SystemClock())

    @property
    def plan(self) -> Plan:
        """The memory plan of each executor."""
        return self._parts.plan

    @property
    def report(self) -> tuple[str, ...]:
        """The decisions made at load, line by line: engines, threads, gears, memory, costs."""
        return self._parts.report

    @property
    def warnings(self) -> tuple[str, ...]:
        """Decisions made at load that users should know, as lines for the log."""
        return self._parts.warnings

    def infer(
        self,
        requests: Sequence[Tensors | Exception],
        callers: Sequence[Caller] | None = None,
        *,
        originals: Sequence[Tensors] | None = None,
        on_answer: OnAnswer | None = None,
    ) -> list[Answer]:
        """Execute a batch of requests. Blocks until all are answered. Safe from any thread.

        Each request is checked separately. The valid ones are partitioned into the executions with
        the least predicted time. A request that makes its execution fail is identified, and only
        that request gets the fault. Requests whose callers do not wait any more are not executed.

        Args:
            requests: Each request has all inputs by name, arrays of shape [rows, *dims] and the
                declared type; if config.pbtxt declares prepared tensors, those instead, or the
                exception by which their preparation failed, which becomes the answer.
            callers: The caller of each request: deadline, cancellation, id and sequence.
            originals: The requests as clients sent them, if tensors were prepared from them.
            on_answer: Called on this thread with each answer that is complete while other requests
                are still executed. It must not raise. Its caller is not asked for cancellation any
                more. Never called with `early_answers: false`.

        Returns:
            One answer per request, in order: its outputs by name, [rows, *dims] with the request's
            own sizes, or its RuntimeFault, or the given exception. The memory of outputs is not
            reused while they are referenced.

        Raises:
            RuntimeClosed: `close` was called before.
        """
        callers = [ANONYMOUS_CALLER] * len(requests) if callers is None else callers
        originals = cast("Sequence[Tensors]", requests) if originals is None else originals
        self._begin_batch()
        sequences = self._parts.sequences
        steps = [] if sequences is None else [caller.sequence for caller in callers]
        try:
            states: Sequence[State | RequestFault | None] = [None] * len(callers)
            if sequences is not None:
                states = sequences.find(steps, self._clock.now())
            answers: list[Answer] = []
            places: list[int] = []  # of the valid requests
            blocks: list[Block] = []
            waiting: list[Caller] = []
            for request, caller, state in zip(requests, callers, states, strict=True):
                verdict = self._judge(request, caller, state)
                if isinstance(verdict, Block):
                    places.append(len(answers))
                    blocks.append(verdict)
                    waiting.append(caller)
                    verdict = _NOT_EXECUTED
                answers.append(verdict)
            request_batch = RequestBatch(
                blocks,
                waiting,
                gears=self._parts.gears if self.config.gears else None,
                partitioner=self._parts.partitioner,
                costs=self._parts.costs,
                workspace=self._workspace,
                counts=self._counts,
                clock=self._clock,
                failing=self._failing,
            )
            release = None
            # The answer to a lone request is not early.
            if len(blocks) > 1 and on_answer is not None and self.config.early_answers:
                release = partial(self._answer_early, on_answer, request_batch, places, originals)
            self._execute(request_batch, release)
            for executor in self._parts.executors:
                executor.end_batch()
        finally:
            if sequences is not None:
                sequences.end(steps, self._clock.now())
            self._end_batch()
        for place, answer in zip(places, request_batch.results(), strict=True):
            answers[place] = answer
        if sequences is not None:
            _drop_failed_starts(sequences, steps, answers)
        self._finish(answers, originals)
        return answers

    def _begin_batch(self) -> None:
        with self._lock:
            if not self._open:
                raise RuntimeClosed(f"{self._name} is closed")
            self._batches += 1

    def _end_batch(self) -> None:
        with self._lock:
            self._batches -= 1
            if not self._open:  # `close` waits
                self._idle.notify_all()

    def jpeg_decoder(self) -> JpegDecoder:
        """Return the device's JPEG decoder, or the host's. Raises ArtifactFault without Pillow."""
        from ge_runtime.devices.jpeg import PillowDecoder

        host = PillowDecoder()
        backend = self._parts.backends[0]
        own = backend.jpeg_decoder(host) if isinstance(backend, DecodesJpeg) else None
        return own or host

    def release(self, request: Tensors) -> None:
        """Release the device-resident rows of a failed request of this model.

        `infer` does this itself for requests that it answers with a fault.
        """
        for name in self.config.resident.inputs if self._releasing else ():
            handles = request.get(name)
            if (
                handles is not None
                and handles.dtype == HANDLE_DTYPE.numpy
                and handles.ndim == 1 + len(HANDLE_DIMS)
                and handles.shape[1:] == HANDLE_DIMS
            ):
                self._releasing[0].release_rows(handles)

    def is_ready(self) -> bool:
        """Return whether requests can be executed: open, no engine lost, all devices healthy."""
        return (
            self._open
            and not any(executor.lost for executor in self._parts.executors)
            and not any(backend.fault() for backend in self._watched)
        )

    def counts(self) -> Counts:
        """Return all counts since the runtime was opened."""
        counts = self._counts.snapshot()
        counts.answers_spilled = sum(executor.spilled for executor in self._parts.executors)
        return counts

    def gauges(self) -> dict[str, float]:
        """Return current values, by their names in `adapters.metrics_exporter`."""
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
        for backend in self._watched[:1]:  # an instance reports the gauges of its first device
            gauges |= backend.telemetry()
        resident = own_resident_bytes()
        if resident is not None:
            gauges["resident_bytes"] = resident
        if parts.sequences is not None:
            gauges |= parts.sequences.gauges(self._clock.now())
        if parts.pool is not None:
            gauges["workspace_leased_bytes"] = parts.pool.pool.stats().leased
        if parts.histogram is not None:
            gauges["size_drift"] = self._recorded.drift(parts.histogram)
        return gauges

    def memory_usage(self) -> list[dict[str, object]]:
        """Return the planned memory of each device, in the form of Triton's model statistics."""
        plan, usage = self._parts.plan, []
        pinned = plan.io_bytes if plan.device_io_bytes else 0
        for place, backend in zip(self.config.places, self._parts.backends, strict=True):
            own, device = plan.total_bytes - pinned, int(backend.name.partition(":")[2] or 0)
            if place.buffers:  # weights and workspace are counted with the executor's first set
                own = plan.device_io_bytes
            usage.append({"type": backend.kind.upper(), "id": device, "byte_size": own})
            if pinned:
                usage.append({"type": "CPU_PINNED", "id": device, "byte_size": pinned})
        return usage

    def close(self) -> None:
        """Wait for executions in progress, then free all memory. Safe to call twice.

        Memory that answers refer to stays valid.
        """
        with self._idle:
            if not self._open:
                return
            self._open = False
            self._idle.wait_for(lambda: not self._batches)
        # In the reverse order of opening: engines work in the backends' memory.
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

    def _judge(
        self, request: Tensors | Exception, caller: Caller, state: State | RequestFault | None
    ) -> Block | Exception:
        if isinstance(request, Exception):
            return request
        try:
            if isinstance(state, RequestFault):
                raise state
            block = self._parts.admission.admit(request, caller.request_id)
            if state is not None:
                block = self._with_state(block, state)
        except (BlocksTaken, RequestFault) as fault:
            missed = isinstance(fault, GearOverflow)
            self._counts.add(Counts(refused=1, gear_misses=missed))
            return fault
        if self.config.histogram is not None:
            # Gears are chosen for the sizes that executions need, not for the sizes of tensors.
            # A sequence starts with a past of 0, but the sizes of a histogram are at least 1.
            sizes = [max(1, block.needs[axis]) for axis in self.config.limits]
            self._recorded.add((block.rows, *sizes))
        return block

    def _with_state(self, block: Block, state: State) -> Block:
        """Return the request with the state of its sequence; reserve memory for its growth."""
        sequences, limit = self._parts.sequences, self.config.limits.get(PAST, 0)
        if self.config.states.growth is None or sequences is None:
            return block.with_state(state)
        own = cast("SequenceState", state)
        if own.size > limit:
            raise ShapeMismatch(
                f"states of the sequence: found {own.size} elements along '{PAST}', expected at "
                f"most {limit} before a request (limit.{PAST})"
            )
        block = block.with_state(own, own.size)
        sequences.reserve(own, block.sizes)
        return block

    def end_sequence(self, sequence: SequenceId, *, departed: bool = False) -> None:
        """End a sequence without a request, and free its states. Safe from any thread.

        departed: True to count a request whose caller does not wait any more.
        """
        if departed:
            self._counts.add(Counts(departed=1))
        if self._parts.sequences is not None:
            self._parts.sequences.drop(sequence)

    def _execute(
        self, request_batch: RequestBatch, release: Callable[[Sequence[int]], None] | None
    ) -> None:
        """Run all executions.

        release: receives the indexes of requests that are answered early; None if all answers wait
        for the last execution.
        """
        plan, count = request_batch.plan(), len(request_batch)
        tasks = [(own.gear.rows, partial(request_batch.run, own)) for own in plan]
        start = self._clock.now()
        if release is None:
            self._dispatcher.run_all(tasks)
            self._counts.add_answer_seconds((self._clock.now() - start) * count)
            return
        seconds = sum([execution.seconds for execution in plan])
        executors = len(self._parts.executors)
        early = EarlyAnswers(count, seconds, executors, release, self._clock)

        def in_order(places: Sequence[int]) -> Sequence[int]:
            own = request_batch.earliest_answers([plan[place] for place in places])
            return [places[place] for place in own]

        self._dispatcher.run_all(tasks, early.add, in_order)
        self._counts.add(early.counts())

    def _answer_early(
        self,
        on_answer: OnAnswer,
        request_batch: RequestBatch,
        places: Sequence[int],
        originals: Sequence[Tensors],
        members: Sequence[int],
    ) -> None:
        """Send answers to `on_answer`; `places[member]` is the index of a member in the batch."""
        own = [places[member] for member in members]
        answers = request_batch.answers(members)
        self._finish(answers, [originals[place] for place in own])
        for place, answer in zip(own, answers, strict=True):
            on_answer(place, answer)

    def _finish(self, answers: Sequence[Answer], originals: Sequence[Tensors]) -> None:
        """Complete answers for their callers. Early answers are completed twice, harmlessly."""
        passthrough = self.config.passthrough
        for answer, original in zip(answers, originals, strict=True):
            if isinstance(answer, Exception):
                if isinstance(answer, RuntimeFault):
                    forget_frames(answer)  # frames hold the tensors of the whole batch
                self.release(original)
            elif passthrough:  # outputs that return inputs of the request
                answer.update({name: original[source] for name, source in passthrough.items()})

    def _record(self, path: Path) -> None:
        """Add the sizes of this run to the file, which may hold sizes of other instances."""
        # Not atomic: if two instances close at the same moment, the sizes of one may be lost, but
        # the file is always complete.
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


def _drop_failed_starts(
    sequences: SequenceStates, steps: Sequence[SequenceStep | None], answers: Sequence[Answer]
) -> None:
    """Drop sequences whose first request failed: their state is 0, and must not be continued."""
    for step, answer in zip(steps, answers, strict=True):
        if step is not None and step.starts and isinstance(answer, Exception):
            sequences.drop(step.sequence)
