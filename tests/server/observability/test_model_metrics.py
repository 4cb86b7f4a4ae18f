"""The metrics of models, computed from their statistics."""

from reference_server.core.telemetry import Duration, FailureReason, Quantiles, Sample, Snapshot
from reference_server.observability.server_metrics import (
    MODEL_FAMILIES,
    NEWER_FAMILIES,
    ModelReading,
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


def test_families_are_in_the_order_of_triton():
    assert [head.name.removeprefix("nv_") for head in MODEL_FAMILIES] == [
        "inference_request_success",
        "inference_request_failure",
        "inference_count",
        "inference_exec_count",
        "inference_request_duration_us",
        "inference_queue_duration_us",
        "inference_compute_input_duration_us",
        "inference_compute_infer_duration_us",
        "inference_compute_output_duration_us",
        *(f"cache_{name}_per_model" for name in CACHE),
        "inference_pending_request_count",
        "inference_request_summary_us",
        "inference_queue_summary_us",
        "inference_compute_input_summary_us",
        "inference_compute_infer_summary_us",
        "inference_compute_output_summary_us",
        "cache_hit_summary_per_model",
        "cache_miss_summary_per_model",
    ]


def test_failures_have_a_series_for_each_reason():
    assert values("request_failure") == {
        (("model", "m"), ("reason", reason), ("version", "3")): count
        for reason, count in {"REJECTED": 3, "CANCELED": 0, "BACKEND": 2, "OTHER": 0}.items()
    }


def test_tags_are_labels_with_an_underscore():
    assert list(values("count", tags=(("1", "y"), ("team", "x")))) == [
        (("_1", "y"), ("_team", "x"), *MODEL)
    ]


def test_without_models_there_are_families_without_series():
    assert model_samples([]) == {head.name: [] for head in (*MODEL_FAMILIES, *NEWER_FAMILIES)}
