"""Proof that no answer depends on who shared the batch, for any model on any engine.

    from ge_runtime.testing.conformance import check

    def test_no_answer_depends_on_its_company():
        report = check(version_dir, model_config, ranges={"input_ids": (0, 30000)})
        assert report.passed, str(report)

Random requests are drawn from the model's own configuration and answered by the runtime: each
alone, in random groups, and in the groups that the runtime itself forms. Every answer is held
against `reference`, a plain second implementation that executes the graph on one request by itself.

Whatever must not matter is poison: what a request's tensors hold past the ends of its rows, the
runtime's memory before each execution and, in a second opening of the model, the padding itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.errors import EngineFault, RuntimeFault
from ge_runtime.specs import Array
from ge_runtime.testing.drawing import Drawer, Drawn
from ge_runtime.testing.judging import Judge
from ge_runtime.testing.padding import Padding, poisonous_pads
from ge_runtime.testing.reference import Reference
from ge_runtime.testing.report import Failure, Report, Wrong
from ge_runtime.testing.shrinking import smallest
from ge_runtime.testing.steering import Choice, Groups, alone, at_random, exactly
from ge_runtime.testing.subject import Outcome, Subject

ROUNDS: Final = 20

_BYTES: Final = (0xFF, 0x7F)
"""Memory full of the first is NaN in every float type; of the second, no integer is sound."""


def check(
    version_dir: Path,
    model_config: Mapping[str, object],
    *,
    derived: Collection[str] = (),
    seed: int = 0,
    rounds: int = ROUNDS,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    tolerance: float | None = None,
    padding: Padding = "poison",
) -> Report:
    """Whether answers are the same alone and in any company, up to the first that is not.

    version_dir, model_config, derived: as for `Runtime.open`; the `cost` of model_config is not
    used. seed, rounds: of random request batches; equal seeds give equal request batches.
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

        def subject_of(parameters: Mapping[str, str]) -> Subject:
            return opened.enter_context(
                Subject.opened(version_dir, model_config, derived=derived, parameters=parameters)
            )

        subject = subject_of({})
        config = subject.parts.config
        drawer = Drawer(config, subject.parts.gears, ranges or {})
        reference, judge = Reference(subject.parts), Judge(config, tolerance)
        trials = [
            _Trial("each alone", subject, judge, lambda _: alone),
            _Trial("in random groups", subject, judge, at_random),
            _Trial("in the groups that the runtime forms", subject, judge, lambda _: None),
        ]
        pads = poisonous_pads(subject.parts, drawer.ranges, padding)
        if pads:
            padded = subject_of({f"pad.{name}": value for name, value in pads.items()})
            how = "in random groups, padding poisoned"
            trials.append(_Trial(how, padded, judge, at_random, data_only=True))
        begun = requests = executions = shared = 0
        failure = None
        while begun < rounds and failure is None:
            rng = np.random.default_rng((seed, begun))
            batch = drawer.batch(rng)
            expected = [_expected(reference, drawn) for drawn in batch]
            requests += len(batch)
            for place, trial in enumerate(trials):
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

    requests: Sequence[Drawn]
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
    subject: Subject
    judge: Judge
    choice: Callable[[np.random.Generator], Choice | None]
    """The executions of a request batch; see `Subject.run`."""
    data_only: bool = False
    """Answers may differ past the ends of rows."""

    def run(
        self, batch: _RequestBatch, rng: np.random.Generator, number: int
    ) -> tuple[Groups, Failure | None]:
        """The executions of the request batch, and what failed. number: of the round."""
        groups, wrong = self._examine(batch, self.choice(rng))
        if wrong is None:
            return groups, None
        least = smallest(groups, lambda less: self._again(batch, less) is not None)
        failure = Failure(
            round=number,
            how=self.how,
            batch=[str(drawn) for drawn in batch.requests],
            wrong=wrong,
            groups=groups,
            smallest=least,
            left=None if least is None else self._again(batch, least),
        )
        return groups, failure

    def _examine(self, batch: _RequestBatch, choice: Choice | None) -> tuple[Groups, Wrong | None]:
        outcome = self.subject.run(batch.requests, choice, batch.poison)
        return outcome.groups, self._first_wrong(batch, outcome)

    def _again(self, batch: _RequestBatch, groups: Groups) -> Wrong | None:
        """What is wrong if only these executions are run; requests keep their numbers."""
        members = sorted(chain.from_iterable(groups))
        renumbered = [[members.index(member) for member in group] for group in groups]
        _, wrong = self._examine(batch.of(members), exactly(renumbered))
        if wrong is None or wrong.request is None:
            return wrong
        return Wrong(members[wrong.request], wrong.text)

    def _first_wrong(self, batch: _RequestBatch, outcome: Outcome) -> Wrong | None:
        if outcome.raised is not None:
            kind = type(outcome.raised).__name__
            return Wrong(None, f"found {kind} '{outcome.raised}' for all, expected answers")
        examined = zip(batch.requests, outcome.answers, batch.expected, strict=True)
        for place, (drawn, answer, expected) in enumerate(examined):
            text = self.judge.fault(drawn, answer, expected, data_only=self.data_only)
            if text:
                return Wrong(place, text)
        if outcome.failures:
            text = f"{outcome.failures} launch(es) failed, and were executed again in parts"
            return Wrong(None, text)
        return None


def _expected(reference: Reference, drawn: Drawn) -> Mapping[str, Array]:
    try:
        return reference.answer(drawn)
    except EngineFault as fault:
        raise RuntimeFault(
            f"a random request of {drawn}: found the graph to fail on it by itself, expected "
            f"ranges of values that it takes, e.g. token ids of its vocabulary: {fault}"
        ) from fault
