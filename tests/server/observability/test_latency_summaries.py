"""Summaries of latencies: their families, observations and quantiles."""

import math
import random
from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.clock import ManualClock
from server.support.requests import a_request

from reference_server.core.request import Execution, Timing
from reference_server.core.telemetry import Quantiles
from reference_server.observability.latency_summaries import (
    LATENCY_FAMILIES,
    LatencySummaries,
    QuantileSketch,
    Summary,
)
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.options import DEFAULT_QUANTILES, Quantile

pytestmark = pytest.mark.brute_force

MEDIAN = [Quantile(0.5, 0.01)]


def statistics(*, cached):
    clock = ManualClock(now_ns=10_000_000)
    return ModelStatistics("m", 1, clock, LatencySummaries(MEDIAN, clock, cached=cached))


def shown(found):
    """Return counts and sums in microseconds by the short names of the families."""
    return {
        name.removeprefix("nv_").removesuffix("_summary_us"): (value.count, value.sum)
        for name, value in found.summaries().items()
        if value.count
    }


def arrived(rows=1):
    return a_request(batch_size=rows, received_ns=1_000_000, queued_ns=2_000_999)


@pytest.mark.parametrize(
    ("cached", "others"),
    [
        (False, {"nv_inference_request_summary_us"}),
        (True, {"nv_cache_hit_summary_per_model", "nv_cache_miss_summary_per_model"}),
    ],
)
def test_models_with_the_cache_have_other_summaries(cached, others):
    always = {head.name for head in LATENCY_FAMILIES[1:5]}
    assert statistics(cached=cached).summaries().keys() == always | others


def test_each_request_of_a_batch_is_observed_in_whole_microseconds():
    found = statistics(cached=False)
    execution = Execution((), input_end_ns=5_000_999, output_start_ns=7_000_000)
    found.executed([arrived(2), arrived()], execution, 4_000_999)
    assert shown(found) == {
        "inference_request": (2, 2 * 9000),
        "inference_queue": (2, 2 * 2000),
        "inference_compute_input": (2, 2 * 1000),
        "inference_compute_infer": (2, 2 * 1999),
        "inference_compute_output": (2, 2 * 3000),
    }


def test_ensembles_are_observed_as_their_steps_were():
    found = statistics(cached=False)
    found.composed(arrived(), 3_000_999, [Timing(1000, 2000, 3000), Timing(4000, 5000, 6000)])
    assert shown(found) == {
        "inference_request": (1, 9000),
        "inference_queue": (1, 1000),
        "inference_compute_input": (1, 5),
        "inference_compute_infer": (1, 7),
        "inference_compute_output": (1, 9),
    }


def test_hits_and_misses_are_observed():
    found = statistics(cached=True)
    found.cache_hit(arrived(), 3_000_999, 3_020_999)
    found.cache_missed(70_999)
    assert shown(found) == {
        "inference_queue": (1, 1000),
        "cache_hit_summary_per_model": (1, 20),
        "cache_miss_summary_per_model": (1, 70),
    }


def test_the_configured_quantiles_are_estimated():
    found = statistics(cached=True)
    found.cache_missed(70_999)
    miss = found.summaries()["nv_cache_miss_summary_per_model"]
    assert miss == Quantiles(1, 70, ((0.5, 70),))


def sketched(values, targets=DEFAULT_QUANTILES):
    sketch = QuantileSketch(targets)
    for value in values:
        sketch.insert(value)
    return sketch


def rank_error(value, quantile, ordered):
    """Return the distance in ranks between `value` and the quantile."""
    wanted = quantile * len(ordered)
    low, high = bisect_left(ordered, value) + 1, bisect_right(ordered, value)
    return max(0, low - wanted, wanted - high)


@given(
    st.integers(0, 2**32),
    st.integers(1, 4000),
    st.integers(1, 10_000),
    st.sampled_from(["shuffled", "ascending", "descending"]),
)
def test_the_error_of_the_rank_is_within_the_target(seed, count, distinct, order):
    source = random.Random(seed)
    values = [source.randrange(distinct) for _ in range(count)]
    if order != "shuffled":
        values.sort(reverse=order == "descending")
    sketch, ordered = sketched(values), sorted(values)
    for target in DEFAULT_QUANTILES:
        value = sketch.value_at(target.quantile)
        assert rank_error(value, target.quantile, ordered) <= target.error * count + 1


def test_without_values_there_is_no_quantile():
    assert math.isnan(sketched([]).value_at(0.5))


@pytest.mark.parametrize("quantile", [0, 1, 1.5])
def test_the_extreme_quantiles_are_exact(quantile):
    sketch = sketched(range(2000), [Quantile(quantile, 0.01)])
    assert sketch.value_at(quantile) in (0, 1, 1999)


def test_most_values_are_dropped():
    sketch = sketched(range(20_000))
    sketch.value_at(0.5)
    assert len(sketch._items) < 3000


def test_a_summary_drops_values_after_about_a_minute_but_keeps_count_and_sum():
    clock = ManualClock()
    summary = Summary([Quantile(0.5, 0.01)], clock)
    summary.observe(100)
    clock.advance(seconds=30)
    summary.observe(1)
    assert summary.read().values == ((0.5, 1),)
    clock.advance(seconds=31)
    summary.observe(1)
    assert summary.read().values == ((0.5, 1),)
    clock.advance(seconds=1000)
    count, total, ((_, value),) = summary.read().count, summary.read().sum, summary.read().values
    assert (count, total) == (3, 102)
    assert math.isnan(value)
