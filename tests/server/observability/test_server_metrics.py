"""The metrics of models, of the response cache and of the machine."""

import pytest
from server.support.clock import SECOND_NS, ManualClock

from reference_server.core.telemetry import (
    CacheReading,
    Duration,
    FailureReason,
    Quantiles,
    Sample,
    Snapshot,
)
from reference_server.observability.server_metrics import (
    CACHE_FAMILIES,
    HostMetrics,
    ModelReading,
    cache_samples,
    model_samples,
)

SNAPSHOT = Snapshot(
    "m",
    3,
    inference_count=50,
    execution_count=4,
    success=Duration(10, 1_000_999),
    fail=Duration(2, 9_000_000),
    queue=Duration(10, 2_000_000),
    compute_input=Duration(10, 3_000_000),
    compute_infer=Duration(10, 4_000_000),
    compute_output=Duration(10, 5_000_000),
    cache_hit=Duration(6, 7_000_999),
    cache_miss=Duration(4, 8_000_999),
    failures={FailureReason.BACKEND: 2, FailureReason.REJECTED: 3},
)


def values(name, *, tags=()):
    """Return the series of one family for a model with these statistics."""
    found = model_samples([ModelReading(SNAPSHOT, 5, tags)])
    return {sample.labels: sample.value for sample in found[f"nv_inference_{name}"]}


MODEL = (("model", "m"), ("version", "3"))


def test_each_family_shows_its_statistic():
    assert {
        name.removeprefix("nv_inference_"): [sample.value for sample in found]
        for name, found in model_samples([ModelReading(SNAPSHOT, 5, ())]).items()
        if found
    } == {
        "request_success": [10],
        "request_failure": [3, 0, 2, 0],
        "count": [50],
        "exec_count": [4],
        "request_duration_us": [1000],
        "queue_duration_us": [2000],
        "compute_input_duration_us": [3000],
        "compute_infer_duration_us": [4000],
        "compute_output_duration_us": [5000],
        "pending_request_count": [5],
    }


def test_models_with_the_cache_have_series_of_it():
    found = model_samples([ModelReading(SNAPSHOT, 5, (), cached=True)])
    assert {name: found[f"nv_cache_{name}_per_model"][0].value for name in CACHE} == {
        "num_hits": 6,
        "hit_duration": 7000,
        "num_misses": 4,
        "miss_duration": 8000,
    }


CACHE = ("num_hits", "hit_duration", "num_misses", "miss_duration")


def test_without_counters_counts_are_zero_and_there_are_no_durations():
    found = model_samples([ModelReading(SNAPSHOT, 5, (), cached=True)], counters=False)
    assert {
        name.removeprefix("nv_inference_"): [sample.value for sample in series]
        for name, series in found.items()
        if series
    } == {
        "request_success": [0],
        "request_failure": [0, 0, 0, 0],
        "count": [0],
        "exec_count": [0],
        "pending_request_count": [5],
    }


def test_summaries_are_shown_in_their_families():
    quantiles = Quantiles(1, 2, ((0.5, 2),))
    reading = ModelReading(SNAPSHOT, 5, (), summaries={"nv_inference_queue_summary_us": quantiles})
    assert model_samples([reading])["nv_inference_queue_summary_us"] == [Sample(MODEL, quantiles)]


def test_tags_are_labels_with_an_underscore():
    assert list(values("count", tags=(("1", "y"), ("team", "x")))) == [
        (("_1", "y"), ("_team", "x"), *MODEL)
    ]


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


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "meminfo").write_text(
        "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    300 kB\n"
    )
    tick(tmp_path, 100, 100)
    return tmp_path


def tick(proc, busy, idle):
    """Write the busy and idle ticks of the CPU, distributed over all states."""
    (proc / "stat").write_text(
        f"cpu  {busy} {busy} {busy} {idle} {idle} {busy} {busy} {busy} 77 88\ncpu0 9 9 9 9\n"
    )


def host_values(host):
    return {name: sample.value for name, (sample,) in host.samples().items()}


def test_memory_in_use_is_what_is_not_available(clock, proc):
    read = host_values(HostMetrics(clock, 0, proc=proc))
    assert read["nv_cpu_memory_total_bytes"] == 1000 * 1024
    assert read["nv_cpu_memory_used_bytes"] == 700 * 1024


def test_utilization_is_measured_since_the_last_reading(clock, proc):
    host = HostMetrics(clock, 0, proc=proc)
    assert host_values(host)["nv_cpu_utilization"] == 0
    tick(proc, 101, 107)
    assert host_values(host)["nv_cpu_utilization"] == 6 / (6 + 14)
    assert host_values(host)["nv_cpu_utilization"] == 0  # no tick since
    tick(proc, 105, 107)
    assert host_values(host)["nv_cpu_utilization"] == 1


def test_a_reading_is_kept_for_the_interval(clock, proc):
    host = HostMetrics(clock, 2 * SECOND_NS, proc=proc)
    host_values(host)
    tick(proc, 101, 101)
    clock.advance(seconds=1.9)
    assert host_values(host)["nv_cpu_utilization"] == 0
    clock.advance(seconds=0.1)
    assert host_values(host)["nv_cpu_utilization"] == 0.75


def test_there_is_no_pinned_memory(clock, proc):
    read = host_values(HostMetrics(clock, 0, proc=proc, cpu=False))
    assert read == {"nv_pinned_memory_pool_total_bytes": 0, "nv_pinned_memory_pool_used_bytes": 0}


def test_without_proc_there_are_no_gauges_of_the_cpu(clock, tmp_path):
    read = host_values(HostMetrics(clock, 0, proc=tmp_path))
    assert [name for name in read if "cpu" in name] == []
