"""The `data` of an input: the tensor, or the reported fault."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reference_server.codecs import json_tensor_reader
from reference_server.codecs.json_tensor_reader import read_tensor
from reference_server.codecs.json_writer import write_array
from reference_server.codecs.rapid_json import loads
from reference_server.core.errors import Code, ServerError
from reference_server.core.tensor import DataType

NUMERIC = [d for d in DataType if d not in (DataType.FP16, DataType.BF16, DataType.BYTES)]
INTEGERS = [d for d in NUMERIC if d.value.startswith(("INT", "UINT"))]


def read(text, datatype, *shape):
    return read_tensor(loads(text.encode()), datatype, shape)


def fault(text, datatype, *shape):
    with pytest.raises(ServerError) as caught:
        read(text, datatype, *shape)
    return caught.value


# ------------------------------------------------------------------------------------------ values


@pytest.mark.brute_force
@pytest.mark.parametrize("datatype", NUMERIC)
@settings(max_examples=30)
@given(st.data())
def test_written_tensors_are_read_back(datatype, data):
    shape = data.draw(arrays.array_shapes(max_dims=3, max_side=4))
    elements = arrays.from_dtype(np.dtype(datatype.numpy))
    array = data.draw(arrays.arrays(datatype.numpy, shape, elements=elements))
    again = read_tensor(loads(write_array(array)), datatype, shape)
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=5))
def test_written_strings_are_read_back(elements):
    array = np.array([*elements, None], dtype=object)[:-1]
    again = read_tensor(loads(write_array(array)), DataType.BYTES, (len(elements),))
    assert again.tolist() == elements


@pytest.mark.parametrize(
    "text",
    ["[1,2,3,4]", "[[1,2],[3,4]]", "[[1,[2]],3,[[[4]]]]", "[1,[],[2,3],[[]],4]", "[[[1,2,3,4]]]"],
)
@pytest.mark.parametrize("datatype", [DataType.INT32, DataType.FP32])
def test_any_nesting_is_accepted(text, datatype):
    array = read(text, datatype, 2, 2)
    assert array.dtype == datatype.numpy
    assert array.tolist() == [[1, 2], [3, 4]]


@pytest.mark.brute_force
def test_any_nesting_of_a_long_row_is_accepted():
    flat = np.arange(60_000, dtype=np.float64)
    for shape in [(60_000,), (300, 200), (60_000, 1), (2, 30_000)]:
        data = flat.reshape(shape).tolist()
        np.testing.assert_array_equal(read_tensor(data, DataType.FP64, (60_000,)), flat)


def test_doubles_beyond_fp32_become_infinities():
    array = read("[1e39,-1e39,16777217,NaN,Infinity]", DataType.FP32, 5)
    np.testing.assert_array_equal(array, np.array([np.inf, -np.inf, 2**24, np.nan, np.inf], "f4"))


def test_fp64_accepts_the_largest_integers():
    assert read("[18446744073709551615,-9223372036854775808]", DataType.FP64, 2).tolist() == [
        2.0**64,
        -(2.0**63),
    ]


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_up_to_their_limits_are_read(datatype):
    limits = np.iinfo(datatype.numpy)
    array = read(f"[{limits.min},{limits.max},-0]", datatype, 3)
    assert array.dtype == datatype.numpy
    assert array.tolist() == [limits.min, limits.max, 0]


def test_a_shape_without_dimensions_has_one_element():
    assert read("[5]", DataType.INT8).shape == ()


def test_strings_are_read_to_a_flat_array():
    array = read('["h\\u00e9",["",["\\u0000"]]]', DataType.BYTES, 7)
    assert array.dtype == object
    assert array.tolist() == ["hé".encode(), b"", b"\0"]
    assert read("[]", DataType.BYTES, 2).shape == (0,)


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_half_precision_has_no_json_form(datatype):
    with pytest.raises(ValueError, match=datatype.value):
        read("[1]", datatype, 1)


# ------------------------------------------------------------------------------------------ faults

COUNT = "Shape does not match true shape of 'data' field"
NOT = "attempt to access JSON non-"


@pytest.mark.parametrize(
    ("text", "datatype", "said"),
    [
        ("[1]", "FP32", COUNT),
        ("[1,2,3]", "FP32", COUNT),
        ("[[true],[false,true]]", "BOOL", COUNT),
        ("[]", "INT8", COUNT),
        # The first fault in the order of the elements is reported.
        ('[1,"a",3]', "FP32", f"{NOT}number as double"),
        ('[1,2,"a"]', "FP32", COUNT),
        ('["a"]', "FP32", f"{NOT}number as double"),
        ("[1,{}]", "FP32", f"{NOT}number as double"),
        ("[1,[[null]]]", "FP64", f"{NOT}number as double"),
        ("[true,1.0]", "FP64", f"{NOT}number as double"),
        ("[true,1]", "BOOL", f"{NOT}boolean as boolean"),
        ("[300,1.0]", "INT8", f"{NOT}signed-integer as signed-integer"),
        ("[1,true]", "INT8", f"{NOT}signed-integer as signed-integer"),
        ("[1,9223372036854775808]", "INT64", f"{NOT}signed-integer as signed-integer"),
        ("[1,9223372036854775808]", "INT8", f"{NOT}signed-integer as signed-integer"),
        ("[1,-9223372036854775809]", "INT64", f"{NOT}signed-integer as signed-integer"),
        ("[-1,300]", "UINT8", f"{NOT}unsigned-integer as unsigned-integer"),
        ("[18446744073709551615,-1]", "UINT64", f"{NOT}unsigned-integer as unsigned-integer"),
        ("[1,18446744073709551616]", "UINT64", f"{NOT}unsigned-integer as unsigned-integer"),
        ("[1,NaN]", "UINT16", f"{NOT}unsigned-integer as unsigned-integer"),
        ("5", "FP32", f"{NOT}array as array"),
        ("null", "FP32", f"{NOT}array as array"),
        ('{"a":1}', "FP32", f"{NOT}array as array"),
        ('"a"', "BYTES", f"{NOT}array as array"),
    ],
)
def test_the_first_fault_is_reported(text, datatype, said):
    error = fault(text, DataType(datatype), 2)
    assert error.code is Code.INTERNAL
    assert error.message == f"Unable to parse 'data': {said}"


@pytest.mark.parametrize("text", ['["a",1]', "[null]", '["a",["b",[true]],"c"]', "[{}]"])
def test_bytes_accept_only_strings(text):
    error = fault(text, DataType.BYTES, 2)
    assert error.code is Code.INTERNAL
    assert error.message == f"Unable to parse JSON bytes array: {NOT}string as string"


@pytest.mark.parametrize("datatype", [d for d in INTEGERS if d.byte_size < 8])
def test_integers_out_of_range_are_refused_not_wrapped(datatype):
    limits = np.iinfo(datatype.numpy)
    outside = [limits.max + 1] if limits.min == 0 else [limits.min - 1, limits.max + 1]
    for value in outside:
        error = fault(f"[0,{value},1,{limits.max + 1}]", datatype, 4)
        assert error.code is Code.INVALID_ARG
        assert error.message == (
            f"Unable to parse 'data': value {value} is out of range for datatype {datatype.value}"
        )


def test_uint64_values_are_out_of_range_for_smaller_unsigned_types():
    error = fault("[18446744073709551615]", DataType.UINT8, 1)
    assert error.message.startswith("Unable to parse 'data': value 18446744073709551615 is out")


@pytest.mark.parametrize(
    ("data", "datatype", "refusal"),
    [
        ([1, 2, 3, 4, 5, 300, 7], DataType.INT8, "value 300 is out of range"),
        ([300, 2, 3, 4, 5, 2**63], DataType.INT8, "non-signed-integer"),
        ([300, 2, 3, 4, 5, True], DataType.INT8, "non-signed-integer"),
        ([1, 2, 3, 4, 5, 6, "7"], DataType.FP32, "non-number as double"),
    ],
)
def test_the_refusal_does_not_depend_on_the_pieces(monkeypatch, data, datatype, refusal):
    monkeypatch.setattr(json_tensor_reader.gil, "SLICE", 4)
    with pytest.raises(ServerError, match=refusal):
        read_tensor(data, datatype, (len(data),))
