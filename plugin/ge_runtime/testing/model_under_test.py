"""An open model for tests: the test decides which requests share an execution."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from ge_runtime.assembly import Assembly, assemble, with_parameters
from ge_runtime.batching.cost import CostModel
from ge_runtime.batching.gears import Gears
from ge_runtime.batching.groups import equal_groups
from ge_runtime.batching.partition import Execution, Partitioner, RequestSizes
from ge_runtime.clock import SystemClock
from ge_runtime.config import PaddingRule, RuntimeConfig
from ge_runtime.errors import EngineFault, RequestFault
from ge_runtime.runtime import Runtime
from ge_runtime.scheduling.request_batch import Answer
from ge_runtime.specs import DType, TensorSpec
from ge_runtime.testing.random_requests import RandomRequest

_SETTINGS: Final = {
    # The cost of an execution is so high that all requests that can share an execution do so.
    "cost": "launch_us=1000000, element_ns=1, element2_ns=0",
    "warmup": "none",
    # The conformance suite reports what the load check would refuse.
    "load_check": "off",
}


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The result of one request batch."""

    answers: Sequence[Answer]
    """Answers to all requests in order; empty if the runtime raised."""
    groups: Groups
    """The requests of each execution, in order; refused requests are in no execution."""
    failures: int
    """Executions that failed and were repeated in parts."""
    raised: Exception | None = None
    """The exception that the runtime raised for the whole batch."""


class ModelUnderTest:
    """An open model. For one thread."""

    def __init__(self, parts: Assembly, runtime: Runtime, forced: ForcedPartitioner) -> None:
        self.parts = parts
        self._runtime = runtime
        self._forced = forced

    @classmethod
    @contextmanager
    def opened(
        cls,
        version_dir: Path,
        model_config: Mapping[str, object],
        *,
        derived: Collection[str] = (),
        parameters: Mapping[str, str] | None = None,
    ) -> Iterator[ModelUnderTest]:
        """Open the model in `version_dir` for the duration of a `with` statement.

        `parameters` replace those of `model_config`; `derived` are the outputs that the model's own
        code computes. Request sizes are not recorded in the model's histogram.

        Raises:
            RuntimeFault: The model cannot be opened, see `Runtime.open`.
        """
        name = f"{model_config.get('name', 'model')}_conformance"
        parts = assemble(
            version_dir,
            with_parameters(model_config, {**_SETTINGS, **(parameters or {})}),
            instance_name=name,
            derived=derived,
        )
        forced = ForcedPartitioner(
            parts.partitioner,
            parts.gears,
            parts.config.rows,
            parts.config.equal_axes,
            own_gears=parts.config.reproducible,
        )
        # The gears may come from the histogram; now it is removed, as it must not get random sizes.
        parts = replace(parts, partitioner=forced, config=replace(parts.config, histogram=None))
        runtime = Runtime(name, version_dir, parts, SystemClock())
        try:
            yield cls(parts, runtime, forced)
        finally:
            runtime.close()

    def run(
        self, batch: Sequence[RandomRequest], choice: GroupChooser | None, poison: int
    ) -> BatchOutcome:
        """Answer a request batch; without `choice`, the model groups it.

        Memory is filled with the byte `poison` before each execution.
        """
        for executor in self.parts.executors:
            executor.poison(poison)
        self._forced.choice = choice
        self._forced.groups = []
        before = self._runtime.counts()
        try:
            answers = self._infer(batch)
        except Exception as error:  # any exception fails the whole batch
            return BatchOutcome([], self._forced.groups, 0, raised=error)
        failures = self._runtime.counts().since(before).isolations
        sound = [
            place
            for place, answer in enumerate(answers)
            if isinstance(answer, EngineFault) or not isinstance(answer, RequestFault)
        ]
        planned = self._forced.groups
        groups = [[sound[place] for place in group] for group in planned]
        # One more execution while the answers are held: memory that is reused too early changes
        # them.
        self._forced.choice = None
        self._infer(batch[:1])
        return BatchOutcome(answers, groups, failures)

    def _infer(self, batch: Sequence[RandomRequest]) -> list[Answer]:
        return self._runtime.infer(
            [request.given for request in batch], originals=[request.originals for request in batch]
        )


Groups: TypeAlias = Sequence[Sequence[int]]
"""For each execution, the indexes of its requests in the batch; each index occurs once."""

GroupChooser: TypeAlias = "Callable[[int, Callable[[Sequence[int]], bool]], Groups]"
"""Returns the groups of a batch of this size. The function that it receives returns whether
requests may share an execution."""

MAX_GROUP: Final = 8
"""Largest number of requests in a randomly chosen execution."""


