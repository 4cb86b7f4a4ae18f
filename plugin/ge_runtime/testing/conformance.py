"""The conformance suite: no answer depends on who shared the batch, on any model and engine.

    from ge_runtime.testing.conformance import check

    def test_no_answer_depends_on_its_company():
        report = check(version_dir, model_config, ranges={"input_ids": (0, 30000)})
        assert report.passed, str(report)

Random requests are drawn from the model's own configuration and answered by the runtime: each
alone, in random groups, and in the groups that the runtime itself forms. Every answer is held
against `Reference`, a plain second implementation that executes the graph on one request by itself.

Whatever must not matter is poison: what a request's tensors hold past the ends of its rows, the
runtime's memory before each execution and, in a second opening of the model, the padding itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.errors import EngineFault, RuntimeFault
from ge_runtime.specs import Array
from ge_runtime.testing.expected_answers import AnswerChecker, Reference
from ge_runtime.testing.model_under_test import (
    BatchOutcome,
    GroupChooser,
    Groups,
    ModelUnderTest,
    Padding,
    alone,
    at_random,
    exactly,
    poisoned_pads,
)
from ge_runtime.testing.random_requests import RandomRequest, RequestGenerator

DEFAULT_ROUNDS: Final = 20

_BYTES: Final = (0xFF, 0x7F)
"""Memory full of the first is NaN in every float type; of the second, no integer is sound."""


def check(
    version_dir: Path,
    model_config: Mapping[str, object],
    *,
    derived: Collection[str] = (),
    seed: int = 0,
    rounds: int = DEFAULT_ROUNDS,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    tolerance: float | None = None,
    padding: Padding = "poison",
) -> Report:
    """Whether answers are the same alone and in any company, up to the first that is not.

    version_dir, model_config, derived: as for `Runtime.open`; the `cost` of model_config is not
    used. seed, rounds: of random request batches; equal seeds give equal batches.
    ranges: input or prepared tensor to the values of its elements, low to high, high excluded for
    integers; 0 to 9 for integers and -1 to 1 for floats if not given. Token ids must be of the
    model's vocabulary.
    tolerance: of floats, relative to the expected value plus 1, in place of
    `elements.TOLERANCES`. All else must agree in every bit; NaN agrees with NaN.
    padding: "poison" opens the model once more with padding of the highest value of each range,
    where generated inputs tell the graph what is padding; "nan" the same with NaN for floats, for
    graphs that select by their mask: NaN times 0 is NaN. "keep" leaves padding as it is.

    Raises what opening raises; RuntimeFault for ranges of no input, or if the graph fails on a
    request by itself. Blocks for as long as the model takes for some hundred executions.
    """
    with ExitStack() as opened:

        def opened_with(parameters: Mapping[str, str]) -> ModelUnderTest:
            return opened.enter_context(
                ModelUnderTest.opened(
                    version_dir, model_config, derived=derived, parameters=parameters
                )
            )

        model = opened_with({})
        config = model.parts.config
        generator = RequestGenerator(config, model.parts.gears, ranges or {})
        reference, checker = Reference(model.parts), AnswerChecker(config, tolerance)
        trials = [
            _Trial("each alone", model, checker, lambda _: alone),
            _Trial("in random groups", model, checker, at_random),
            _Trial("in the groups that the runtime forms", model, checker, lambda _: None),
        ]
        pads = poisoned_pads(model.parts, generator.ranges, padding)
        if pads:
            padded = opened_with({f"pad.{name}": value for name, value in pads.items()})
            how = "in random groups, padding poisoned"
            trials.append(_Trial(how, padded, checker, at_random, data_only=True))
        begun = requests = executions = shared = 0
        failure = None
        while begun < rounds and failure is None:
            # A generator for each round: a round is the same however many come before it.
            rng = np.random.default_rng((seed, begun))
            batch = generator.request_batch(rng)
            expected = [_expected(reference, request) for request in batch]
            requests += len(batch)
            for place, trial in enumerate(trials):
                # Each way of executing meets both bytes, in turn.
                examined = _RequestBatch(batch, expected, _BYTES[(begun + place) % len(_BYTES)])
                groups, failure = trial.run(examined, rng, begun)
                executions += len(groups)
                shared += sum(len(group) > 1 for group in groups)
                if failure is not None:
                    break
            begun += 1
        return Report(config.model, seed, begun, requests, executions, shared, pads, failure)


@dataclass(frozen=True, slots=True, eq=False)
class _RequestBatch:
    """Random requests, and the answers that they should get."""

    requests: Sequence[RandomRequest]
    expected: Sequence[Mapping[str, Array]]
    poison: int
    """The byte that memory is filled with before each execution."""

    def of(self, members: Sequence[int]) -> _RequestBatch:
        """Some of the requests, in this order."""
        requests = [self.requests[member] for member in members]
        return _RequestBatch(requests, [self.expected[member] for member in members], self.poison)


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """One way to execute request batches."""

    how: str
    model: ModelUnderTest
    checker: AnswerChecker
    choice: Callable[[np.random.Generator], GroupChooser | None]
    """How a request batch is grouped; see `ModelUnderTest.run`."""
    data_only: bool = False
    """Answers may differ past the ends of rows."""

    def run(
        self, batch: _RequestBatch, rng: np.random.Generator, number: int
    ) -> tuple[Groups, Failure | None]:
        """The executions of the batch, and what failed. number: of the round."""
        groups, mismatch = self._examine(batch, self.choice(rng))
        if mismatch is None:
            return groups, None
        least = smallest_failing(groups, lambda less: self._again(batch, less) is not None)
        failure = Failure(
            round=number,
            how=self.how,
            requests=[str(request) for request in batch.requests],
            mismatch=mismatch,
            groups=groups,
            smallest=least,
            left=None if least is None else self._again(batch, least),
        )
        return groups, failure

    def _examine(
        self, batch: _RequestBatch, choice: GroupChooser | None
    ) -> tuple[Groups, Mismatch | None]:
        outcome = self.model.run(batch.requests, choice, batch.poison)
        return outcome.groups, self._first_mismatch(batch, outcome)

    def _again(self, batch: _RequestBatch, groups: Groups) -> Mismatch | None:
        """What is wrong if only these groups are executed; requests keep their numbers."""
        members = sorted(chain.from_iterable(groups))
        renumbered = [[members.index(member) for member in group] for group in groups]
        _, mismatch = self._examine(batch.of(members), exactly(renumbered))
        if mismatch is None or mismatch.request is None:
            return mismatch
        return Mismatch(members[mismatch.request], mismatch.text)

    def _first_mismatch(self, batch: _RequestBatch, outcome: BatchOutcome) -> Mismatch | None:
        if outcome.raised is not None:
            kind = type(outcome.raised).__name__
            return Mismatch(None, f"found {kind} '{outcome.raised}' for all, expected answers")
        examined = zip(batch.requests, outcome.answers, batch.expected, strict=True)
        for place, (request, answer, expected) in enumerate(examined):
            text = self.checker.mismatch(request, answer, expected, data_only=self.data_only)
            if text:
                return Mismatch(place, text)
        if outcome.failures:
            text = f"{outcome.failures} launch(es) failed, and were executed again in parts"
            return Mismatch(None, text)
        return None


def _expected(reference: Reference, request: RandomRequest) -> Mapping[str, Array]:
    try:
        return reference.answer(request)
    except EngineFault as fault:
        raise RuntimeFault(
            f"a random request of {request}: found the graph to fail on it by itself, expected "
            f"ranges of values that it takes, e.g. token ids of its vocabulary: {fault}"
        ) from fault


def smallest_failing(groups: Groups, fails: Callable[[Groups], bool]) -> Groups | None:
    """What is left of `groups` when no group and no member can go without the failure going too.

    None if the groups do not fail to begin with: then what failed before was something else.
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
    """The groups without one of them, then without one member."""
    for place in range(len(groups) if len(groups) > 1 else 0):
        yield [*groups[:place], *groups[place + 1 :]]
    for place, group in enumerate(groups):
        for member in group if len(group) > 1 else ():
            kept = [other for other in group if other != member]
            yield [*groups[:place], kept, *groups[place + 1 :]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What is not as it should be after a batch."""

    request: int | None
    """Its place in the batch; None if no single answer is to blame."""
    text: str

    def __str__(self) -> str:
        return self.text if self.request is None else f"request {self.request}: {self.text}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A request batch with a wrong answer."""

    round: int
    how: str
    """How its requests were executed."""
    requests: Sequence[str]
    """Its requests, in words."""
    mismatch: Mismatch
    groups: Groups
    """The requests of each execution, in order."""
    smallest: Groups | None
    """The fewest that fail on their own; None if those of `groups`, again, do not."""
    left: Mismatch | None
    """What is wrong after the smallest."""

    @property
    def failed_group(self) -> Sequence[int]:
        """The requests of the execution with the wrong answer."""
        return next((group for group in self.groups if self.mismatch.request in group), ())

    def lines(self) -> list[str]:
        """All of it for people."""
        lines = [f"round {self.round}, requests executed {self.how}:", f"  {self.mismatch}"]
        if self.failed_group:
            lines += ["its launch:", *self._described([self.failed_group])]
        if self.smallest is None:
            return [*lines, "executed once more, the same launches give no wrong answer"]
        count = len(self.smallest)
        lines.append(
            "the least that fails:" if count == 1 else f"the least that fails, {count} launches:"
        )
        return [*lines, *self._described(self.smallest), f"  {self.left}"]

    def _described(self, groups: Groups) -> list[str]:
        lines = []
        for number, group in enumerate(groups, start=1):
            lines += [f"  launch {number}"] if len(groups) > 1 else []
            lines += [f"    request {member}: {self.requests[member]}" for member in group]
        return lines


@dataclass(frozen=True, slots=True)
class Report:
    """What `check` found. Its text is for people."""

    model: str
    seed: int
    rounds: int
    """That were begun."""
    requests: int
    executions: int
    shared: int
    """Executions of more than one request."""
    pads: Mapping[str, str]
    """Input: the value that its padding had in the model's second opening."""
    failure: Failure | None

    @property
    def passed(self) -> bool:
        """Whether every answer was the expected one."""
        return self.failure is None

    def lines(self) -> list[str]:
        """All of it for people."""
        lines = [
            f"{self.model}: {self.rounds} round(s) of seed {self.seed}, {self.requests} request(s) "
            f"in {self.executions} launches, {self.shared} of them shared"
        ]
        if not self.shared:
            lines.append("no two requests shared a launch, so nothing is shown of company")
        lines += [f"padding of '{name}' poisoned with {value}" for name, value in self.pads.items()]
        if self.failure is None:
            return [*lines, "passed: every answer is that of the request by itself"]
        return [*lines, "FAILED", *self.failure.lines()]

    def __str__(self) -> str:
        return "\n".join(self.lines())
