"""Responses and inputs are parsed, or rejected with NotUnderstood."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from triton_replay.wire import grpc_messages
from triton_replay.wire.answers import read_answers, read_inputs
from triton_replay.wire.bodies import NotUnderstood, sequence_of
from triton_replay.wire.grpc_messages import answer_of_call, answer_of_message, inputs_of_call

TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", 5, None]),
        "datatype": st.sampled_from(["FP32", "INT8", "BYTES", "BF16", "BOOL", "FP8", 7]),
        "shape": st.lists(st.integers(-2, 3) | st.just("2") | st.just(2**70), max_size=3),
        "data": st.recursive(
            st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.booleans(),
            lambda inner: st.lists(inner, max_size=4),
        ),
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 9)}),
    },
)
DOCUMENTS = st.dictionaries(
    st.sampled_from(["inputs", "outputs", "parameters", "text"]),
    st.lists(TENSORS, max_size=3) | st.integers() | st.just([10**400]) | st.text(max_size=3),
    max_size=3,
)


@given(DOCUMENTS, st.binary(max_size=12))
def test_invalid_json_raises_only_not_understood(document, tail):
    text = json.dumps(document).encode()
    headers = (("Inference-Header-Content-Length", str(len(text))),)
    for read in (read_answers, read_inputs, sequence_of):
        with contextlib.suppress(NotUnderstood):
            read(headers, text + tail)


@given(st.binary(max_size=60))
def test_invalid_messages_raise_only_not_understood(data):
    for body in (data, b"\0" + len(data).to_bytes(4, "big") + data):
        for read in (answer_of_call, answer_of_message, inputs_of_call):
            with contextlib.suppress(NotUnderstood):
                read(body)


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("FP32", [[0.1], [2]], np.array([0.1, 2], np.float32)),
        ("INT64", [2**62 + 1, -1], np.array([2**62 + 1, -1])),
        ("BOOL", [True, False], np.array([True, False])),
        ("BYTES", ["a", "数"], np.array([b"a", "数".encode()], object)),
    ],
)
def test_values_in_json_are_read_exactly(datatype, data, expected):
    output = {"name": "y", "datatype": datatype, "shape": [2], "data": data}
    (answer,) = read_answers((), json.dumps({"outputs": [output], "id": "7"}).encode())
    np.testing.assert_array_equal(answer.tensors["y"].values, expected)
    assert answer.fields == {"id": "7"}


def test_the_schema_is_that_of_tritonclient():
    """After an upgrade of tritonclient, write a FileDescriptorSet of these two files."""
    shipped = Path(grpc_messages.__file__).with_name("grpc_service.binpb").read_bytes()
    files = [one.SerializeToString() for one in FileDescriptorSet.FromString(shipped).file]
    assert files == [one.DESCRIPTOR.serialized_pb for one in (model_config_pb2, service_pb2)]
