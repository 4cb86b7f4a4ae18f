"""The conformance suite: proves that no answer depends on the other requests of a batch.

    from ge_runtime.testing.conformance import check

    def test_answers_do_not_depend_on_other_requests():
        report = check(version_dir, model_config, ranges={"input_ids": (0, 30000)})
        assert report.passed, str(report)

Random requests are drawn from the model's own configuration. The runtime answers them alone, in
random groups, and in the groups that it forms itself. Every answer is compared with the answer of
`Reference`, a plain second implementation that executes the graph on one request alone. Rounding
may cause a difference, so it is measured. But rounding does not depend on the values of other
requests. Therefore the random groups are executed again at the same shapes: one request of each
group keeps its values, and all others get new values. The answer to the unchanged request must keep
every bit.

Everything that must not affect an answer is filled with poison: the elements past the end of a row
that is shorter than its tensor, the runtime's memory before each execution and, when the model is
opened a second time, the padding. The suite works with any model and engine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from ge_runtime.testing.random_requests import RandomRequest, RequestGenerator, nudged_values
from ge_runtime.testing.trials import ExpectedBatch, Failure, Leakage, Mismatch, Report
from ge_runtime.verification.distance import Rounding, Variants

DEFAULT_ROUNDS: Final = 20

_BYTES: Final = (0xFF, 0x7F)
"""Bytes that fill the memory: 0xFF turns floats into NaN, 0x7F makes integers very large."""


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
    """Check that answers are the same alone and beside other requests; stop at the first failure.

    Blocks while the model executes some hundred times.

    Args:
        version_dir: The version folder, as for `Runtime.open`.
        model_config: The model configuration, as for `Runtime.open`; its `cost` is not used.
        derived: Names of the outputs that the model's own code computes.
        seed: Seed of the random request batches; equal seeds give equal batches.
        rounds: Number of random request batches.
        ranges: By input or `prepared.<tensor>`, the lowest and the highest value of its elements.
            Integers are below the highest value. Default: 0 to 10 for integers, -1 to 1 for
            floats. Token ids must be in the model's vocabulary.
        tolerance: Allowed difference of floats, relative to the expected value plus 1. It replaces
            `distance.TOLERANCES` and measured rounding. All other types must be equal. NaN equals
            NaN.
        padding: With "poison", a model whose graph receives a mask or lengths is opened a second
            time, with the highest value of each range as padding. With "nan", floats are padded
            with NaN; the graph must select by its mask, since NaN times 0 is NaN. With "keep",
            the model is not opened a second time.
        seconds: No round starts after this time.

    Returns:
        The report; `report.passed` is whether all answers were as expected.

    Raises:
        RuntimeFault: A range of an unknown input, or the graph fails on a single request.
        ConfigFault: The model cannot be opened. All other errors of `Runtime.open` are possible.
    """
    with ExitStack() as opened:
        open_model = partial(ModelUnderTest.opened, version_dir, model_config, derived=derived)
        model = opened.enter_context(open_model())
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
            poisoned = {f"pad.{name}": value for name, value in pads.items()}
            padded = opened.enter_context(open_model(parameters=poisoned))
            how = "in random groups, padding poisoned"
            trials.append(trial(how, padded, choice=at_random, data_only=True))
        ends = time.monotonic() + seconds
        started = requests = executions = shared = 0
        failure = None
        while started < rounds and failure is None and (not started or time.monotonic() < ends):
            # One generator for each round, so that a round does not depend on earlier ones.
            rng = np.random.default_rng((seed, started))
            batch = generator.request_batch(rng)
            expected = [_expected(reference, request) for request in batch]
            groups, failure = _run_round(trials, batch, expected, rng, started)
            requests += len(batch)
            executions += len(groups)
            shared += sum(len(group) > 1 for group in groups)
            started += 1
        return Report(
            model=config.model,
            seed=seed,
            rounds=started,
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
    """True to measure how far rounding changes an answer that differs."""
    choice: Callable[[np.random.Generator], GroupChooser | None]
    """Groups a request batch; see `ModelUnderTest.run`."""
    data_only: bool = False
    """True to ignore the elements past the ends of rows."""

    def run(
        self, batch: ExpectedBatch, rng: np.random.Generator, number: int
    ) -> tuple[Groups, Failure | None]:
        """Execute the batch in round `number`; return its executions and the failure."""
        groups, mismatch = self._examine(batch, self.choice(rng))
        if mismatch is None:
            return groups, None
        again = partial(self._again, batch)
        return groups, Failure.reduced(number, self.how, batch.requests, mismatch, groups, again)

    def _examine(
        self, batch: ExpectedBatch, choice: GroupChooser | None
    ) -> tuple[Groups, Mismatch | None]:
        outcome = self.model.run(batch.requests, choice, batch.poison)
        return outcome.groups, self._first_mismatch(batch, outcome)

    def _again(self, batch: ExpectedBatch, groups: Groups) -> Mismatch | None:
        """Execute only these groups; return the mismatch with the request's index in `batch`."""
        members = sorted(chain.from_iterable(groups))
        renumbered = [[members.index(member) for member in group] for group in groups]
        _, mismatch = self._examine(batch.select(members), exactly(renumbered))
        if mismatch is None or mismatch.request is None:
            return mismatch
        return Mismatch(members[mismatch.request], mismatch.text)

    def _first_mismatch(self, batch: ExpectedBatch, outcome: BatchOutcome) -> Mismatch | None:
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
            text = f"{outcome.failures} execution(s) failed, and were repeated in parts"
            return Mismatch(None, text)
        return None

    def _rounding(self, request: RandomRequest, expected: Mapping[str, Array]) -> Rounding:
        """Return the bounds of rounding for a request alone."""

        def variants() -> Variants:
            nudged = [nudged_values(self.model.parts.config, request, seed) for seed in range(2)]
            answers = [self.reference.answer(own) for own in nudged if own is not None]
            return Variants(answers, [])

        return Rounding(self.model.parts.config.outputs, expected, variants)


def _run_round(
    trials: Sequence[_Trial | Leakage],
    batch: Sequence[RandomRequest],
    expected: Sequence[Mapping[str, Array]],
    rng: np.random.Generator,
    number: int,
) -> tuple[Groups, Failure | None]:
    """Run trials until the first failure; return all executions, and the failure."""
    executed: list[Sequence[int]] = []
    for place, trial in enumerate(trials):
        # Each way of executing alternates between both bytes.
        examined = ExpectedBatch(batch, expected, _BYTES[(number + place) % len(_BYTES)])
        groups, failure = trial.run(examined, rng, number)
        executed += groups
        if failure is not None:
            return executed, failure
    return executed, None


def _expected(reference: Reference, request: RandomRequest) -> Mapping[str, Array]:
    try:
        return reference.answer(request)
    except EngineFault as fault:
        raise RuntimeFault(
            f"graph: found that it fails on a single random request of {request}; expected values "
            f"that it accepts. Set the ranges of its inputs, e.g. of token ids: {fault}"
        ) from fault
