"""Versions as text, and the messages about servers and models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.codecs import management_proto
from reference_server.core.errors import Code, ServerError
from reference_server.core.metadata import ModelMetadata, Signature, TensorConfig
from reference_server.core.request import LATEST
from reference_server.core.telemetry import BatchStatistics, Duration, Snapshot
from reference_server.core.tensor import DataType

STOL = (
    "failed to get model version from specified version string '{}' (details: stol), version "
    "should be an integral value > 0"
)


@given(st.integers(0, 2**63 - 1), st.sampled_from(["", " ", "\t\n", "+", "000"]))
def test_text_behind_a_version_is_ignored(number, before):
    assert management_proto.model_version(f"{before}{number}") == number
    assert management_proto.model_version(f"{before}{number}.7x") == number


def test_an_empty_version_is_the_latest():
    assert management_proto.model_version("") == LATEST


@pytest.mark.parametrize(
    "text", ["x", " ", "-", "+ 1", "１", str(2**63), str(-(2**63) - 1), "9" * 5000]
)
def test_a_version_must_fit_64_bits(text):
    with pytest.raises(ServerError) as caught:
        management_proto.model_version(text)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, STOL.format(text))


@pytest.mark.parametrize("text", ["-1", " -2", str(-(2**63))])
def test_negative_versions_are_refused(text):
    with pytest.raises(ServerError, match="invalid model version specified ") as caught:
        management_proto.model_version(text)
    assert caught.value.code is Code.INVALID_ARG


def test_minus_zero_is_zero():
    assert management_proto.model_version("-0") == 0


def test_metadata_of_a_model_that_batches():
    tensor = TensorConfig("X", DataType.BYTES, (-1, 2))
    signature = Signature("m", 4, (tensor,), ())
    message = management_proto.model_metadata(ModelMetadata(signature, (1, 12), "python"))
    assert (message.name, list(message.versions), message.platform) == ("m", ["1", "12"], "python")
    assert [(i.name, i.datatype, list(i.shape)) for i in message.inputs] == [
        ("X", "BYTES", [-1, -1, 2])
    ]
    assert not message.outputs


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
