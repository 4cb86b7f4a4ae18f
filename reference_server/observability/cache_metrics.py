"""The server's own metrics of its response cache: Triton's names and texts."""

from __future__ import annotations

from collections.abc import Callable

from reference_server.core.telemetry import FamilyHead, MetricKind, Sample
from reference_server.core.telemetry import CacheReading

_NS_PER_US = 1000


def _gauge(name: str, description: str) -> FamilyHead:
    return FamilyHead(f"nv_cache_{name}", description, MetricKind.GAUGE)


_GAUGES: dict[FamilyHead, Callable[[CacheReading], float]] = {
    _gauge("util", "Cache utilization [0.0 - 1.0]"): lambda cache: cache.utilization,
    _gauge("num_entries", "Number of responses stored in response cache"): lambda cache: (
        cache.entries
    ),
    _gauge("num_hits", "Number of cache hits in response cache"): lambda cache: cache.hits,
    _gauge("num_misses", "Number of cache misses in response cache"): lambda cache: cache.misses,
    _gauge("num_lookups", "Number of cache lookups in response cache"): lambda cache: cache.lookups,
    _gauge("num_evictions", "Number of cache evictions in response cache"): lambda cache: (
        cache.evictions
    ),
    _gauge(
        "lookup_duration", "Total cache lookup duration (hit and miss), in microseconds"
    ): lambda cache: cache.lookup_ns // _NS_PER_US,
    _gauge("insertion_duration", "Total cache insertion duration, in microseconds"): lambda cache: (
        cache.insertion_ns // _NS_PER_US
    ),
}

#: In the order of Triton's page.
HEADS = tuple(_GAUGES)


def samples(cache: CacheReading) -> dict[str, list[Sample]]:
    """The gauges by the names of their families."""
    return {head.name: [Sample((), value(cache))] for head, value in _GAUGES.items()}
