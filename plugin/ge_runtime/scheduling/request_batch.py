"""One batch of requests: its callers, its executions and its answers."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from ge_runtime.batching.admission import Block
from ge_runtime.batching.cost import LiveCost
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.partition import Execution, Partitioner, RequestSizes
from ge_runtime.clock import Clock
from ge_runtime.counts import Counts, SharedCounts
from ge_runtime.errors import Abandoned, Cancelled, EngineFault, Expired, OutOfMemory, RuntimeFault
from ge_runtime.memory.plan import Plan
from ge_runtime.scheduling.dispatch import isolate
from ge_runtime.scheduling.early_answers import Answered, earliest_answers
from ge_runtime.scheduling.executor import Executor
from ge_runtime.scheduling.sequences import SequenceStep
from ge_runtime.specs import ROWS, Array

if TYPE_CHECKING:
    from ge_runtime.workspace.pool import WorkspacePool


Answer: TypeAlias = dict[str, Array] | RuntimeFault
"""The outputs of a request by name, or why there are none."""

ASKING_S: Final = 10e-6
"""What it costs to ask the server whether a request is cancelled, measured on tritonserver."""

WORTH_ASKING: Final = 10
"""Callers are asked before an execution that takes this many times as long as asking them does."""

_log = logging.getLogger(__name__)


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Executed:
    """One execution, as the traces of its requests tell it."""

    start_ns: int
    end_ns: int
    """Of `time.monotonic_ns`."""
    gear: Gear
    """The size that was executed."""
    requests: int
    """How many shared it."""
    rows: int
    """Of these requests; the gear's others are padding."""
    padding: float
    """The share of the executed elements that were padding, 0 to 1."""
    memory_wait_s: float
    """For which the execution that was planned had waited for workspace."""
    error: str = ""
    """Why it failed; empty if it did not."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of the one who sent a request."""

    request_id: str = ""
    """Theirs, for error texts; empty if they gave none."""
    deadline: float = math.inf
    """Seconds on the runtime's clock; an answer after it is of no use."""
    sequence: SequenceStep | None = None
    """The sequence that the request belongs to; None: the request is one by itself."""
    is_cancelled: Callable[[], bool] = _never
    """Asks the server, which takes time: about 10 us in tritonserver."""

    executed: Callable[[Executed], None] | None = None
    """Is told of each execution of the request before it is answered; None if it is not traced."""

    def abandonment(self, now: float, *, ask: bool) -> Abandoned | None:
        """Why this caller no longer waits, or None. ask: whether to ask the server, too."""
        if now > self.deadline:
            late = (now - self.deadline) * 1e3
            return Expired(f"found the deadline passed by {late:.1f} ms, expected time to execute")
        if ask and self.is_cancelled():
            return Cancelled("the request was cancelled")
        return None


ANONYMOUS_CALLER = Caller()
"""A caller without a name, who waits for ever."""


