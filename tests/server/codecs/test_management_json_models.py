"""Metadata and statistics, byte for byte."""

import json

from server.support.requests import signature

from reference_server.codecs import management_json
from reference_server.core.metadata import ModelMetadata, ServerMetadata
from reference_server.core.telemetry import BatchStatistics, Duration, Snapshot
from reference_server.core.tensor import DataType

A = {"A": (DataType.FP32, [4])}
OA = {"OA": (DataType.BYTES, [2, -1])}


def test_server_metadata():
    metadata = ServerMetadata("triton", "2.51.0", ("classification", "statistics"))
    assert management_json.server_metadata(metadata) == (
        b'{"name":"triton","version":"2.51.0","extensions":["classification","statistics"]}'
    )


def test_model_metadata_of_a_batching_model():
    metadata = ModelMetadata(signature(A, OA, name="bat", max_batch_size=8), (1, 10), "python")
    assert management_json.model_metadata(metadata) == (
        b'{"name":"bat","versions":["1","10"],"platform":"python",'
        b'"inputs":[{"name":"A","datatype":"FP32","shape":[-1,4]}],'
        b'"outputs":[{"name":"OA","datatype":"BYTES","shape":[-1,2,-1]}]}'
    )


def test_model_metadata_shows_dims_and_not_the_reshape():
    tensor = {"A": (DataType.FP32, [4], {"reshape": (2, 2), "optional": True})}
    text = management_json.model_metadata(ModelMetadata(signature(tensor), (1,), "ensemble"))
    assert b'"inputs":[{"name":"A","datatype":"FP32","shape":[4]}],"outputs":[]' in text


def test_statistics():
    snapshot = Snapshot(
        "m",
        3,
        last_inference_ms=1795190437433,
        inference_count=5,
        execution_count=2,
        success=Duration(1, 2),
        fail=Duration(3, 4),
        queue=Duration(5, 6),
        compute_input=Duration(7, 8),
        compute_infer=Duration(9, 10),
        compute_output=Duration(11, 12),
        cache_hit=Duration(13, 14),
        cache_miss=Duration(15, 16),
        batches={4: BatchStatistics(Duration(17, 18), Duration(19, 20), Duration(21, 22))},
    )
    assert management_json.statistics([snapshot]) == (
        b'{"model_stats":[{"name":"m","version":"3","last_inference":1795190437433,'
        b'"inference_count":5,"execution_count":2,"inference_stats":{'
        b'"success":{"count":1,"ns":2},"fail":{"count":3,"ns":4},"queue":{"count":5,"ns":6},'
        b'"compute_input":{"count":7,"ns":8},"compute_infer":{"count":9,"ns":10},'
        b'"compute_output":{"count":11,"ns":12},'
        b'"cache_hit":{"count":13,"ns":14},"cache_miss":{"count":15,"ns":16}},'
        b'"response_stats":{},"batch_stats":[{"batch_size":4,'
        b'"compute_input":{"count":17,"ns":18},"compute_infer":{"count":19,"ns":20},'
        b'"compute_output":{"count":21,"ns":22}}],"memory_usage":[]}]}'
    )


def test_statistics_keep_the_order_given():
    text = management_json.statistics([Snapshot("b", 1), Snapshot("a", 2), Snapshot("a", 1)])
    listed = [(entry["name"], entry["version"]) for entry in json.loads(text)["model_stats"]]
    assert listed == [("b", "1"), ("a", "2"), ("a", "1")]


def test_statistics_without_models():
    assert management_json.statistics([]) == b'{"model_stats":[]}'
