"""The metrics of the response cache, computed from its counters."""

from reference_server.core.telemetry import CacheReading, Sample
from reference_server.observability.server_metrics import CACHE_FAMILIES, cache_samples


def test_each_family_shows_its_counter():
    reading = CacheReading(0.25, 3, 5, 7, 2, lookup_ns=12_999, insertion_ns=4_001_000)
    found = cache_samples(reading)
    assert list(found) == [head.name for head in CACHE_FAMILIES]
    assert found == {
        "nv_cache_util": [Sample((), 0.25)],
        "nv_cache_num_entries": [Sample((), 3)],
        "nv_cache_num_hits": [Sample((), 5)],
        "nv_cache_num_misses": [Sample((), 7)],
        "nv_cache_num_lookups": [Sample((), 12)],
        "nv_cache_num_evictions": [Sample((), 2)],
        "nv_cache_lookup_duration": [Sample((), 12)],
        "nv_cache_insertion_duration": [Sample((), 4001)],
    }
