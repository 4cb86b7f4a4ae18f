"""Tests of the functions, tables and numbers of `triton_python_backend_utils`."""

import json
import struct

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from hypothesis import given
from hypothesis import strategies as st
from server.backends.kit import request, senders

CODES = {
    np.bool_: 1,
    np.uint8: 2,
    np.uint16: 3,
    np.uint32: 4,
    np.uint64: 5,
    np.int8: 6,
    np.int16: 7,
    np.int32: 8,
    np.int64: 9,
    np.float16: 10,
    np.float32: 11,
    np.float64: 12,
    np.object_: 13,
}


def test_the_numbers_are_tritons():
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2
    assert repr(pb_utils.TRITONSERVER_MEMORY_GPU) == "<MemoryType.TRITONSERVER_MEMORY_GPU: 0>"
    assert repr(pb_utils.TRITONSERVER_MEMORY_CPU) == "<MemoryType.TRITONSERVER_MEMORY_CPU: 1>"


@pytest.mark.parametrize("parameters", [{"a": 1.5}, {1: 2}, [1]])
def test_parameters_of_other_types_are_refused(parameters):
    with pytest.raises(pb_utils.TritonModelException, match=r"^Expect "):
        pb_utils.InferenceResponse([], parameters=parameters)


def test_names_of_a_configuration_have_types():
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy("FP32")


def test_get_model_dir_needs_a_loaded_model():
    with pytest.raises(RuntimeError, match=r"found no model; expected a call from a loaded"):
        pb_utils.get_model_dir()


def test_tensors_are_found_by_name_the_first_if_there_are_two():
    seen = pb_utils.InferenceRequest._received(request(A=[1], B=[2]), senders())
    assert pb_utils.get_input_tensor_by_name(seen, "B").as_numpy().tolist() == [2]
    assert pb_utils.get_input_tensor_by_name(seen, "C") is None
    first, second = (pb_utils.Tensor("X", np.zeros(1)) for _ in range(2))
    response = pb_utils.InferenceResponse([first, second])
    assert pb_utils.get_output_tensor_by_name(response, "X") is first
    assert pb_utils.get_output_tensor_by_name(response, "Y") is None


@pytest.mark.parametrize("kind", ["input", "output"])
def test_entries_of_a_configuration_are_found_by_name(kind):
    find = getattr(pb_utils, f"get_{kind}_config_by_name")
    config = {kind: [{"name": "A"}, {"name": "B", "dims": [1]}]}
    assert find(config, "B") is config[kind][1]
    assert find(config, "C") is None
    assert find({}, "A") is None
    with pytest.raises(TypeError, match=r"string indices must be integers"):
        find(json.dumps(config), "B")


def test_the_transaction_policy_is_read_from_a_configuration():
    decoupled = pb_utils.using_decoupled_model_transaction_policy
    assert decoupled({}) is False
    assert decoupled({"model_transaction_policy": {"decoupled": True}}) is True
    with pytest.raises(KeyError, match=r"decoupled"):
        decoupled({"model_transaction_policy": {}})


@pytest.mark.parametrize(("numpy_type", "code"), CODES.items())
def test_types_have_numbers_in_both_directions(numpy_type, code):
    assert pb_utils.triton_to_numpy_type(code) is numpy_type
    assert pb_utils.numpy_to_triton_type(numpy_type) == code
    assert pb_utils.numpy_to_triton_type(np.dtype(numpy_type)) == code


@pytest.mark.parametrize(
    "foreign", [bool, int, float, str, np.complex64, "float32", np.dtype("S5")]
)
def test_other_types_have_no_number(foreign):
    assert pb_utils.numpy_to_triton_type(foreign) is None


@pytest.mark.parametrize("code", [0, 14, 99, -1])
def test_other_numbers_have_no_type(code):
    assert pb_utils.triton_to_numpy_type(code) is None


def test_strings_are_serialized_in_c_order():
    array = np.array([["a", b"bc"], [5, "é"]], dtype=object).T
    assert pb_utils.serialize_byte_tensor(array) == (
        b"\1\0\0\0a\1\0\0\0005\2\0\0\0bc\2\0\0\0\xc3\xa9"
    )
    assert pb_utils.serialize_byte_tensor(np.array([b"ab\0"], "S3")) == b"\2\0\0\0ab"


def test_other_arrays_are_not_serialized():
    assert pb_utils.serialize_byte_tensor(np.array([], object)) == ()
    assert pb_utils.serialize_byte_tensor(np.zeros(2)) is None
    assert pb_utils.serialize_byte_tensor(np.array(["x"])) is None


def test_cut_bytes_are_a_struct_error():
    with pytest.raises(struct.error) as caught:
        pb_utils.deserialize_bytes_tensor(b"\5\0\0\0a")
    assert str(caught.value) == (
        "unpack_from requires a buffer of at least 9 bytes for unpacking 5 bytes at offset 4 "
        "(actual buffer size is 5)"
    )
    with pytest.raises(struct.error):
        pb_utils.deserialize_bytes_tensor(b"\5\0")


@given(st.lists(st.binary()))
def test_serialized_strings_are_read_back(elements):
    array = np.array([*elements, None], dtype=object)[:-1]
    wire = pb_utils.serialize_byte_tensor(array)
    back = pb_utils.deserialize_bytes_tensor(wire or b"")
    assert back.dtype == object
    assert back.tolist() == elements
