"""The server's statistics, metrics and metadata."""

import pytest

from triton_replay.errors import ReplayError
from triton_replay.loading.statistics import between, of_one_request, read_page, read_statistics
from triton_replay.loading.tensors import model_of


def document(name, count, queue=0, infer=0):
    """Return statistics in the form of HTTP; with gRPC numbers are texts."""
    parts = {"success": queue + infer, "queue": queue, "compute_infer": infer}
    inferences = {part: {"count": count, "ns": str(1000 * ns)} for part, ns in parts.items()}
    stats = {"inference_count": count, "execution_count": str(count), "inference_stats": inferences}
    return {"model_stats": [{"name": name, "version": "1", **stats}]}


def test_statistics_are_microseconds_per_request():
    before = read_statistics([document("m", 10, queue=100, infer=50)])
    after = read_statistics([document("m", 14, queue=300, infer=90)])
    (side,) = between(before, after)
    assert (side.inferences, side.executions, side.successes) == (4, 4, 4)
    assert (side.parts["queue"], side.parts["compute_infer"], side.total) == (50, 10, 60)
    assert side.overhead == 0
    assert between(after, after) == []
    assert read_statistics([{}]) == {}


def test_an_ensemble_has_the_parts_of_all_its_steps():
    looks = [
        read_statistics([document("e", n), document("s", 2 * n, queue=6 * n, infer=4 * n)])
        for n in (1, 2)
    ]
    parts = of_one_request("e", between(*looks), ["s"])
    assert (parts["queue"], parts["compute_infer"]) == (6, 4)
    assert of_one_request("x", between(*looks), []) is None


def test_only_metrics_of_devices_are_read():
    page = """# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-2"} NaNa
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1e9
nv_cpu_utilization 1
nv_inference_count{model="m"} 3
"""
    assert read_page(page) == {
        "nv_gpu_utilization": {"GPU-1": 0.5},
        "nv_gpu_memory_used_bytes": {"GPU-1": 1e9},
    }


def test_a_model_without_a_configuration_has_no_batch_axis():
    metadata = {"inputs": [{"name": "X", "datatype": "FP32", "shape": ["-1", 2]}]}
    found = model_of("m", "3", metadata, {})
    assert found.inputs[0].shape == (-1, 2)
    assert (found.path, found.is_decoupled, found.steps) == ("/v2/models/m/versions/3", False, ())


@pytest.mark.parametrize("metadata", [{}, {"inputs": [{}]}, {"inputs": 3}])
def test_metadata_without_inputs_are_reported(metadata):
    with pytest.raises(ReplayError, match="-m m: metadata: expected inputs"):
        model_of("m", "", metadata, {})
