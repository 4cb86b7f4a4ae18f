"""Management messages, beyond the rows of tests/recorded/test_grpc.py."""

import pytest
from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import management_proto
from reference_server.core.errors import Code, ServerError
from reference_server.core.telemetry import BatchStatistics, Duration, Snapshot


def test_statistics_contain_empty_durations():
    snapshot = Snapshot(
        "m",
        3,
        last_inference_ms=7,
        inference_count=5,
        execution_count=2,
        success=Duration(5, 100),
        batches={4: BatchStatistics(compute_infer=Duration(1, 9))},
    )
    (model,) = management_proto.statistics([snapshot]).model_stats
    assert (model.version, model.last_inference, model.inference_count) == ("3", 7, 5)
    assert (model.inference_stats.success.count, model.inference_stats.success.ns) == (5, 100)
    assert model.inference_stats.HasField("cache_miss")
    (batch,) = model.batch_stats
    assert (batch.batch_size, batch.compute_infer.ns, batch.HasField("compute_input")) == (
        4,
        9,
        True,
    )


def test_the_index_omits_unknown_values():
    (first, second) = management_proto.repository_index(
        [("a", None, None, ""), ("b", 1, "UNAVAILABLE", "unloaded")]
    ).models
    assert (first.name, first.version, first.state, first.reason) == ("a", "", "", "")
    assert (second.version, second.state, second.reason) == ("1", "UNAVAILABLE", "unloaded")


def test_load_parameters_have_any_type():
    request = pb.RepositoryModelLoadRequest()
    request.parameters["config"].string_param = "c"
    request.parameters["file:x"].bytes_param = b"y"
    request.parameters["i"].int64_param = 0
    request.parameters["b"].bool_param = False
    request.parameters["none"].SetInParent()
    assert management_proto.load_parameters(request.parameters) == {
        "config": "c", "file:x": b"y", "i": 0, "b": False, "none": False,
    }  # fmt: skip


def unload_request(**value):
    request = pb.RepositoryModelUnloadRequest()
    request.parameters["unload_dependents"].CopyFrom(pb.ModelRepositoryParameter(**value))
    return request


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (pb.RepositoryModelUnloadRequest(), False),
        (unload_request(bool_param=True), True),
        (unload_request(bool_param=False), False),
    ],
)
def test_unload_dependents(request_, wanted):
    assert management_proto.unload_dependents(request_) is wanted


@pytest.mark.parametrize("value", [{}, {"string_param": "true"}, {"int64_param": 1}])
def test_unload_dependents_is_a_bool(value):
    with pytest.raises(ServerError, match="expected bool_param") as caught:
        management_proto.unload_dependents(unload_request(**value))
    assert caught.value.code is Code.INVALID_ARG
