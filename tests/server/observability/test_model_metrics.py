"""The metrics of models out of their statistics."""

from reference_server.core.statistics import Duration, Snapshot
from reference_server.observability.model_metrics import HEADS, ModelReading, samples

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
)


def values(name, *, reason="BACKEND", tags=()):
    """The series of one family, of a model with these statistics."""
    found = samples([ModelReading(SNAPSHOT, 5, reason, tags)])
    return {sample.labels: sample.value for sample in found[f"nv_inference_{name}"]}


MODEL = (("model", "m"), ("version", "3"))


def test_each_family_shows_its_statistic():
    assert {
        name.removeprefix("nv_inference_"): [sample.value for sample in found]
        for name, found in samples([ModelReading(SNAPSHOT, 5, "BACKEND", ())]).items()
    } == {
        "request_success": [10],
        "request_failure": [0, 0, 2, 0],
        "count": [50],
        "exec_count": [4],
        "request_duration_us": [1000],
        "queue_duration_us": [2000],
        "compute_input_duration_us": [3000],
        "compute_infer_duration_us": [4000],
        "compute_output_duration_us": [5000],
        "pending_request_count": [5],
    }


def test_the_families_stand_in_tritons_order():
    assert [head.name.removeprefix("nv_inference_") for head in HEADS] == [
        "request_success",
        "request_failure",
        "count",
        "exec_count",
        "request_duration_us",
        "queue_duration_us",
        "compute_input_duration_us",
        "compute_infer_duration_us",
        "compute_output_duration_us",
        "pending_request_count",
    ]


def test_failures_have_a_series_for_each_reason():
    assert values("request_failure", reason="OTHER") == {
        (("model", "m"), ("reason", reason), ("version", "3")): count
        for reason, count in {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 2}.items()
    }


def test_tags_are_labels_with_an_underscore():
    assert list(values("count", tags=(("1", "y"), ("team", "x")))) == [
        (("_1", "y"), ("_team", "x"), *MODEL)
    ]


def test_without_models_there_are_families_without_series():
    assert samples([]) == {head.name: [] for head in HEADS}