class PooledWorkspace:
    """Workspace for executions from a pool that models share: each leases what the plan says."""

    def __init__(self, pool: WorkspacePool, plan: Plan, owner: str, counts: SharedCounts) -> None:
        self._pool = pool
        self._plan = plan
        self._owner = owner
        self._counts = counts

    @contextmanager
    def lease(self, gear: Gear, deadline: float) -> Iterator[float]:
        """For the length of a `with`; blocks until it is its turn. Raises PoolFault.

        Gives the seconds that this took.
        """
        nbytes = self._plan.workspace_at({ROWS: gear.rows, **gear.extents})
        with self._pool.lease(nbytes, deadline=deadline, owner=self._owner) as lease:
            if lease.waited_s:
                waits = Counts(workspace_waits=1, workspace_wait_seconds=lease.waited_s)
                self._counts.add(waits)
            yield lease.waited_s


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
        costs: LiveCost,
        workspace: PooledWorkspace | None,
        counts: SharedCounts,
        clock: Clock,
    ) -> None:
        """callers: of each block.

        gears: the declared ones, whose hits and misses are counted; None if there are none.
        costs: learns what executions take. workspace: None where engines allocate what they need.
        """
        self._answers: list[Answer | None] = [None] * len(blocks)
        self._blocks = blocks
        self._callers = callers
        self._sizes = _sizes_of(blocks, callers, clock)
        self._gears = gears
        self._partitioner = partitioner
        self._costs = costs
        self._workspace = workspace
        self._counts = counts
        self._clock = clock

    def __len__(self) -> int:
        return len(self._blocks)

    def plan(self) -> list[Execution]:
        """The executions of all requests, in the order to run them if all answers leave at once."""
        plan = self._partitioner.plan(self._sizes)
        # Not where somebody could be late by it: a trial may take longer than predicted.
        if self._costs.trial_due and self._sizes.deadlines is None and 1 < len(plan) == len(self):
            return self._partitioner.with_a_pair(plan, self._sizes)
        return plan

    def earliest_answers(self, executions: Sequence[Execution]) -> list[int]:
        """The places of `executions` of the plan, which one executor is to run, in another order.

        For answers that leave with their execution: those that end soonest go first, see
        `batching.order`.
        """
        count, now = len(self._blocks), self._sizes.now
        deadlines = self._sizes.deadlines or [math.inf] * count
        return earliest_answers(
            [execution.seconds for execution in executions],
            [execution.members for execution in executions],
            [deadline - now for deadline in deadlines],
        )

    def results(self) -> list[Answer]:
        """One answer per request, once all executions have run."""
        return [answer for answer in self._answers if answer is not None]

    def answers(self, members: Sequence[int]) -> list[Answer]:
        """Those of requests that are answered."""
        return [answer for member in members if (answer := self._answers[member]) is not None]

    def run(
        self,
        execution: Execution,
        executor: Executor,
        tell: Callable[[Answered], None] = lambda answered: None,
    ) -> None:
        """Run an execution, and answer all its requests, whatever happens.

        tell: is told who is answered before anything else is executed: those that need no
        execution, each half of an execution that failed, and the rest in the end, be there any or
        not. It must not raise.
        """
        untold = set(execution.members)

        def tell_answered(seconds: float) -> None:
            answered = [member for member in untold if self._answers[member] is not None]
            untold.difference_update(answered)
            if answered or seconds:
                tell(Answered(sorted(answered), seconds))

        try:
            self._run(execution, executor, partial(tell_answered, 0.0))
        except Exception as error:
            fault = error if isinstance(error, RuntimeFault) else _defect(error)
            left = [member for member in execution.members if self._answers[member] is None]
            for member in left:
                self._answers[member] = self._named(member, fault)
            if isinstance(fault, Abandoned):  # while they waited for the device
                self._counts.add(Counts(departed=len(left)))
        tell_answered(execution.seconds)

    def _run(
        self, execution: Execution, executor: Executor, tell_answered: Callable[[], None]
    ) -> None:
        members = self._still_waiting(execution.members, execution.seconds)
        if not members:
            return
        latest = max(self._callers[member].deadline for member in members)
        pool = self._workspace
        with nullcontext(0.0) if pool is None else pool.lease(execution.gear, latest) as waited_s:

            def execute(batch: Sequence[int]) -> list[dict[str, Array]]:
                tell_answered()
                return self._execute(batch, execution, executor, waited_s)

            if pool is not None:  # the lease may have taken its time
                members = self._still_waiting(members, execution.seconds)
            with executor.waiting(
                lambda: latest - self._clock.now(), lambda: self._all_gone(members)
            ):
                failures = isolate(
                    members,
                    execute,
                    self._deliver,
                    lambda batch: self._still_waiting(batch, execution.seconds),
                )
        if failures:
            answers = [self._answers[member] for member in members]
            culprits = sum(isinstance(answer, EngineFault | OutOfMemory) for answer in answers)
            self._counts.add(Counts(isolations=failures, culprits=culprits))

    def _execute(
        self, members: Sequence[int], execution: Execution, executor: Executor, waited_s: float
    ) -> list[dict[str, Array]]:
        gear, predicted = execution.gear, execution.seconds
        if len(members) < len(execution.members):
            own = self._partitioner.execution_of(members, self._sizes)
            # The workspace is leased for the whole execution: a gear of fewer rows that are longer
            # could need more of it.
            if _holds(gear, own.gear):
                gear, predicted = own.gear, own.seconds
        blocks = [self._blocks[member] for member in members]
        start_ns = time.monotonic_ns()
        try:
            answers, counts = executor.execute(blocks, gear)
        except Abandoned:  # while they waited for the device
            raise
        except Exception as error:
            self._counts.add(Counts(failed_launches=1))
            self._trace(members, start_ns, gear, waited_s, Counts(), str(error))
            raise
        self._trace(members, start_ns, gear, waited_s, counts)
        counts.predicted_seconds = predicted
        shared = len(members) > 1
        if self._costs.observe(gear.rows, gear.extents, counts.measured_seconds, shared=shared):
            self._partitioner.use(self._costs.cost)
        if self._gears is not None:
            if label := self._gears.label(gear):
                counts.gear_hits[label] += 1
            else:
                counts.gear_misses += len(members)
        self._counts.add(counts)
        return answers

    def _trace(
        self,
        members: Sequence[int],
        start_ns: int,
        gear: Gear,
        waited_s: float,
        counts: Counts,
        error: str = "",
    ) -> None:
        """Tell of an execution that began at `start_ns` and has just ended."""
        callers = (self._callers[member].executed for member in members)
        told = [executed for executed in callers if executed is not None]
        if not told:
            return
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
        for tell in told:
            tell(executed)

    def _still_waiting(self, members: Sequence[int], seconds: float) -> Sequence[int]:
        """The members whose callers have not left; the others are answered with why."""
        # An execution of a few microseconds would take longer to ask about than to run.
        worth = seconds >= len(members) * ASKING_S * WORTH_ASKING
        now, waiting = self._clock.now(), []
        for member in members:
            abandonment = self._callers[member].abandonment(now, ask=worth)
            if abandonment is None:
                waiting.append(member)
            else:
                self._answers[member] = self._named(member, abandonment)
        if len(waiting) < len(members):
            self._counts.add(Counts(departed=len(members) - len(waiting)))
        return waiting

    def _all_gone(self, members: Sequence[int]) -> bool:
        """Whether no caller of these waits any more."""
        now = self._clock.now()
        # Not of who is answered: tritonserver dies if it is asked about a request that it has sent.
        callers = (self._callers[member] for member in members if self._answers[member] is None)
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


def _sizes_of(blocks: Sequence[Block], callers: Sequence[Caller], clock: Clock) -> RequestSizes:
    axes = blocks[0].needs if blocks else ()
    deadlines = [caller.deadline for caller in callers]
    any_due = min(deadlines, default=math.inf) < math.inf
    kinds = [block.kind for block in blocks]
    return RequestSizes(
        rows=[block.rows for block in blocks],
        sizes={axis: [block.needs[axis] for block in blocks] for axis in axes},
        deadlines=deadlines if any_due else None,
        now=clock.now() if any_due else 0.0,
        kinds=kinds if any(kinds) else None,
    )


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
