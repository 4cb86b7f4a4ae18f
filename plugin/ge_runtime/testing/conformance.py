"""The conformance suite: no answer depends on who shared the batch, on any model and engine.

    from ge_runtime.testing.conformance import check

    def test_no_answer_depends_on_its_company():
        report = check(version_dir, model_config, ranges={"input_ids": (0, 30000)})
        assert report.passed, str(report)

Random requests are drawn from the model's own configuration and answered by the runtime: each
alone, in random groups, and in the groups that the runtime itself forms. Every answer is held
against `Reference`, a plain second implementation that executes the graph on one request by itself.
What differs there may be rounding, which is measured. Leakage depends on the values of others, and
rounding does not: so the random groups are executed once more, at the same shapes, with other
values in all requests but one of each group, whose answers must not change by a bit.

Whatever must not matter is poison: what a request's tensors hold past the ends of its rows, the
runtime's memory before each execution and, in a second opening of the model, the padding itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.errors import EngineFault, RuntimeFault
from ge_runtime.specs import Array
from ge_runtime.testing.expected_answers import AnswerChecker, Reference
from ge_runtime.testing.leakage import AskedBatch, Leakage
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
    smallest_failing,
)
from ge_runtime.testing.random_requests import RandomRequest, RequestGenerator, nudged_values
from ge_runtime.testing.report import Failure, Mismatch, Report
from ge_runtime.verification.distance import Rounding, Variants

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
    seconds: float = math.inf,
) -> Report:
    """Whether answers are the same alone and in any company, up to the first that is not.

    version_dir, model_config, derived: as for `Runtime.open`; the `cost` of model_config is not
    used. seed, rounds: of random request batches; equal seeds give equal batches.
    ranges: input or prepared tensor to the values of its elements, low to high, high excluded for
    integers; 0 to 9 for integers and -1 to 1 for floats if not given. Token ids must be of the
    model's vocabulary.
    tolerance: of floats, relative to the expected value plus 1, in place of
    `elements.TOLERANCES` and of measured rounding. All else must agree in every bit; NaN agrees
    with NaN.
    padding: "poison" opens the model once more with padding of the highest value of each range,
    where generated inputs tell the graph what is padding; "nan" the same with NaN for floats, for
    graphs that select by their mask: NaN times 0 is NaN. "keep" leaves padding as it is.
    seconds: no further round is begun after them.

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
        trial = partial(_Trial, reference=reference, checker=checker, measures=tolerance is None)
        leakage = Leakage(model, generator, config)
        trials: list[_Trial | Leakage] = [
            trial("each alone", model, choice=lambda _: alone),
            trial("in random groups", model, choice=at_random),
            trial("in the groups that the runtime forms", model, choice=lambda _: None),
            leakage,
        ]
        pads = poisoned_pads(model.parts, generator.ranges, padding)
        if pads:
            padded = opened_with({f"pad.{name}": value for name, value in pads.items()})
            how = "in random groups, padding poisoned"
            trials.append(trial(how, padded, choice=at_random, data_only=True))
        ends = time.monotonic() + seconds
        begun = requests = executions = shared = 0
        failure = None
        while begun < rounds and failure is None and (not begun or time.monotonic() < ends):
            # A generator for each round: a round is the same however many come before it.
            rng = np.random.default_rng((seed, begun))
            batch = generator.request_batch(rng)
            expected = [_expected(reference, request) for request in batch]
            requests += len(batch)
            for place, way in enumerate(trials):
                # Each way of executing meets both bytes, in turn.
                examined = AskedBatch(batch, expected, _BYTES[(begun + place) % len(_BYTES)])
                groups, failure = way.run(examined, rng, begun)
                executions += len(groups)
                shared += sum(len(group) > 1 for group in groups)
                if failure is not None:
                    break
            begun += 1
        return Report(
            model=config.model,
            seed=seed,
            rounds=begun,
            requests=requests,
            executions=executions,
            shared=shared,
            pads=pads,
            changed=leakage.changed,
            moved=checker.moved,
            failure=failure,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """One way to execute request batches."""

    how: str
    model: ModelUnderTest
    reference: Reference
    checker: AnswerChecker
    measures: bool
    """Whether to measure how far rounding moves an answer that is not the expected one."""
    choice: Callable[[np.random.Generator], GroupChooser | None]
    """How a request batch is grouped; see `ModelUnderTest.run`."""
    data_only: bool = False
    """Answers may differ past the ends of rows."""

    def run(
        self, batch: AskedBatch, rng: np.random.Generator, number: int
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
        self, batch: AskedBatch, choice: GroupChooser | None
    ) -> tuple[Groups, Mismatch | None]:
        outcome = self.model.run(batch.requests, choice, batch.poison)
        return outcome.groups, self._first_mismatch(batch, outcome)

    def _again(self, batch: AskedBatch, groups: Groups) -> Mismatch | None:
        """What is wrong if only these groups are executed; requests keep their numbers."""
        members = sorted(chain.from_iterable(groups))
        renumbered = [[members.index(member) for member in group] for group in groups]
        _, mismatch = self._examine(batch.of(members), exactly(renumbered))
        if mismatch is None or mismatch.request is None:
            return mismatch
        return Mismatch(members[mismatch.request], mismatch.text)

    def _first_mismatch(self, batch: AskedBatch, outcome: BatchOutcome) -> Mismatch | None:
        if outcome.raised is not None:
            kind = type(outcome.raised).__name__
            return Mismatch(None, f"found {kind} '{outcome.raised}' for all, expected answers")
        examined = zip(batch.requests, outcome.answers, batch.expected, strict=True)
        for place, (request, answer, expected) in enumerate(examined):
            rounding = self._rounding(request, expected) if self.measures else None
            text = self.checker.mismatch(
                request, answer, expected, data_only=self.data_only, rounding=rounding
            )
            if text:
                return Mismatch(place, text)
        if outcome.failures:
            text = f"{outcome.failures} launch(es) failed, and were executed again in parts"
            return Mismatch(None, text)
        return None

    def _rounding(self, request: RandomRequest, expected: Mapping[str, Array]) -> Rounding:
        """How far rounding moves the answer of a request by itself."""

        def variants() -> Variants:
            nudged = [nudged_values(self.model.parts.config, request, seed) for seed in range(2)]
            answers = [self.reference.answer(own) for own in nudged if own is not None]
            return Variants(answers, [])

        return Rounding(self.model.parts.config.outputs, expected, variants)


def _expected(reference: Reference, request: RandomRequest) -> Mapping[str, Array]:
    try:
        return reference.answer(request)
    except EngineFault as fault:
        raise RuntimeFault(
            f"a random request of {request}: found the graph to fail on it by itself, expected "
            f"ranges of values that it takes, e.g. token ids of its vocabulary: {fault}"
        ) from fault
