"""Comparison of responses and latencies of requests that were sent to two servers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from triton_replay.capture.files import Asked
from triton_replay.capture.renaming import Names
from triton_replay.comparing.comparison import check_names
from triton_replay.comparing.differences import compare_answers, failure_of, model_of, outputs_of
from triton_replay.comparing.groups import Compared, Group, group
from triton_replay.comparing.noise import measure_noise
from triton_replay.comparing.paired import Effect, Sample, judge
from triton_replay.comparing.tolerances import Tolerances


@dataclass
class _OfModel:
    """The results of one model's requests."""

    requests: int = 0
    failures: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Number of failed asks by reason, for each server."""
    answers: list[Compared] = field(default_factory=list)
    """Differences between A's and B's responses."""
    noise: list[Compared] = field(default_factory=list)
    """Differences between the two asks of A."""
    a: list[tuple[int, ...]] = field(default_factory=list)
    b: list[tuple[int, ...]] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)


class ModelVerdict(NamedTuple):
    """The verdict on one model."""

    model: str
    requests: int
    failures: Mapping[str, Mapping[str, int]]
    groups: tuple[Group, ...]
    """Differences between A and B that exceed `noise`."""
    noise: tuple[Group, ...]
    """Differences between A's own responses."""
    effects: tuple[Effect, ...]
    """Empty if there are too few requests."""
    timed: int
    """Number of requests with a latency on all sides."""


class Results:
    """Collects the results of all asks, without message bodies."""

    def __init__(self, tolerances: Tolerances, *, learn: bool = False) -> None:
        self._tolerances = tolerances
        self._learn = learn
        self._models: defaultdict[str, _OfModel] = defaultdict(_OfModel)
        self._outputs: set[tuple[str, str]] = set()
        self.requests = 0
        self.answered = 0

    def add(self, a: Sequence[Asked], b: Sequence[Asked], again: Asked | None) -> None:
        """Add the asks of one request.

        Args:
            a: The asks of A.
            b: The same number of asks of B.
            again: A second ask of A, or an ask of A's copy; None if the request cannot be
                repeated.
        """
        first, other = a[0][0], b[0][0]
        request, name = first.request, model_of(first.request)
        model = self._models[name]
        self.requests += 1
        model.requests += 1
        reasons = {"A": failure_of(first), "B": failure_of(other)}
        if again is not None:
            reasons["A again"] = failure_of(again[0])
        for side, reason in reasons.items():
            model.failures[side].update([reason] if reason else [])
        self.answered += any(exchange.response is not None for exchange, _ in (*a, *b))
        # B may have other output names.
        named = (first,) if self._tolerances.names.outputs else (first, other)
        self._outputs |= {(name, output) for one in named for output in outputs_of(one)}
        plain = replace(self._tolerances, names=Names())
        found = tuple(compare_answers(name, first, other, self._tolerances))
        varies = found and len(b) > 1 and compare_answers(name, other, b[1][0], plain)
        model.answers.append(Compared(name, request, found, varies="B" if varies else ""))
        if again is not None:
            noise = tuple(compare_answers(name, first, again[0], plain))
            model.noise.append(Compared(name, request, noise))
        failed = any(failure_of(exchange) for exchange, _ in (*a, *b))
        if again is not None and not failed and not reasons["A again"]:
            model.a.append(tuple(latency for _, latency in a))
            model.b.append(tuple(latency for _, latency in b))
            model.pairs.append((a[0][1], again[1]))

    def judged(self, at_least: float) -> list[ModelVerdict]:
        """Return the verdicts on all models, in descending order of requests.

        Raises:
            ReplayError: A tolerance names an output that no response has.
        """
        check_names(self._tolerances, self._outputs)
        effects = judge(
            {
                name: Sample(*(np.array(each, float) for each in (model.a, model.b, model.pairs)))
                for name, model in self._models.items()
                if model.a
            },
            at_least,
        )
        return [
            ModelVerdict(
                name,
                model.requests,
                {side: dict(counts) for side, counts in model.failures.items()},
                *self._groups(model),
                effects.get(name, ()),
                len(model.a),
            )
            for name, model in sorted(self._models.items(), key=lambda each: -each[1].requests)
        ]

    def _groups(self, model: _OfModel) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
        """Return B's groups without A's noise, and the groups of the noise."""
        noise = measure_noise(one.differences for one in model.noise)
        beyond = noise.beyond([one.differences for one in model.answers], learn=self._learn)
        answers = [
            replace(one, differences=left) for one, left in zip(model.answers, beyond, strict=True)
        ]
        return tuple(group(answers)), tuple(group(model.noise))


def differing(verdict: Sequence[ModelVerdict]) -> int:
    """Return the number of requests whose responses differ beyond noise."""
    return sum(len({n for one in each.groups for n in one.requests}) for each in verdict)


def more_errors(verdict: Sequence[ModelVerdict]) -> int:
    """Return the number of additional failed requests in B, summed over the models."""
    return sum(
        max(0, sum(each.failures["B"].values()) - sum(each.failures["A"].values()))
        for each in verdict
    )
