"""The launches of one window: who is still there, what they lease, and what becomes of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from ge_runtime.batching.admission import Block
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.regroup import Launch
from ge_runtime.clock import Clock
from ge_runtime.errors import EngineLost, RuntimeFault
from ge_runtime.metrics import Counts, Metrics
from ge_runtime.scheduling.callers import Caller
from ge_runtime.scheduling.isolation import isolate
from ge_runtime.scheduling.lane import Lane
from ge_runtime.specs import Array

Answer: TypeAlias = dict[str, Array] | RuntimeFault

ASKING_S: Final = 10e-6
"""What it costs to ask the server whether a request is cancelled, measured on tritonserver."""

WORTH_ASKING: Final = 10
"""Callers are asked before a launch that takes this many times as long as asking them does."""


class Workspace(Protocol):
    """Where launches get their workspace."""

    def lease(self, gear: Gear, deadline: float) -> AbstractContextManager[object]:
        """Workspace for a launch, for the length of a `with`; raises PoolFault."""


class Grouping(Protocol):
    """How windows are cut into launches: see `batching.regroup.Regrouper`."""

    def plan(
        self,
        rows: Sequence[int],
        sizes: Mapping[str, Sequence[int]],
        *,
        now: float = 0.0,
        deadlines: Sequence[float] | None = None,
    ) -> list[Launch]:
        """The launches of a window, in order of execution; each request is in one."""

    def launch_of(
        self, members: Sequence[int], rows: Sequence[int], sizes: Mapping[str, Sequence[int]]
    ) -> Launch:
        """The launch of these members of a window."""


class Unmanaged:
    """See Workspace: engines allocate what they need."""

    def lease(self, gear: Gear, deadline: float) -> AbstractContextManager[object]:
        """Nothing to wait for."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class Job:
    """A sound request of a window."""

    block: Block
    caller: Caller
    sizes: Mapping[str, int]
    """Axis: the size that a batch must have for it."""


class Window:
    """The sound requests of one window, and their answers as they come.

    `run` may be called from several threads, each with launches of its own.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        gears: Gears,
        grouping: Grouping,
        workspace: Workspace,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._answers: list[Answer | None] = [None] * len(jobs)
        self.lost = False
        """Whether an engine was lost."""
        self._jobs = jobs
        self._rows = [job.block.rows for job in jobs]
        axes = jobs[0].sizes if jobs else ()
        self._sizes = {axis: [job.sizes[axis] for job in jobs] for axis in axes}
        self._gears = gears
        self._grouping = grouping
        self._workspace = workspace
        self._metrics = metrics
        self._clock = clock

    def plan(self) -> list[Launch]:
        """The launches of all requests, in order of execution."""
        due = [job.caller.deadline for job in self._jobs]
        pressing = min(due, default=math.inf) < math.inf
        return self._grouping.plan(
            self._rows,
            self._sizes,
            now=self._clock.now() if pressing else 0.0,
            deadlines=due if pressing else None,
        )

    def results(self) -> list[Answer]:
        """One answer per request, once all launches have run."""
        return [answer for answer in self._answers if answer is not None]

    def run(self, launch: Launch, lane: Lane) -> None:
        """Execute a launch, and answer all its requests."""
        members = self._still_waiting(launch.members, launch.seconds)
        if not members:
            return
        latest = max(self._jobs[member].caller.deadline for member in members)
        try:
            with self._workspace.lease(launch.gear, latest) as lease:
                if lease is not None:  # it may have taken its time
                    members = self._still_waiting(members, launch.seconds)
                failures = isolate(
                    members,
                    lambda batch: self._execute(batch, launch, lane),
                    self._settle,
                    lambda batch: self._still_waiting(batch, launch.seconds),
                )
        except RuntimeFault as fault:
            self.lost = self.lost or isinstance(fault, EngineLost)
            for member in members:
                if self._answers[member] is None:
                    self._answers[member] = self._named(member, fault)
            return
        if failures:
            culprits = sum(isinstance(self._answers[member], RuntimeFault) for member in members)
            self._metrics.add(Counts(isolations=failures, culprits=culprits))

    def _execute(
        self, members: Sequence[int], launch: Launch, lane: Lane
    ) -> list[dict[str, Array]]:
        gear = launch.gear
        if len(members) < len(launch.members):
            gear = self._grouping.launch_of(members, self._rows, self._sizes).gear
        answers, counts = lane.execute([self._jobs[member].block for member in members], gear)
        if label := self._gears.label(gear):
            counts.gear_hits[label] += 1
        self._metrics.add(counts)
        return answers

    def _still_waiting(self, members: Sequence[int], seconds: float) -> Sequence[int]:
        """The members whose callers have not left; the others are answered with why."""
        worth = seconds >= len(members) * ASKING_S * WORTH_ASKING
        now, waiting = self._clock.now(), []
        for member in members:
            departure = self._jobs[member].caller.departure(now, ask=worth)
            if departure is None:
                waiting.append(member)
            else:
                self._answers[member] = self._named(member, departure)
        if len(waiting) < len(members):
            self._metrics.add(Counts(departed=len(members) - len(waiting)))
        return waiting

    def _settle(self, member: int, answer: Answer) -> None:
        if isinstance(answer, RuntimeFault):
            answer = self._named(member, answer)
        self._answers[member] = answer

    def _named(self, member: int, fault: RuntimeFault) -> RuntimeFault:
        """The fault with the name of the request, if its caller gave it one."""
        request_id = self._jobs[member].caller.request_id
        if not request_id:
            return fault
        named = type(fault)(f"[request id: {request_id}] {fault}")
        named.__cause__ = fault
        return named
