"""Metrics and configurations of newer releases: rows of docs/versions.md."""

import pytest
from server.support.clock import ManualClock
from server.support.model_folders import IDENTITY, VECTOR, write_ensemble, write_model
from server.support.requests import a_request
from server.support.versions import INFER, asked, vector

from reference_server.core.request import InferResponse
from reference_server.observability.latency_summaries import FirstResponses
from reference_server.testing import open_repository

LOAD = "nv_model_load_duration_secs"
FIRST = "nv_inference_first_response_histogram_ms"
CHAIN = """
    platform: "ensemble"
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
    ensemble_scheduling { step { model_name: "vector" model_version: -1
        input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }
"""
METRICS = """
    model_metrics { metric_control: [ { metric_identifier: { family: "%s" }
        histogram_options: { buckets: [ 1000000, 2000000 ] } } ] }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    repository = tmp_path_factory.mktemp("measured")
    write_model(repository, "vector")
    write_model(repository, "expected", VECTOR + METRICS % FIRST, IDENTITY)
    write_ensemble(repository, "chain", CHAIN)
    return repository


@pytest.fixture(scope="module")
def measured(folder):
    with open_repository(folder, options=["--metrics-config=histogram_latencies=true"]) as server:
        yield server


def series(page, family):
    """Return the values by family and labels."""
    lines = [line.rpartition(" ") for line in page.splitlines() if line.startswith(family)]
    return {name.removeprefix(family): float(value) for name, _, value in lines}


def test_each_version_has_a_metric_of_its_load_duration(measured):
    page = measured.metrics()
    found = series(page, LOAD)
    assert found['{model="vector",version="1"}'] > 0
    assert found['{model="chain",version="1"}'] == 0
    assert f"# HELP {LOAD} Model load time in seconds\n# TYPE {LOAD} gauge\n" in page
    assert (
        page.index("nv_inference_pending_request_count")
        < page.index(LOAD)
        < page.index("nv_pinned_memory_pool_total_bytes")
    )


def test_first_responses_are_counted_of_all_models(measured):
    for model in ("vector", "chain", "expected"):
        path = INFER.replace("vector", model)
        before = series(measured.metrics(), FIRST)[f'_count{{model="{model}",version="1"}}']
        assert asked(measured, path, vector(1, [1]))[0] == 200
        assert asked(measured, path, {"inputs": []})[0] == 400  # refused before it reaches a model
        after = series(measured.metrics(), FIRST)[f'_count{{model="{model}",version="1"}}']
        assert after == before + 1


def test_buckets_are_those_of_triton_or_of_the_configuration(measured):
    found = series(measured.metrics(), f"{FIRST}_bucket")

    def bounds(model):
        start = f'{{model="{model}",version="1",le="'
        return [name.removeprefix(start)[:-2] for name in found if name.startswith(start)]

    assert bounds("vector") == ["100", "500", "2000", "5000", "+Inf"]
    assert bounds("expected") == ["1000000", "2000000", "+Inf"]


def test_without_the_setting_there_is_no_histogram(newest, proven):
    assert (LOAD in newest.metrics(), FIRST in newest.metrics()) == (True, False)
    assert LOAD not in proven.metrics()


def test_a_first_response_is_measured_in_whole_milliseconds():
    clock = ManualClock()
    firsts = FirstResponses(clock)
    request, silent = a_request(), a_request()
    firsts.await_first(request)
    firsts.await_first(silent)
    clock.advance(ns=100_999_999)
    request.sink.send(InferResponse("m", 1, "", final=False))
    clock.advance(seconds=10)
    request.sink.send(InferResponse("m", 1, ""))
    silent.sink.send(InferResponse("m", 1, "", empty=True))  # ends the request without a response
    assert (firsts.read().count, firsts.read().sum) == (1, 100)
    assert firsts.read().buckets == ((100, 1), (500, 1), (2000, 1), (5000, 1))


def test_buckets_of_other_families_are_ignored(tmp_path, caplog):
    write_model(tmp_path, "m", VECTOR + METRICS % "nv_other")
    with open_repository(tmp_path):
        assert "Metric family 'nv_other' in 'metric_identifier' is not a" in caplog.text


def test_the_limit_of_an_ensemble_is_always_in_its_configuration(measured, folder):
    reply = measured.http("GET", "/v2/models/chain/config").json()
    assert reply["ensemble_scheduling"]["max_inflight_requests"] == 0
    assert list(reply["ensemble_scheduling"]) == ["step", "max_inflight_requests"]
    assert "model_metrics" not in reply
    expected = measured.http("GET", "/v2/models/expected/config").json()
    assert list(expected)[-1] == "model_metrics"
