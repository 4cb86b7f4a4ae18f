"""The trial of the conformance suite that detects leakage, and the report of the suite.

Leakage: answers depend on the values of other requests. Groups are executed twice at the same
shapes. The second time all values change except those of one request in each group, the subject.
Its answer must stay the same to the bit. Rounding depends on shapes only, so it cannot cause a
difference. Engines that sum in no fixed order differ from execution to execution, so the distance
between equal executions is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from ge_runtime.config import RuntimeConfig
from ge_runtime.scheduling.request_batch import Answer
from ge_runtime.specs import Array, Tensors
from ge_runtime.testing.model_under_test import (
    Groups,
    ModelUnderTest,
    at_random,
    exactly,
    smallest_failing,
)
from ge_runtime.testing.random_requests import RandomRequest, RequestGenerator
from ge_runtime.verification.distance import Difference, beyond_chance, compare_all


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A fault found after a request batch."""

    request: int | None
    """The request's place in the batch; None if no single answer is wrong."""
    text: str

    def __str__(self) -> str:
        return self.text if self.request is None else f"request {self.request}: {self.text}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A request batch with a wrong answer."""

    round: int
    how: str
    """The way in which the requests were executed."""
    requests: Sequence[str]
    """A description of each request."""
    mismatch: Mismatch
    groups: Groups
    """The requests of each execution, in order."""
    smallest: Groups | None
    """The fewest requests that still fail; None if executing `groups` again did not fail."""
    left: Mismatch | None
    """The mismatch of the smallest groups."""

    @classmethod
    def reduced(
        cls,
        number: int,
        how: str,
        requests: Sequence[object],
        mismatch: Mismatch,
        groups: Groups,
        again: Callable[[Groups], Mismatch | None],
    ) -> Failure:
        """Reduce the groups of a failed round to the fewest requests that still fail.

        `again` executes only some of the groups, and returns the mismatch.
        """
        smallest = smallest_failing(groups, lambda less: again(less) is not None)
        left = None if smallest is None else again(smallest)
        return cls(number, how, [*map(str, requests)], mismatch, groups, smallest, left)

    @property
    def failed_group(self) -> Sequence[int]:
        """The requests of the execution with the wrong answer."""
        return next((group for group in self.groups if self.mismatch.request in group), ())

    def lines(self) -> list[str]:
        """Return the report of this failure, line by line."""
        lines = [f"round {self.round}, requests executed {self.how}:", f"  {self.mismatch}"]
        if self.failed_group:
            lines += ["its execution:", *self._described([self.failed_group])]
        if self.smallest is None:
            return [*lines, "the same executions, repeated, gave no wrong answer"]
        count = len(self.smallest)
        several = f", {count} executions" if count > 1 else ""
        lines.append(f"the fewest requests that fail{several}:")
        return [*lines, *self._described(self.smallest), f"  {self.left}"]

    def _described(self, groups: Groups) -> list[str]:
        lines = []
        for number, group in enumerate(groups, start=1):
            lines += [f"  execution {number}"] if len(groups) > 1 else []
            lines += [f"    request {member}: {self.requests[member]}" for member in group]
        return lines


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `check`. Its text is for people."""

    model: str
    seed: int
    rounds: int
    """Rounds that were started."""
    requests: int
    executions: int
    shared: int
    """Executions of more than one request."""
    pads: Mapping[str, str]
    """The padding value of each input when the model was opened a second time."""
    changed: int
    """Answers that stayed the same to the bit after the values of all other requests changed."""
    moved: float
    """The largest distance by rounding between an answer and the answer to the request alone."""
    failure: Failure | None

    @property
    def passed(self) -> bool:
        """True if every answer was the expected one."""
        return self.failure is None

    def lines(self) -> list[str]:
        """Return the report, line by line."""
        lines = [
            f"{self.model}: {self.rounds} round(s) of seed {self.seed}, {self.requests} request(s) "
            f"in {self.executions} executions, {self.shared} of them shared"
        ]
        if not self.shared:
            lines.append("no two requests shared an execution, so their independence is not shown")
        lines += [f"padding of '{name}' poisoned with {value}" for name, value in self.pads.items()]
        if self.changed:
            lines.append(
                f"leakage: none: {self.changed} answer(s) stayed the same to the bit after the "
                "values of all other requests changed"
            )
        lines.append(
            f"rounding: answers differ from those of the requests alone by at most {self.moved:.2g}"
        )
        if self.failure is None:
            return [*lines, "passed: every answer is that of the request alone"]
        return [*lines, "FAILED", *self.failure.lines()]

    def __str__(self) -> str:
        return "\n".join(self.lines())


_HOW = "in random groups, and again with other values in all requests but one of each group"
_EQUAL_EXECUTIONS = 3
"""Equal executions that are compared with each other to see differences by chance."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedBatch:
    """Random requests with their expected answers."""

    requests: Sequence[RandomRequest]
    expected: Sequence[Mapping[str, Array]]
    poison: int
    """The byte that memory is filled with before each execution."""

    def select(self, members: Sequence[int]) -> ExpectedBatch:
        """Return some of the requests, in this order."""
        requests = [self.requests[member] for member in members]
        return ExpectedBatch(requests, [self.expected[member] for member in members], self.poison)


class Leakage:
    """Executes request batches twice with different values. For one thread."""

    def __init__(
        self, model: ModelUnderTest, generator: RequestGenerator, config: RuntimeConfig
    ) -> None:
        self._model = model
        self._generator = generator
        self._outputs = config.outputs
        self.changed = 0
        """Answers that stayed the same after the values of all other requests changed."""

    def run(
        self, batch: ExpectedBatch, rng: np.random.Generator, number: int
    ) -> tuple[Groups, Failure | None]:
        """Execute the batch in round `number`; return its executions and the leakage found."""
        outcome = self._model.run(batch.requests, at_random(rng), batch.poison)
        groups = outcome.groups
        subjects = {int(rng.choice(group)) for group in groups if len(group) > 1}
        others = [
            request if place in subjects else self._generator.with_other_values(rng, request)
            for place, request in enumerate(batch.requests)
        ]
        one = dict(enumerate(outcome.answers))
        mismatch = self._leaked(batch, others, subjects, groups, one)
        if mismatch is None:
            self.changed += len(subjects)
            return groups, None

        def again(less: Groups) -> Mismatch | None:
            return self._leaked(batch, others, subjects, less)

        return groups, Failure.reduced(number, _HOW, batch.requests, mismatch, groups, again)

    def _leaked(
        self,
        batch: ExpectedBatch,
        others: Sequence[RandomRequest],
        subjects: set[int],
        groups: Groups,
        one: Mapping[int, Answer] | None = None,
    ) -> Mismatch | None:
        """Return the first change in a subject's answer, with the request's index in `batch`.

        `one` has the answers of the batch in these groups, if they are known.
        """
        members = sorted(chain.from_iterable(groups))
        left = [member for member in members if member in subjects]
        if one is None:
            one = self._answers(batch.requests, members, groups, batch.poison)
        other = self._answers(others, members, groups, batch.poison)
        for member in left:
            leak = beyond_chance(
                self._outputs,
                self._differences(one[member], other[member]),
                partial(self._repeated, batch, members, groups, member, one[member]),
            )
            if leak is not None:
                difference, chance = leak
                text = f"{difference}: leakage, as equal executions differ by {chance:.3g}"
                return Mismatch(member, text)
        return None

    def _repeated(
        self,
        batch: ExpectedBatch,
        members: Sequence[int],
        groups: Groups,
        member: int,
        first: Answer,
    ) -> list[Tensors]:
        """Return the member's answers in equal executions, of which `first` is one."""
        more = (
            self._answers(batch.requests, members, groups, batch.poison)[member]
            for _ in range(_EQUAL_EXECUTIONS - 1)
        )
        return [answer for answer in (first, *more) if not isinstance(answer, Exception)]

    def _answers(
        self, requests: Sequence[RandomRequest], members: Sequence[int], groups: Groups, poison: int
    ) -> dict[int, Answer]:
        renumbered = [[members.index(member) for member in group] for group in groups]
        outcome = self._model.run(
            [requests[member] for member in members], exactly(renumbered), poison
        )
        # Failed executions have no answers, so they cannot leak; other trials report them.
        return dict(zip(members, outcome.answers, strict=False))

    def _differences(self, found: Answer, expected: Answer) -> list[Difference]:
        if isinstance(found, Exception) or isinstance(expected, Exception):
            return []
        return compare_all(self._outputs, found, expected)
