"""Metrics as values: families of series, and what they show at one moment."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

#: Pairs of a label's name and its value, sorted by name.
Labels = tuple[tuple[str, str], ...]

# Two underscores in front are Prometheus' own.
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


def is_label_name(text: str) -> bool:
    """Whether Prometheus lets a label have this name."""
    return _LABEL_NAME.fullmatch(text) is not None


class MetricKind(enum.Enum):
    """What a family's values are; the value is its name in Prometheus' text."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram has observed.

    `buckets` are pairs of an upper bound, which is included, and the number of values up to it;
    `count` is the number of all values.
    """

    count: int
    sum: float
    buckets: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """What a summary has observed.

    `values` are pairs of a quantile, from 0 to 1, and the value there; NaN if nothing was observed
    lately. `count` and `sum` are those of all values.
    """

    count: int
    sum: float
    values: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a family at one moment."""

    labels: Labels
    value: float | Distribution | Quantiles


@dataclass(frozen=True, slots=True)
class FamilyHead:
    """What the series of a family have in common."""

    name: str
    description: str
    kind: MetricKind


@dataclass(frozen=True, slots=True)
class Family:
    """A family at one moment."""

    head: FamilyHead
    samples: Sequence[Sample]
