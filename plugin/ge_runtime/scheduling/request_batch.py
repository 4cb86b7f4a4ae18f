"""One batch of requests: its callers, its executions and its answers."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ge_runtime.batching.admission import Block
from ge_runtime.batching.cost import LiveCost
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.partition import Execution, Partitioner, RequestSizes
from ge_runtime.clock import Clock
from ge_runtime.counts import Counts, SharedCounts
from ge_runtime.errors import (
    Abandoned,
    Cancelled,
    EngineFault,
    Expired,
    InvalidValue,
    OutOfMemory,
    RuntimeFault,
    SizeDisabled,
)
from ge_runtime.memory.plan import Plan
from ge_runtime.scheduling.dispatch import isolate
from ge_runtime.scheduling.early_answers import Answered, earliest_answers
from ge_runtime.scheduling.executor import Executor
from ge_runtime.specs import ROWS, Array

if TYPE_CHECKING:
    from ge_runtime.scheduling.failing_shapes import FailingShapes
    from ge_runtime.scheduling.sequences import SequenceStep
    from ge_runtime.workspace import WorkspacePool


Answer: TypeAlias = dict[str, Array] | Exception
"""The outputs of a request by name, or the exception in their place."""

ASKING_S: Final = 100e-6
"""Time to ask the server whether a request is cancelled. In tritonserver 2.51 the model's process
asks the server's process and waits. If both are idle, this takes 60 us and as much CPU time."""

WORTH_ASKING: Final = 50
"""The server is asked before an execution that takes this many times as long as asking."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Executed:
    """One execution, as reported to the traces of its requests."""

    start_ns: int
    end_ns: int
    """Start and end as returned by `time.monotonic_ns`."""
    gear: Gear
    """The executed size."""
    requests: int
    """Number of requests in the execution."""
    rows: int
    """Rows of these requests; the other rows of the gear are padding."""
    padding: float
    """The share of the executed elements that were padding, 0 to 1."""
    memory_wait_s: float
    """Seconds of waiting for workspace. The parts of a halved execution share one wait."""
    error: str = ""
    """The error message; empty after success."""


class Caller(NamedTuple):
    """Properties of the sender of a request."""

    request_id: str = ""
    """The client's id of the request, for error messages; may be empty."""
    deadline: float = math.inf
    """Seconds on the runtime's clock, after which an answer is useless."""
    sequence: SequenceStep | None = None
    """The sequence that the request belongs to, or None."""
    is_cancelled: Callable[[], bool] = lambda: False
    """Asks the server whether the request is cancelled; see `ASKING_S`."""

    executed: Callable[[Executed], None] | None = None
    """Receives each execution of the request before it is answered; None if it is not traced."""

    def abandonment(self, now: float, *, ask: bool) -> Abandoned | None:
        """Return why this caller no longer waits, or None. ask: True to ask the server, too."""
        if now > self.deadline:
            late = (now - self.deadline) * 1e3
            return Expired(f"found a deadline that passed {late:.1f} ms ago, expected a later one")
        if ask and self.is_cancelled():
            return Cancelled("the request was cancelled")
        return None


ANONYMOUS_CALLER = Caller()
"""A caller without an id or a deadline."""


class PooledWorkspace:
    """Workspace from a pool shared by models: each execution leases its planned workspace."""

    def __init__(self, pool: WorkspacePool, plan: Plan, owner: str, counts: SharedCounts) -> None:
        self._pool = pool
        self._plan = plan
        self._owner = owner
        self._counts = counts

    @contextmanager
    def lease(self, gear: Gear, deadline: float) -> Iterator[float]:
        """Lease workspace for the duration of a `with` statement. Blocks until it is granted.

        Yields the seconds of waiting. Raises PoolFault.
        """
        nbytes = self._plan.workspace_at({ROWS: gear.rows, **gear.extents})
        with self._pool.lease(nbytes, deadline=deadline, owner=self._owner) as lease:
            if lease.waited_s:
                waits = Counts(workspace_waits=1, workspace_wait_seconds=lease.waited_s)
                self._counts.add(waits)
            yield lease.waited_s


