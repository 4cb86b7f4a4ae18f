"""Leakage: what an answer owes to the values of other requests.

Groups are executed twice, at the same shapes: the second time all values are others, save those of
one request in each group, the subject. Its answer must be the same to the bit. Rounding cannot
differ, since nothing that it depends on does; where executions of equal values differ by chance,
as on engines that sum in no fixed order, as much is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import RuntimeFault
from ge_runtime.scheduling.request_batch import Answer
from ge_runtime.specs import Array
from ge_runtime.testing.model_under_test import (
    Groups,
    ModelUnderTest,
    at_random,
    exactly,
    smallest_failing,
)
from ge_runtime.testing.random_requests import RandomRequest, RequestGenerator
from ge_runtime.testing.report import Failure, Mismatch
from ge_runtime.verification.distance import Apart, apart

_HOW = "in random groups, and once more with other values in all requests but one of each"
_EQUAL_EXECUTIONS = 3
"""Compared with each other, to see by how much chance makes them differ."""


@dataclass(frozen=True, slots=True, eq=False)
class AskedBatch:
    """Random requests, and the answers that they should get."""

    requests: Sequence[RandomRequest]
    expected: Sequence[Mapping[str, Array]]
    poison: int
    """The byte that memory is filled with before each execution."""

    def of(self, members: Sequence[int]) -> AskedBatch:
        """Some of the requests, in this order."""
        requests = [self.requests[member] for member in members]
        return AskedBatch(requests, [self.expected[member] for member in members], self.poison)


class Leakage:
    """The way to execute request batches that shows leakage. For one thread."""

    def __init__(
        self, model: ModelUnderTest, generator: RequestGenerator, config: RuntimeConfig
    ) -> None:
        self._model = model
        self._generator = generator
        self._outputs = config.outputs
        self.changed = 0
        """Answers that were the same after the values of all others had been changed."""

    def run(
        self, batch: AskedBatch, rng: np.random.Generator, number: int
    ) -> tuple[Groups, Failure | None]:
        """The executions of the batch, and what leaked. number: of the round."""
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

        least = smallest_failing(groups, lambda less: again(less) is not None)
        failure = Failure(
            round=number,
            how=_HOW,
            requests=[str(request) for request in batch.requests],
            mismatch=mismatch,
            groups=groups,
            smallest=least,
            left=None if least is None else again(least),
        )
        return groups, failure

    def _leaked(
        self,
        batch: AskedBatch,
        others: Sequence[RandomRequest],
        subjects: set[int],
        groups: Groups,
        one: Mapping[int, Answer] | None = None,
    ) -> Mismatch | None:
        """What changed in the first subject whose answer did; requests keep their numbers.

        one: the answers of the batch in these groups, if they are known.
        """
        members = sorted(chain.from_iterable(groups))
        left = [member for member in members if member in subjects]
        if one is None:
            one = self._answers(batch.requests, members, groups, batch.poison)
        other = self._answers(others, members, groups, batch.poison)
        for member in left:
            for each in self._apart(one[member], other[member]):
                equal = [
                    self._answers(batch.requests, members, groups, batch.poison)[member]
                    for _ in range(_EQUAL_EXECUTIONS - 1)
                ]
                chance = [own for again in equal for own in self._apart(again, one[member])]
                by_chance = max([own.distance for own in chance if own.output == each.output] + [0])
                if each.distance > 2 * by_chance:
                    text = f"{each}: leakage, as equal executions differ by {by_chance:.3g}"
                    return Mismatch(member, text)
        return None

    def _answers(
        self, requests: Sequence[RandomRequest], members: Sequence[int], groups: Groups, poison: int
    ) -> dict[int, Answer]:
        renumbered = [[members.index(member) for member in group] for group in groups]
        outcome = self._model.run(
            [requests[member] for member in members], exactly(renumbered), poison
        )
        # Of executions that failed nothing can leak: that they fail is another trial's to tell.
        return dict(zip(members, outcome.answers, strict=False))

    def _apart(
        self,
        found: Answer,
        expected: Answer,
    ) -> list[Apart]:
        if isinstance(found, RuntimeFault) or isinstance(expected, RuntimeFault):
            return []
        return apart(self._outputs, found, expected)
