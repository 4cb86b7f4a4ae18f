"""Latency verdicts of paired requests: each request was sent to A and B within milliseconds.

A difference is reported if three conditions hold. If a second copy of A is the third server, the
conditions must hold for B against A and against the copy.

1. It is improbable by chance. The test exchanges A and B at random, in whole blocks of consecutive
   requests. This preserves effects that are common to both sides, and effects that last longer than
   a request. The probabilities of all models and statistics are corrected together (Holm 1979, "A
   simple sequentially rejective multiple test procedure").
2. It is larger than the usual difference of two equal servers. The differences between A and a
   second A of the same run estimate this, after subtracting their variance by chance (the variance
   between studies of DerSimonian and Laird 1986).
3. It is at least the size that the user specifies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, log, log2
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from triton_replay.comparing.latencies import rank

Times = NDArray[np.float64]

PERCENTILES: Final = (50, 90, 99)
STATISTICS: Final = (*(f"p{percent}" for percent in PERCENTILES), "slowest 0.5 %")
"""The mean of the slowest requests shows rare stalls. A larger share hides them. Simulated servers
stalled for 30 ms in 1 of 150 of 2,000 requests, and for less in 2 %: the slowest 0.5 % showed the
stalls in 38 of 40 simulations, the slowest 1 % in 34."""
_SLOWEST: Final = 200
"""One in this number of asks (sendings of a request) is among the slowest."""
MIN_REQUESTS: Final = 20
"""With fewer requests there is no verdict."""

_CHANCE: Final = 0.05
_MIN_BLOCKS: Final = 16
"""A server may be slow for a part of the run, e.g. because another process uses its core. Long
blocks keep such a part in few blocks. With 50 blocks, 9 of 60 comparisons of equal servers (25
models, load 15 on two cores) reported a difference, and 56 of 60 simulations of rare stalls found
the stalls. With 16 blocks, 3 comparisons and 54 simulations did."""
_EXCHANGES_PER_TEST: Final = 200
_MIN_EXCHANGES: Final = 2_000
_FIRST_EXCHANGES: Final = 300
_RESAMPLES: Final = 200
_CHUNK_VALUES: Final = 2_000_000
"""Most values sorted at once: a limit of the used memory."""


@dataclass(frozen=True)
class Sample:
    """The latencies of one model, in nanoseconds; a row is a request, in the order of sending.

    An ask is one sending of a request to one server. Requests with a failed ask are excluded.
    """

    a: Times
    """Shape [requests, asks]."""
    b: Times
    """The shape of `a`."""
    noise: Times
    """Shape [requests, 2]: the first ask of A, and a second ask of A or an ask of its copy."""

    @property
    def references(self) -> tuple[Times, ...]:
        """The latencies to compare with `b`: those of A, and those of A's copy if it exists."""
        return (self.a,) if self.a.shape[1] > 1 else (self.a, self.noise[:, 1:])


@dataclass(frozen=True)
class Effect:
    """One statistic of one model. Ratios are B / A; the confidence interval has 95 %."""

    statistic: str
    a: float
    """Nanoseconds."""
    b: float
    ratio: float
    low: float
    high: float
    noise: float
    """Ratio of A's second ask, or of the ask of A's copy, to A's first ask."""
    noise_bound: float
    """Largest probable ratio (above 1) between two equal servers."""
    probability: float
    """Probability by chance, corrected for all models and statistics."""
    verdict: str
    """Either "slower", "faster" or ""."""


def judge(
    samples: Mapping[str, Sample], at_least: float, seed: int = 1
) -> Mapping[str, tuple[Effect, ...]]:
    """Return the effects of each model with at least MIN_REQUESTS requests.

    Args:
        samples: Latencies by model.
        at_least: Smallest reported change, e.g. 0.05 for 5 %.
        seed: Seed of the random exchanges; equal seeds give equal results.
    """
    random = np.random.default_rng(seed)
    judged = {name: one for name, one in samples.items() if len(one.a) >= MIN_REQUESTS}
    tests = len(judged) * len(STATISTICS)
    exchanges = max(_MIN_EXCHANGES, _EXCHANGES_PER_TEST * tests)
    # All blocks agree by chance with the probability 2 / 2**blocks; this stays below 0.02 / tests.
    blocks = max(_MIN_BLOCKS, ceil(log2(100 * max(1, tests))))
    chances = [
        np.max([_chances(a, one.b, blocks, exchanges, random) for a in one.references], axis=0)
        for one in judged.values()
    ]
    corrected = np.reshape(
        holm([each for of_model in chances for each in of_model]), (-1, len(STATISTICS))
    )
    noises = [
        _resampled(one.noise[:, :1], one.noise[:, 1:], blocks, random) for one in judged.values()
    ]
    # The number of standard deviations that covers the differences of all models.
    deviations = NormalDist().inv_cdf(1 - _CHANCE / 2 / max(1, len(judged)))
    bounds = deviations * _beyond_chance(noises)
    return {
        name: _effects(one, of_model, noise, bounds, at_least, blocks, random)
        for (name, one), of_model, noise in zip(judged.items(), corrected, noises, strict=True)
    }