class RequestBatch:
    """The valid requests of one batch, and their answers.

    `run` may be called from several threads, with different executions.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        callers: Sequence[Caller],
        *,
        gears: Gears | None,
        partitioner: Partitioner,
        costs: LiveCost,
        workspace: PooledWorkspace | None,
        counts: SharedCounts,
        clock: Clock,
        failing: FailingShapes | None = None,
    ) -> None:
        """Prepare the execution of a batch.

        Args:
            blocks: The requests.
            callers: The caller of each request.
            gears: The declared gears, whose hits and misses are counted; None if there are none.
            partitioner: Chooses the executions.
            costs: Learns how long executions take.
            workspace: Leases workspace; None if engines allocate what they need.
            counts: Receives all counts.
            clock: The clock of the callers' deadlines.
            failing: The sizes that are not executed; None if all are tried each time.
        """
        self._answers: list[Answer | None] = [None] * len(blocks)
        self._blocks = blocks
        self._callers = callers
        self._any_due = self._any_traced = False
        for caller in callers:
            if caller.deadline < math.inf:
                self._any_due = True
            if caller.executed is not None:
                self._any_traced = True
        self._gears = gears
        self._partitioner = partitioner
        self._costs = costs
        self._workspace = workspace
        self._counts = counts
        self._clock = clock
        self._failing = failing

    def __len__(self) -> int:
        return len(self._blocks)

    def plan(self) -> list[Execution]:
        """Return the executions of all requests, in the best order if answers are sent together."""
        if len(self._blocks) == 1:
            (block,) = self._blocks
            return [self._partitioner.execution_alone(0, block.rows, block.needs)]
        plan = self._partitioner.plan(self._sizes)
        # Two requests together may take longer than predicted, and must not miss a deadline.
        if self._costs.trial_due and not self._any_due and 1 < len(plan) == len(self):
            return self._partitioner.with_a_pair(plan, self._sizes)
        return plan

    def earliest_answers(self, executions: Sequence[Execution]) -> list[int]:
        """Return the order in which an executor runs its executions to answer requests early.

        See `early_answers.earliest_answers`.

        Args:
            executions: The executions of one executor.

        Returns:
            Indexes of `executions`.
        """
        count, now = len(self._blocks), self._sizes.now
        deadlines = self._sizes.deadlines or [math.inf] * count
        return earliest_answers(
            [execution.seconds for execution in executions],
            [execution.members for execution in executions],
            [deadline - now for deadline in deadlines],
        )

    def results(self) -> list[Answer]:
        """Return one answer per request, after all executions have run."""
        return [answer for answer in self._answers if answer is not None]

    def answers(self, members: Sequence[int]) -> list[Answer]:
        """Return the answers of `members`, leaving out requests without an answer."""
        return [answer for member in members if (answer := self._answers[member]) is not None]

    def run(
        self,
        execution: Execution,
        executor: Executor,
        report: Callable[[Answered], None] | None = None,
    ) -> None:
        """Run an execution, and answer all its requests, whether it succeeds or not.

        Args:
            execution: An execution of the plan.
            executor: Runs it.
            report: Receives newly answered requests; None: nothing is reported. Requests without a
                waiting caller are reported before the execution, and the answered part of a failed
                execution before its next part. A last report has all other requests, even if there
                are none, and the time of the execution. It must not raise.
        """
        report_answered = None
        if report is not None:
            report_answered = partial(self._report, report, set(execution.members))
        try:
            members = self._still_waiting(execution.members, execution.seconds)
            workspace = self._workspace
            if members and workspace is None:
                self._isolate(members, execution, executor, 0.0, report_answered)
            elif members and workspace is not None:
                with workspace.lease(execution.gear, self._latest(members)) as waited_s:
                    # Waiting for the lease may have taken long.
                    members = self._still_waiting(members, execution.seconds)
                    self._isolate(members, execution, executor, waited_s, report_answered)
        except Exception as error:
            fault = error if isinstance(error, RuntimeFault) else _defect(error)
            left = [member for member in execution.members if self._answers[member] is None]
            for member in left:
                self._answers[member] = self._with_id(member, fault)
            if isinstance(fault, Abandoned):  # while waiting for the device
                self._counts.add(Counts(departed=len(left)))
        if report_answered is not None:
            report_answered(execution.seconds)

    def _report(
        self, report: Callable[[Answered], None], unreported: set[int], seconds: float
    ) -> None:
        answered = sorted([member for member in unreported if self._answers[member] is not None])
        unreported.difference_update(answered)
        if answered or seconds:
            report(Answered(answered, seconds))

    def _isolate(
        self,
        members: Sequence[int],
        execution: Execution,
        executor: Executor,
        waited_s: float,
        report_answered: Callable[[float], None] | None,
    ) -> None:
        failures = isolate(
            members,
            partial(self._execute, execution, executor, waited_s, report_answered),
            self._fail,
            lambda batch: self._still_waiting(batch, execution.seconds),
            None if self._failing is None else partial(self._known_failure, execution),
        )
        if failures:
            answers = [self._answers[member] for member in members]
            culprits = sum(
                isinstance(answer, EngineFault | OutOfMemory)
                and not isinstance(answer, SizeDisabled)
                for answer in answers
            )
            self._counts.add(Counts(isolations=failures, culprits=culprits))

    def _execute(
        self,
        execution: Execution,
        executor: Executor,
        waited_s: float,
        report_answered: Callable[[float], None] | None,
        members: Sequence[int],
    ) -> None:
        if report_answered is not None:
            report_answered(0.0)
        if len(members) < len(execution.members):
            execution = self._execution_of(members, execution)
        gear = execution.gear
        blocks = self._blocks
        if len(members) < len(blocks):  # otherwise all, in this order, as members ascend
            blocks = [blocks[member] for member in members]
        limits = (
            lambda: self._latest(members) - self._clock.now(),
            lambda: self._all_abandoned(members),
        )
        start_ns = time.monotonic_ns()
        try:
            answers, counts = executor.execute(blocks, gear, limits)
        except Abandoned:  # while waiting for the device
            raise
        except Exception as error:
            self._counts.add(Counts(failed_launches=1))
            if self._any_traced:
                self._trace(members, start_ns, gear, waited_s, Counts(), str(error))
            if self._failing is not None and isinstance(error, EngineFault):
                self._failing.note_failure(gear, error, executor)
            raise
        if self._any_traced:
            self._trace(members, start_ns, gear, waited_s, counts)
        if self._failing is not None:
            self._failing.note_success(gear)
        counts.predicted_seconds = execution.seconds
        shared = len(members) > 1
        seconds, valid = counts.measured_seconds, execution.valid
        if self._costs.observe(gear.rows, gear.extents, seconds, shared=shared, valid=valid):
            self._partitioner.use(self._costs.cost)
        if self._gears is not None:
            if label := self._gears.label(gear):
                counts.gear_hits[label] += 1
            else:
                counts.gear_misses += len(members)
        self._counts.add(counts)
        for member, answer in zip(members, answers, strict=True):
            self._answers[member] = answer

    def _execution_of(self, members: Sequence[int], execution: Execution) -> Execution:
        own = self._partitioner.execution_of(members, self._sizes)
        # The leased workspace suffices for the gear of `execution`. A gear with fewer but longer
        # rows could need more, so it is not used.
        return own if _holds(execution.gear, own.gear) else execution

    def _known_failure(self, execution: Execution, members: Sequence[int]) -> SizeDisabled | None:
        if self._failing is None or not self._failing.any:
            return None
        return self._failing.find(self._execution_of(members, execution).gear, len(members))

    def _trace(
        self,
        members: Sequence[int],
        start_ns: int,
        gear: Gear,
        waited_s: float,
        counts: Counts,
        error: str = "",
    ) -> None:
        """Report an execution that started at `start_ns` and has just ended."""
        elements = counts.executed_elements
        executed = Executed(
            start_ns,
            time.monotonic_ns(),
            gear,
            requests=len(members),
            rows=sum(self._blocks[member].rows for member in members),
            padding=1 - counts.useful_elements / elements if elements else 0.0,
            memory_wait_s=waited_s,
            error=error,
        )
        for member in members:
            trace = self._callers[member].executed
            if trace is not None:
                trace(executed)

    def _still_waiting(self, members: Sequence[int], seconds: float) -> Sequence[int]:
        """Return the members whose callers still wait; answer all other members with the reason."""
        # For an execution of a few microseconds, asking would take longer than executing.
        ask = seconds >= len(members) * ASKING_S * WORTH_ASKING
        if not ask and not self._any_due:
            return members
        now, waiting = self._clock.now(), []
        for member in members:
            abandonment = self._callers[member].abandonment(now, ask=ask)
            if abandonment is None:
                waiting.append(member)
            else:
                self._answers[member] = self._with_id(member, abandonment)
        if len(waiting) < len(members):
            self._counts.add(Counts(departed=len(members) - len(waiting)))
        return waiting

    def _latest(self, members: Sequence[int]) -> float:
        return max([self._callers[member].deadline for member in members])

    def _all_abandoned(self, members: Sequence[int]) -> bool:
        now = self._clock.now()
        callers = (self._callers[member] for member in members)
        return all(caller.abandonment(now, ask=True) is not None for caller in callers)

    def _fail(self, member: int, fault: RuntimeFault) -> None:
        if isinstance(fault, InvalidValue):
            name, value = fault.named
            sent = self._blocks[member].tensors.get(name)
            if sent is None or value not in sent:  # not the client's value, e.g. padding
                fault = EngineFault(fault.reported)
        self._answers[member] = self._with_id(member, fault)

    @cached_property
    def _sizes(self) -> RequestSizes:
        """The sizes of all requests. A batch of one request does not need them."""
        blocks, axes = self._blocks, self._blocks[0].needs if self._blocks else ()
        kinds = [block.kind for block in blocks]
        return RequestSizes(
            rows=[block.rows for block in blocks],
            sizes={axis: [block.needs[axis] for block in blocks] for axis in axes},
            deadlines=[caller.deadline for caller in self._callers] if self._any_due else None,
            now=self._clock.now() if self._any_due else 0.0,
            kinds=kinds if any(kinds) else None,
        )

    def _with_id(self, member: int, fault: RuntimeFault) -> RuntimeFault:
        request_id = self._callers[member].request_id
        if not request_id:
            return fault
        named = type(fault)(f"[request id: {request_id}] {fault}")
        named.__cause__ = fault
        return named


def _holds(gear: Gear, other: Gear) -> bool:
    return gear.rows >= other.rows and all(
        gear.extents[axis] >= extent for axis, extent in other.extents.items()
    )


def _defect(error: Exception) -> RuntimeFault:
    """Return the fault of an execution that raised an unexpected exception, and log it."""
    _log.error("an execution failed unexpectedly", exc_info=error)
    fault = RuntimeFault(f"{type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault
