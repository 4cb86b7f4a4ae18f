"""Writes metrics in Prometheus' text format, as Triton's library does.

The official client library for Python writes another dialect (it renames counters to `*_total`,
adds series of creation times, and prints integers as `2.0`), so it could not be used here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from reference_server.core.telemetry import Distribution, Family, Labels, Quantiles

CONTENT_TYPE = b"text/plain; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def encode(families: Iterable[Family]) -> bytes:
    """Return the page; families without series are left out."""
    lines = (line for family in families if family.samples for line in _lines(family))
    return "".join(f"{line}\n" for line in lines).encode()


def _lines(family: Family) -> Iterator[str]:
    head = family.head
    if head.description:
        # Triton does not escape the line feed, which makes the page invalid.
        description = head.description.replace("\n", r"\n")
        yield f"# HELP {head.name} {description}"
    yield f"# TYPE {head.name} {head.kind.value}"
    for sample in family.samples:
        if isinstance(sample.value, Distribution):
            yield from _distribution(head.name, sample.labels, sample.value)
        elif isinstance(sample.value, Quantiles):
            yield from _quantiles(head.name, sample.labels, sample.value)
        else:
            yield f"{head.name}{_labels(sample.labels)} {_number(sample.value)}"


def _distribution(name: str, labels: Labels, value: Distribution) -> Iterator[str]:
    shown = _labels(labels)
    yield f"{name}_count{shown} {value.count}"
    yield f"{name}_sum{shown} {_number(value.sum)}"
    for bound, count in (*value.buckets, (math.inf, value.count)):
        yield f"{name}_bucket{_labels((*labels, ('le', _number(bound))))} {count}"


def _quantiles(name: str, labels: Labels, value: Quantiles) -> Iterator[str]:
    shown = _labels(labels)
    yield f"{name}_count{shown} {value.count}"
    yield f"{name}_sum{shown} {_number(value.sum)}"
    for quantile, found in value.values:
        labelled = _labels((*labels, ("quantile", _number(quantile))))
        yield f"{name}{labelled} {_number(found)}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{pairs}}}"


def _number(value: float) -> str:
    """Format with 16 digits, one fewer than distinguish all doubles, and no trailing zeros."""
    if math.isfinite(value):
        return f"{float(value):.16g}"
    return "Nan" if math.isnan(value) else f"{value:+}".replace("inf", "Inf")