def _beyond_chance(noises: Sequence[tuple[Times, Times]]) -> Times:
    """Return, for each statistic, the part of the spread of equal servers that exceeds chance."""
    if not noises:
        return np.zeros(len(STATISTICS))
    excess = [ratios**2 - np.var(drawn, axis=0) for ratios, drawn in noises]
    spread: Times = np.sqrt(np.maximum(np.mean(excess, axis=0), 0))
    return spread


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return the probabilities, corrected for the number of tests, in the same order."""
    corrected = [0.0] * len(probabilities)
    worst = 0.0
    for done, at in enumerate(sorted(range(len(probabilities)), key=probabilities.__getitem__)):
        worst = max(worst, min(1.0, probabilities[at] * (len(probabilities) - done)))
        corrected[at] = worst
    return corrected


def _chances(
    a: Times, b: Times, blocks: int, exchanges: int, random: np.random.Generator
) -> list[float]:
    """Return for each statistic the probability that exchanged blocks give as large an effect."""
    seen = np.abs(_log_ratios(a[None], b[None])[0]) - 1e-12
    block = _blocks(len(a), blocks)
    reached, tried = np.zeros(len(STATISTICS)), 0
    chunk = max(1, min(_FIRST_EXCHANGES, _CHUNK_VALUES // a.size))
    while tried < exchanges:
        count = min(chunk, exchanges - tried)
        swaps = random.integers(0, 2, (count, block[-1] + 1), dtype=np.bool_)[:, block, None]
        exchanged = _log_ratios(np.where(swaps, b, a), np.where(swaps, a, b))
        reached += (np.abs(exchanged) >= seen).sum(axis=0)
        tried += count
        # Probabilities above 0.1 need not be exact.
        if tried >= _FIRST_EXCHANGES and (reached >= 0.1 * tried).all():
            break
    return [float(count + 1) / (tried + 1) for count in reached]


def _effects(
    sample: Sample,
    chances: Times,
    noise: tuple[Times, Times],
    bounds: Times,
    at_least: float,
    blocks: int,
    random: np.random.Generator,
) -> tuple[Effect, ...]:
    a, b = _statistics(sample.a[None])[0], _statistics(sample.b[None])[0]
    ratios, drawn = _resampled(sample.a, sample.b, blocks, random)
    others = [_log_ratios(each[None], sample.b[None])[0] for each in sample.references]
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    effects = []
    for at, statistic in enumerate(STATISTICS):
        ratio, bound = float(ratios[at]), float(bounds[at])
        smallest = log(1 + at_least) if ratio > 0 else -log(1 - at_least)
        sign = 1 if ratio > 0 else -1
        least = min(sign * float(each[at]) for each in others)
        is_proven = chances[at] <= _CHANCE and least >= max(smallest, bound)
        verdict = ("slower" if ratio > 0 else "faster") if is_proven else ""
        effects.append(
            Effect(
                statistic=statistic,
                a=float(a[at]),
                b=float(b[at]),
                ratio=exp(ratio),
                low=exp(low[at]),
                high=exp(high[at]),
                noise=exp(noise[0][at]),
                noise_bound=exp(bound),
                probability=float(chances[at]),
                verdict=verdict,
            )
        )
    return tuple(effects)


def _resampled(a: Times, b: Times, blocks: int, random: np.random.Generator) -> tuple[Times, Times]:
    """Return the log ratios of B to A, and the log ratios of random selections of blocks."""
    block = _blocks(len(a), blocks)
    members = [np.flatnonzero(block == number) for number in range(block[-1] + 1)]
    drawn = []
    for _ in range(_RESAMPLES):
        chosen = random.integers(0, len(members), len(members))
        rows = np.concatenate([members[at] for at in chosen])
        drawn.append(_log_ratios(a[rows][None], b[rows][None])[0])
    return _log_ratios(a[None], b[None])[0], np.array(drawn)


def _blocks(count: int, blocks: int) -> NDArray[np.intp]:
    """Return the block of each of `count` consecutive requests."""
    return np.arange(count) * min(blocks, count) // count


def _log_ratios(a: Times, b: Times) -> Times:
    """Return log(B / A), shape [draws, statistics], of times [draws, requests, asks]."""
    return np.log(_statistics(b)) - np.log(_statistics(a))


def _statistics(times: Times) -> Times:
    """Return STATISTICS, shape [draws, statistics], of times [draws, requests, asks]."""
    values = times.reshape(len(times), -1)
    count = values.shape[1]
    slowest = max(1, count // _SLOWEST)
    ranks = [rank(count, percent) for percent in PERCENTILES]
    ordered = np.partition(values, [*ranks, count - slowest], axis=1)
    tail = ordered[:, count - slowest :].mean(axis=1, keepdims=True)
    return np.concatenate([ordered[:, ranks], tail], axis=1)