class ForcedPartitioner:
    """A `Partitioner` that takes its groups from a `GroupChooser`. For one thread."""

    def __init__(
        self,
        partitioner: Partitioner,
        gears: Gears,
        capacity: int,
        equal: Collection[str] = (),
        *,
        own_gears: bool = False,
    ) -> None:
        """Wrap the model's own partitioner, for executions of at most `capacity` rows.

        Along the axes in `equal` only equal sizes share an execution. With `own_gears`, only
        requests with the same gear share an execution.
        """
        self._partitioner = partitioner
        self._equal = tuple(equal)
        self._gears = gears
        self._own_gears = own_gears
        self._capacity = capacity
        self.choice: GroupChooser | None = None
        """None lets the model's own partitioner decide."""
        self.groups: Groups = ()
        """The groups of the last batch, in order of execution."""

    def use(self, cost: CostModel) -> None:
        self._partitioner.use(cost)

    def plan(self, requests: RequestSizes) -> list[Execution]:
        rows, sizes = requests.rows, requests.sizes

        def fits(members: Sequence[int]) -> bool:
            if len(equal_groups(members, sizes, self._equal, requests.kinds)) > 1:
                return False
            total = sum(rows[member] for member in members)
            largest = {axis: max(own[member] for member in members) for axis, own in sizes.items()}
            gear = self._gears.fit(total, largest)
            if total > self._capacity or gear is None:
                return False
            return not self._own_gears or all(
                gear == self._gears.fit(rows[i], {axis: own[i] for axis, own in sizes.items()})
                for i in members
            )

        if self.choice is None:
            executions = self._partitioner.plan(requests)
        else:
            groups = self.choice(len(rows), fits)
            executions = [self._partitioner.execution_of(group, requests) for group in groups]
        self.groups = [execution.members for execution in executions]
        return executions

    def execution_of(self, members: Sequence[int], requests: RequestSizes) -> Execution:
        return self._partitioner.execution_of(members, requests)

    def execution_alone(self, member: int, rows: int, sizes: Mapping[str, int]) -> Execution:
        self.groups = [(member,)]
        return self._partitioner.execution_alone(member, rows, sizes)

    def with_a_pair(self, plan: list[Execution], requests: RequestSizes) -> list[Execution]:
        return plan  # keep the chosen groups


def alone(count: int, fits: Callable[[Sequence[int]], bool]) -> Groups:
    """GroupChooser that gives each request its own execution."""
    return [[place] for place in range(count)]


def at_random(rng: np.random.Generator) -> GroupChooser:
    """Return a GroupChooser that makes random groups in random order."""

    def choose(count: int, fits: Callable[[Sequence[int]], bool]) -> Groups:
        left = rng.permutation(count).tolist()
        groups = []
        while left:
            group, most = [left.pop()], rng.integers(2, MAX_GROUP + 1)
            while left and len(group) < most and fits([*group, left[-1]]):
                group.append(left.pop())
            groups.append(group)
        return groups

    return choose


def exactly(groups: Groups) -> GroupChooser:
    """Return a GroupChooser that makes these groups."""
    return lambda count, fits: groups


Padding: TypeAlias = Literal["poison", "nan", "keep"]
"""Padding to use: the highest value of an input's range, NaN, or the configured value."""

PADDINGS: Final[tuple[Padding, ...]] = get_args(Padding)


def poisoned_pads(
    parts: Assembly, ranges: Mapping[str, tuple[float, float]], padding: Padding
) -> dict[str, str]:
    """Return poison as the padding value of inputs, by input, in config.pbtxt syntax.

    Only inputs whose axes are all masked are included: the graph reads the padding of other inputs
    as data. `ranges` has the range of each input's elements.
    """
    config = parts.config
    if padding == "keep":
        return {}
    masked = {axis for axis, rule in config.padding.items() if rule is PaddingRule.MASKED}
    taken = {feed.spec.name for feed in parts.contract.feeds} - {*config.axis_lengths.values()}
    return {
        spec.name: _pad_value(spec, config, ranges[spec.name], padding)
        for spec in config.sources
        if spec.name in taken
        and spec.axes
        and masked.issuperset(spec.axes)
        and spec.dtype is not DType.BOOL
    }


def _pad_value(
    spec: TensorSpec, config: RuntimeConfig, within: tuple[float, float], padding: Padding
) -> str:
    low, high = within
    if not spec.dtype.is_integer:
        return "nan" if padding == "nan" else repr(high)
    highest = int(high) - 1
    return str(int(low) if config.pads.get(spec.name, 0) == highest else highest)


def smallest_failing(groups: Groups, fails: Callable[[Groups], bool]) -> Groups | None:
    """Remove groups and members while the rest still fails, and return the rest.

    Returns None if `groups` do not fail: then the earlier failure had another cause.
    """
    if not fails(groups):
        return None
    shrinking = True
    while shrinking:
        shrinking = False
        for less in _one_less(groups):
            if fails(less):
                groups, shrinking = less, True
                break
    return groups


def _one_less(groups: Groups) -> Iterator[Groups]:
    """Yield `groups` without one group, then without one member of a group."""
    for place in range(len(groups) if len(groups) > 1 else 0):
        yield [*groups[:place], *groups[place + 1 :]]
    for place, group in enumerate(groups):
        for member in group if len(group) > 1 else ():
            kept = [other for other in group if other != member]
            yield [*groups[:place], kept, *groups[place + 1 :]]
