"""The generate extension: requests and responses as flat JSON objects."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import NullSink, array_tensor, signature

from reference_server.codecs import generate
from reference_server.core.errors import Code, ServerError
from reference_server.core.request import InferResponse
from reference_server.core.tensor import DataType

VECTOR = signature({"X": (DataType.FP32, [-1])})


def decode(body, model=VECTOR):
    text = body if isinstance(body, str) else json.dumps(body)
    return generate.decode(model, memoryview(text.encode()), NullSink())


def refusal(body, model=VECTOR):
    with pytest.raises(ServerError) as caught:
        decode(body, model)
    return caught.value.code, caught.value.message


# --------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("value", "shape"), [(1, [1]), ([1, 2], [2]), ([[1], 2], [2]), ([], [0])], ids=str
)
def test_a_member_with_the_name_of_an_input_is_that_input(value, shape):
    tensor = decode({"X": value}).inputs["X"]
    assert (tensor.datatype, list(tensor.shape)) == (DataType.FP32, shape)
    assert tensor.array().tolist() == np.ravel(np.array([1, 2, 3])[: shape[0]]).tolist()


def test_strings_are_bytes():
    request = decode({"T": ["a", "é"]}, signature({"T": (DataType.BYTES, [-1])}))
    assert request.inputs["T"].array().tolist() == [b"a", "é".encode()]


def test_all_other_members_are_parameters():
    given_ = {"id": "q", "X": 1, "p": 1, "s": "t", "b": True, "f": 1.5, "u": 2**63}
    request = decode(given_ | {"sequence_id": 5, "triton_x": 1})
    assert request.parameters == {
        "id": "q",
        "p": 1,
        "s": "t",
        "b": True,
        "f": 1.5,
        "u": float(2**63),
        "sequence_id": 5,
        "triton_x": 1,
    }
    assert (request.id, request.correlation_id) == ("q", 0)


def test_nested_parameters_are_read_and_the_last_wins():
    request = decode('{"p":1,"parameters":{"X":2,"p":3,"id":"in"}}')
    assert request.inputs["X"].array().tolist() == [2]
    assert request.parameters == {"p": 3, "id": "in"}
    assert request.id == ""


def test_a_name_that_is_an_input_and_the_id_is_both():
    request = decode({"id": "q"}, signature({"id": (DataType.BYTES, [1])}))
    assert (request.id, request.inputs["id"].array().tolist()) == ("q", [b"q"])
    assert request.parameters == {}


def test_a_parameter_that_is_repeated_has_its_first_value():
    assert decode('{"p":1,"p":2}').parameters == {"p": 1}


@pytest.mark.parametrize(
    ("batches", "dims", "count", "shape"),
    [
        (0, [2], 2, [2]),
        (0, [3, -1], 6, [3, 2]),
        (0, [-1, 3], 6, [2, 3]),
        (0, [-1, -1], 4, [1, 4]),
        (4, [2], 2, [1, 2]),
        (4, [2], 8, [4, 2]),
        (4, [2], 0, [0, 2]),
        (4, [2, -1], 8, [1, 2, 4]),
        (0, [-1, -1], 0, [1, 0]),
    ],
)
def test_the_innermost_variable_size_is_derived(batches, dims, count, shape):
    model = signature({"X": (DataType.FP32, dims)}, max_batch_size=batches)
    assert list(decode({"X": [0] * count}, model).inputs["X"].shape) == shape


@given(st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1, max_size=4), st.integers(0, 24))
def test_a_derived_shape_fits_the_elements(dims, count):
    model = signature({"X": (DataType.FP32, dims)})
    try:
        shape = decode({"X": [0] * count}, model).inputs["X"].shape
    except ServerError:
        fixed = np.prod([dim for dim in dims if dim > 0])
        assert count % fixed or (-1 not in dims and count != fixed)
        return
    assert np.prod(shape) == count
    assert all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))


SHAPELESS = "The schema can not convert input 'X' to tensor with proper shape"
TWICE = "[request id: <id_unknown>] input 'X' already exists in request"
WRONG = "has invalid type. It should be either 'int', 'bool', or 'string'."
NUMBER = "Unable to parse 'data': attempt to access JSON non-number as double"
REFUSED = {
    "[]": (Code.INTERNAL, "attempt to get members for non-object"),
    '{"id":5,"X":"a"}': (
        Code.INTERNAL,
        "Unable to parse 'id': attempt to access JSON non-string as string",
    ),
    '{"X":"a"}': (Code.INTERNAL, NUMBER),
    '{"X":null}': (Code.INTERNAL, NUMBER),
    '{"X":{}}': (Code.INTERNAL, NUMBER),
    '{"X":[[1,2]]}': (
        Code.INTERNAL,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    '{"X":1,"X":2}': (Code.INVALID_ARG, TWICE),
    '{"parameters":{"X":1},"X":2}': (Code.INVALID_ARG, TWICE),
    '{"X":1,"parameters":{"X":2}}': (
        Code.INVALID_ARG,
        f"Converting keyword: 'parameters': {TWICE}",
    ),
    '{"parameters":{"X":1,"X":2}}': (
        Code.INVALID_ARG,
        f"Converting keyword: 'parameters': {TWICE}",
    ),
    '{"p":null}': (Code.INVALID_ARG, f"parameter 'p' {WRONG}"),
    '{"p":[1]}': (Code.INVALID_ARG, f"parameter 'p' {WRONG}"),
    '{"parameters":{"p":{}}}': (
        Code.INVALID_ARG,
        f"Converting keyword: 'parameters': parameter 'p' {WRONG}",
    ),
    '{"parameters":1}': (
        Code.INTERNAL,
        "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as "
        "object",
    ),
}


@pytest.mark.parametrize(("body", "expected"), REFUSED.items(), ids=REFUSED)
def test_faults_are_refused(body, expected):
    assert refusal(body) == expected


@pytest.mark.parametrize(("dims", "count"), [([2], 3), ([2], 4), ([2], 0), ([3, -1], 2)])
def test_elements_that_fit_no_shape_are_refused(dims, count):
    model = signature({"X": (DataType.FP32, dims)})
    assert refusal({"X": [0] * count}, model) == (Code.INVALID_ARG, SHAPELESS)


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_half_floats_have_no_json(datatype):
    assert refusal({"X": [1]}, signature({"X": (datatype, [-1])})) == (
        Code.INVALID_ARG,
        f"receiving {datatype.value} data via JSON is not supported. Please use the binary data "
        "format for input X",
    )


def test_an_input_cannot_be_called_parameters():
    assert refusal({"parameters": "x"}, signature({"parameters": (DataType.BYTES, [1])})) == (
        Code.INVALID_ARG,
        "Keyword 'parameters' for nested schema also given as input tensor name",
    )


# -------------------------------------------------------------------------------------- responses


def encoded(*outputs, id="", parameters=()):
    return generate.encode(InferResponse("m", 3, id, outputs, parameters)).decode()


def test_members_are_sorted_by_name():
    outputs = array_tensor("z", [1, 2]), array_tensor("Y", np.float32([0.5]))
    assert encoded(*outputs, id="q", parameters=[("n", 5), ("b", False)]) == (
        '{"Y":0.5,"b":false,"id":"q","model_name":"m","model_version":"3","n":5,"z":[1,2]}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "[]"),
        ([True], "true"),
        ([[1.5, 2.5], [3.5, 4.5]], "[1.5,2.5,3.5,4.5]"),
        (7, "7"),
        ([float("nan")], "NaN"),
        (np.array([b'a"'], object), r'"a\""'),
    ],
    ids=str,
)
def test_one_element_is_a_scalar_and_several_are_a_flat_array(value, text):
    assert encoded(array_tensor("Y", value)) == (
        f'{{"Y":{text},"model_name":"m","model_version":"3"}}'
    )


def test_members_of_the_server_win_over_those_of_a_model():
    assert encoded(array_tensor("model_name", [1])) == '{"model_name":"m","model_version":"3"}'


def test_an_output_of_half_floats_is_refused():
    with pytest.raises(ServerError, match="sending FP16 data via JSON is not supported"):
        encoded(array_tensor("Y", np.float16([1])))
