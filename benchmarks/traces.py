"""Sizes of requests as they come in the field: seeded, log-normal, cut into batches of arrival.

Imported by the other benchmarks. `python -m benchmarks.traces` shows what the traces look like.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# One draw in ten thousand of a normal distribution lies this many deviations above its median.
ONE_IN_TEN_THOUSAND = 3.719

QUERY_SHARE = 0.8
VOCABULARY = 30_000


@dataclass(frozen=True)
class LogNormal:
    """Sizes around a median; about one in ten thousand would pass the largest, and is cut."""

    median: int
    largest: int
    least: int = 1

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        deviation = math.log(self.largest / self.median) / ONE_IN_TEN_THOUSAND
        sizes = rng.lognormal(math.log(self.median), deviation, count).round().astype(np.int64)
        return sizes.clip(self.least, self.largest)


# Tokens, [CLS] and [SEP] among them: what people type into a search box, and what it finds.
QUERIES = LogNormal(median=12, largest=128, least=3)
PASSAGES = LogNormal(median=90, largest=512, least=3)
# Pixels of a side.
SIDES = LogNormal(median=256, largest=768, least=8)


def draw_mix(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Four queries for each passage, in random order."""
    queries, passages = QUERIES.draw(rng, count), PASSAGES.draw(rng, count)
    return np.where(rng.random(count) < QUERY_SHARE, queries, passages)


TOKEN_TRACES = {"queries": QUERIES.draw, "passages": PASSAGES.draw, "mix": draw_mix}
LARGEST = {"queries": QUERIES.largest, "passages": PASSAGES.largest, "mix": PASSAGES.largest}


def token_lengths(trace: str, count: int, seed: int) -> NDArray[np.int64]:
    """[count] lengths in tokens. trace: a name of TOKEN_TRACES."""
    return TOKEN_TRACES[trace](np.random.default_rng(seed), count)


def token_rows(lengths: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """For each length a row of as many token ids, [1, length]."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCABULARY, (1, length)) for length in lengths]


def images(count: int, channels: int, seed: int) -> list[NDArray[np.float32]]:
    """[1, channels, height, width] each, sides of aspects from 1:2 to 2:1."""
    rng = np.random.default_rng(seed)
    heights = SIDES.draw(rng, count)
    widths = (heights * np.exp2(rng.uniform(-1, 1, count))).round().astype(np.int64)
    return [
        rng.random((1, channels, height, width), dtype=np.float32)
        for height, width in zip(heights, widths.clip(SIDES.least, SIDES.largest), strict=True)
    ]


def batches(items: list, size: int) -> list[list]:
    """The items in runs of `size`: what arrives while the batch before is executed."""
    return [items[start : start + size] for start in range(0, len(items) - size + 1, size)]


def main() -> None:
    print(f"{'trace':10} {'median':>7} {'mean':>7} {'p90':>5} {'p99':>5} {'largest':>8}")
    for trace in TOKEN_TRACES:
        lengths = token_lengths(trace, 100_000, seed=0)
        p50, p90, p99 = np.percentile(lengths, [50, 90, 99])
        mean, largest = lengths.mean(), lengths.max()
        print(f"{trace:10} {p50:7.0f} {mean:7.1f} {p90:5.0f} {p99:5.0f} {largest:8}")


if __name__ == "__main__":
    main()
