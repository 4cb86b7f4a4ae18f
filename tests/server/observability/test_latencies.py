"""Summaries of latencies: which there are, and what moves them."""

import pytest
from server.support.clock import ManualClock
from server.support.requests import a_request

from reference_server.core.response import Execution, Timing
from reference_server.core.telemetry import Quantiles
from reference_server.observability.latency_summaries import LATENCY_FAMILIES, LatencySummaries
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.options import Quantile

MEDIAN = [Quantile(0.5, 0.01)]


def statistics(*, cached):
    clock = ManualClock(now_ns=10_000_000)
    return ModelStatistics("m", 1, clock, LatencySummaries(MEDIAN, clock, cached=cached))


def shown(found):
    """Counts and sums in microseconds, by the short names of the families."""
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
def test_models_with_the_cache_have_others(cached, others):
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


def test_the_quantiles_are_told():
    found = statistics(cached=True)
    found.cache_missed(70_999)
    miss = found.summaries()["nv_cache_miss_summary_per_model"]
    assert miss == Quantiles(1, 70, ((0.5, 70),))


def test_without_summaries_there_are_none():
    assert ModelStatistics("m", 1, ManualClock()).summaries() == {}
