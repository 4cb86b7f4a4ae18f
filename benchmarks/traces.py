"""Realistic sizes of requests: log-normal distributions, reproducible by a seed.

Imported by other benchmarks. `python -m benchmarks.traces` prints their percentiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ONE_IN_TEN_THOUSAND = 3.719
"""Quantile 0.9999 of the standard normal distribution."""

QUERY_SHARE = 0.8
VOCABULARY = 30_000


@dataclass(frozen=True)
class LogNormal:
    """A log-normal distribution whose 0.9999 quantile is the largest size; larger ones are cut."""

    median: int
    largest: int
    least: int = 1

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        deviation = math.log(self.largest / self.median) / ONE_IN_TEN_THOUSAND
        sizes = rng.lognormal(math.log(self.median), deviation, count).round().astype(np.int64)
        return sizes.clip(self.least, self.largest)


# Tokens with [CLS] and [SEP]: search queries, and passages that a search returns.
QUERIES = LogNormal(median=12, largest=128, least=3)
PASSAGES = LogNormal(median=90, largest=512, least=3)
# Image sides in pixels.
SIDES = LogNormal(median=256, largest=768, least=8)


def draw_mix(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Draw four queries for each passage, in random order."""
    queries, passages = QUERIES.draw(rng, count), PASSAGES.draw(rng, count)
    return np.where(rng.random(count) < QUERY_SHARE, queries, passages)


TOKEN_TRACES = {"queries": QUERIES.draw, "passages": PASSAGES.draw, "mix": draw_mix}
LARGEST = {"queries": QUERIES.largest, "passages": PASSAGES.largest, "mix": PASSAGES.largest}


def token_lengths(trace: str, count: int, seed: int) -> NDArray[np.int64]:
    """Return `count` lengths in tokens from a distribution in TOKEN_TRACES."""
    return TOKEN_TRACES[trace](np.random.default_rng(seed), count)


def token_rows(lengths: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """Return a row of random token ids [1, length] for each length."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCABULARY, (1, length)) for length in lengths]


def images(count: int, channels: int, seed: int) -> list[NDArray[np.float32]]:
    """Return images [1, channels, height, width] with aspects from 1:2 to 2:1."""
    rng = np.random.default_rng(seed)
    heights = SIDES.draw(rng, count)
    widths = (heights * np.exp2(rng.uniform(-1, 1, count))).round().astype(np.int64)
    return [
        rng.random((1, channels, height, width), dtype=np.float32)
        for height, width in zip(heights, widths.clip(SIDES.least, SIDES.largest), strict=True)
    ]


def batches(items: list, size: int) -> list[list]:
    """Split the items into batches of `size`; drop an incomplete batch."""
    return [items[start : start + size] for start in range(0, len(items) - size + 1, size)]


def main() -> None:
    """Print percentiles of all traces."""
    print(f"{'trace':10} {'median':>7} {'mean':>7} {'p90':>5} {'p99':>5} {'largest':>8}")
    for trace in TOKEN_TRACES:
        lengths = token_lengths(trace, 100_000, seed=0)
        p50, p90, p99 = np.percentile(lengths, [50, 90, 99])
        mean, largest = lengths.mean(), lengths.max()
        print(f"{trace:10} {p50:7.0f} {mean:7.1f} {p90:5.0f} {p99:5.0f} {largest:8}")


if __name__ == "__main__":
    main()
