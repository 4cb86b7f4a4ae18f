"""The command line's settings of the metrics, in Triton's spelling."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence

from reference_server.options import DEFAULT_QUANTILES, LatencyMetrics, Quantile

SWITCHES = frozenset({"counter_latencies", "summary_latencies"})
NAMES = frozenset({"summary_quantiles", *SWITCHES})

# What C++ reads as a number: what leads the text counts.
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")


def setting(text: str) -> tuple[str, str]:
    """A setting and its value, out of `<setting>=<value>`."""
    name, _, value = text.partition("=")
    if not name or not value or "," in name:
        raise argparse.ArgumentTypeError(
            f"--metrics-config option format is <setting>=<value>. Got {text}"
        )
    return name, value


def latencies(settings: Sequence[tuple[str, str]]) -> LatencyMetrics:
    """Which latencies are told, and how. Triton overlooks names and values that it does not know.

    Each setting is a switch that stays where it was once put.
    """
    quantiles: tuple[Quantile, ...] = ()
    for name, value in settings:
        if name == "summary_quantiles":
            quantiles = tuple(_quantiles(value))
    return LatencyMetrics(
        counters=("counter_latencies", "false") not in settings,
        summaries=("summary_latencies", "true") in settings,
        quantiles=quantiles or DEFAULT_QUANTILES,
    )


def _quantiles(text: str) -> Iterator[Quantile]:
    for pair in text.split(","):
        quantile, _, error = pair.partition(":")
        read = _NUMBER.match(quantile), _NUMBER.match(error)
        if read[0] is not None and read[1] is not None:
            yield Quantile(float(read[0][1]), float(read[1][1]))
