"""The requests of one batch: which still wait, what their executions lease, and their answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol, TypeAlias

from ge_runtime.batching.admission import Block
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.partition import Execution
from ge_runtime.clock import Clock
from ge_runtime.errors import Abandoned, EngineFault, OutOfMemory, RuntimeFault
from ge_runtime.metrics import Counts, Metrics
from ge_runtime.scheduling.callers import Caller
from ge_runtime.scheduling.executor import Executor
from ge_runtime.scheduling.isolation import isolate
from ge_runtime.specs import Array

Answer: TypeAlias = dict[str, Array] | RuntimeFault

ASKING_S: Final = 10e-6
"""What it costs to ask the server whether a request is cancelled, measured on tritonserver."""

WORTH_ASKING: Final = 10
"""Callers are asked before an execution that takes this many times as long as asking them does."""


_log = logging.getLogger(__name__)


class Workspace(Protocol):
    """Where executions get their workspace."""

    def lease(self, gear: Gear, deadline: float) -> AbstractContextManager[object]:
        """Workspace for an execution, for the length of a `with`; raises PoolFault."""


class Partitioner(Protocol):
    """How request batches are cut into executions: see `batching.partition.BatchPartitioner`."""

    def plan(
        self,
        rows: Sequence[int],
        sizes: Mapping[str, Sequence[int]],
        *,
        now: float = 0.0,
        deadlines: Sequence[float] | None = None,
    ) -> list[Execution]:
        """The executions of a request batch, in order of execution; each request is in one."""

    def execution_of(
        self, members: Sequence[int], rows: Sequence[int], sizes: Mapping[str, Sequence[int]]
    ) -> Execution:
        """The execution of these members of a request batch."""


class Unmanaged:
    """See Workspace: engines allocate what they need."""

    def lease(self, gear: Gear, deadline: float) -> AbstractContextManager[object]:
        """Nothing to wait for."""
        return nullcontext()


class RequestBatch:
    """The sound requests of one batch, and their answers as they come.

    `run` may be called from several threads, each with executions of its own.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        callers: Sequence[Caller],
        *,
        gears: Gears | None,
        partitioner: Partitioner,
        workspace: Workspace,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """callers: of each block.

        gears: the declared ones, whose hits and misses are counted; None if there are none.
        """
        self._answers: list[Answer | None] = [None] * len(blocks)
        self._blocks = blocks
        self._callers = callers
        self._rows = [block.rows for block in blocks]
        axes = blocks[0].needs if blocks else ()
        self._sizes = {axis: [block.needs[axis] for block in blocks] for axis in axes}
        self._gears = gears
        self._partitioner = partitioner
        self._workspace = workspace
        self._metrics = metrics
        self._clock = clock

    def plan(self) -> list[Execution]:
        """The executions of all requests, in order of execution."""
        due = [caller.deadline for caller in self._callers]
        pressing = min(due, default=math.inf) < math.inf
        return self._partitioner.plan(
            self._rows,
            self._sizes,
            now=self._clock.now() if pressing else 0.0,
            deadlines=due if pressing else None,
        )

    def results(self) -> list[Answer]:
        """One answer per request, once all executions have run."""
        return [answer for answer in self._answers if answer is not None]

    def run(self, execution: Execution, executor: Executor) -> None:
        """Run an execution, and answer all its requests, whatever happens."""
        try:
            self._run(execution, executor)
        except Exception as error:
            fault = error if isinstance(error, RuntimeFault) else _defect(error)
            left = [member for member in execution.members if self._answers[member] is None]
            for member in left:
                self._answers[member] = self._named(member, fault)
            if isinstance(fault, Abandoned):  # while they waited for the device
                self._metrics.add(Counts(departed=len(left)))

    def _run(self, execution: Execution, executor: Executor) -> None:
        members = self._still_waiting(execution.members, execution.seconds)
        if not members:
            return
        latest = max(self._callers[member].deadline for member in members)
        with self._workspace.lease(execution.gear, latest) as lease:
            if lease is not None:  # it may have taken its time
                members = self._still_waiting(members, execution.seconds)
            with executor.waiting(
                lambda: latest - self._clock.now(), lambda: self._all_gone(members)
            ):
                failures = isolate(
                    members,
                    lambda batch: self._execute(batch, execution, executor),
                    self._deliver,
                    lambda batch: self._still_waiting(batch, execution.seconds),
                )
        if failures:
            answers = [self._answers[member] for member in members]
            culprits = sum(isinstance(answer, EngineFault | OutOfMemory) for answer in answers)
            self._metrics.add(Counts(isolations=failures, culprits=culprits))

    def _execute(
        self, members: Sequence[int], execution: Execution, executor: Executor
    ) -> list[dict[str, Array]]:
        gear = execution.gear
        if len(members) < len(execution.members):
            own = self._partitioner.execution_of(members, self._rows, self._sizes).gear
            # The workspace is leased for the execution: a gear of fewer rows that are longer could
            # need more of it.
            gear = own if _holds(gear, own) else gear
        answers, counts = executor.execute([self._blocks[member] for member in members], gear)
        if self._gears is not None:
            if label := self._gears.label(gear):
                counts.gear_hits[label] += 1
            else:
                counts.gear_misses += len(members)
        self._metrics.add(counts)
        return answers

    def _still_waiting(self, members: Sequence[int], seconds: float) -> Sequence[int]:
        """The members whose callers have not left; the others are answered with why."""
        worth = seconds >= len(members) * ASKING_S * WORTH_ASKING
        now, waiting = self._clock.now(), []
        for member in members:
            abandonment = self._callers[member].abandonment(now, ask=worth)
            if abandonment is None:
                waiting.append(member)
            else:
                self._answers[member] = self._named(member, abandonment)
        if len(waiting) < len(members):
            self._metrics.add(Counts(departed=len(members) - len(waiting)))
        return waiting

    def _all_gone(self, members: Sequence[int]) -> bool:
        """Whether no caller of these waits any more."""
        now = self._clock.now()
        callers = (self._callers[member] for member in members)
        return all(caller.abandonment(now, ask=True) is not None for caller in callers)

    def _deliver(self, member: int, answer: Answer) -> None:
        if isinstance(answer, RuntimeFault):
            answer = self._named(member, answer)
        self._answers[member] = answer

    def _named(self, member: int, fault: RuntimeFault) -> RuntimeFault:
        """The fault with the name of the request, if its caller gave it one."""
        request_id = self._callers[member].request_id
        if not request_id:
            return fault
        named = type(fault)(f"[request id: {request_id}] {fault}")
        named.__cause__ = fault
        return named


def _holds(gear: Gear, other: Gear) -> bool:
    """Whether the other is nowhere larger."""
    return gear.rows >= other.rows and all(
        gear.extents[axis] >= extent for axis, extent in other.extents.items()
    )


def _defect(error: Exception) -> RuntimeFault:
    """The fault of an execution for what nobody raises on purpose."""
    _log.error("an execution failed unexpectedly", exc_info=error)
    fault = RuntimeFault(f"{type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault
