"""Detects answers that depend on the values of other requests (leakage).

Groups are executed twice at the same shapes. The second time all values change, except those of one
request in each group, the subject, whose answer must stay the same to the bit. Rounding depends on
shapes only, so it cannot cause a difference. Engines that sum in no fixed order differ from
execution to execution: what equal executions differ by is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import RuntimeFault
from ge_runtime.scheduling.request_batch import Answer
from ge_runtime.specs import Array, Tensors
from ge_runtime.testing.model_under_test import Groups, ModelUnderTest, at_random, exactly
from ge_runtime.testing.random_requests import RandomRequest, RequestGenerator
from ge_runtime.testing.report import Failure, Mismatch
from ge_runtime.verification.distance import Difference, beyond_chance, compare_all

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
        """Return the first change in a subject's answer; requests keep their numbers.

        `one` are the answers of the batch in these groups, if they are known.
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
        return [answer for answer in (first, *more) if not isinstance(answer, RuntimeFault)]

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
        if isinstance(found, RuntimeFault) or isinstance(expected, RuntimeFault):
            return []
        return compare_all(self._outputs, found, expected)
