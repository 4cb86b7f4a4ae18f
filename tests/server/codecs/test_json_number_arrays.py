"""Arrays of numbers in JSON, read to the bytes of tensors."""

import json
import math
import struct

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.codecs import infer_json, json_arrays, rapid_json
from reference_server.codecs.json_tensor_reader import read_tensor
from reference_server.core.tensor import DataType

DATATYPES = list(infer_json._ELEMENTS)
LIMITS = [0, 1, *(2**bits for bits in (7, 8, 15, 16, 31, 32, 63, 64)), 10**19, 2 * 10**19, 10**20]
INTEGERS = st.builds(
    lambda limit, more, sign: sign * (limit + more),
    *(st.sampled_from(LIMITS), st.integers(-2, 2), st.sampled_from([1, -1])),
)
WHOLE = st.integers(-(10**21), 10**21).map(str)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False).map(repr)
SINGLES = st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr)
DIGITS = st.integers(0, 10**24).map(str)
WRITTEN = st.tuples(
    *(st.sampled_from(["", "-"]), DIGITS),
    *(DIGITS, st.sampled_from(["", "e", "E+", "e-"]), st.integers(0, 340)),
).map(lambda parts: f"{parts[0]}{parts[1]}.{parts[2]}" + (f"{parts[3]}{parts[4]}" * bool(parts[3])))


def doubles(text, count):
    found = json_arrays.read_numbers(text, count, "f", 8)
    return None if found is None else np.frombuffer(found)


def packed(text, datatype, count):
    found = infer_json.read_elements(text, datatype, count)
    return None if found is None else bytes(found)


def pattern(number):
    return struct.pack("<d", number)


def flat(value):
    return [number for each in value for number in flat(each)] if type(value) is list else [value]


@pytest.mark.brute_force
@given(numbers=st.lists(WHOLE | DOUBLES | SINGLES | WRITTEN, min_size=1, max_size=8))
def test_numbers_are_the_doubles_nearest_to_their_texts(numbers):
    read = doubles(f"[{','.join(numbers)}]".encode(), len(numbers))
    # Integers become `int` first, where -0 loses its sign.
    nearest = [float(json.loads(number)) for number in numbers]
    if any(map(math.isinf, nearest)):
        assert read is None
    else:
        assert list(map(pattern, read)) == list(map(pattern, nearest))


@pytest.mark.parametrize(
    "number",
    [
        *("9007199254740992", "9007199254740993", "9007199254740995", "18014398509481985"),
        *("18446744073709551615", "9999999999999999999", "10000000000000000000", "-0", "-0.0"),
        *("1.5e22", "1e23", "8.5e-23", "123456789012345678e-22", "4503599627370496.5"),
        *("4503599627370497.5", "2.2250738585072014e-308", "5e-324", "2e-324", "1e-400"),
        *("1.7976931348623157e308", "0e99999999999", "0.1428571492433548", "0.30000000000000004"),
    ],
)
def test_numbers_at_rounding_edges(number):
    (read,) = doubles(f"[{number}]".encode(), 1)
    assert pattern(read) == pattern(float(json.loads(number)))


@pytest.mark.brute_force
@given(text=st.text("0123456789.-+eE[], \n", max_size=9), count=st.integers(1, 3))
def test_only_well_formed_arrays_are_read(text, count):
    document = f"[{text}]".encode()
    read = doubles(document, count)
    if read is not None:
        numbers = flat(orjson.loads(document))
        assert list(map(pattern, read)) == list(map(pattern, map(float, numbers)))


@pytest.mark.parametrize(
    "text", ["[1,2]", "[ 1 ,\t2\r\n]", "[[1],[2]]", "[[[1,2]]]", "[1,[2]]", "[[[[[[[[1,2]]]]]]]]"]
)
def test_arrays_are_read_depth_first(text):
    assert doubles(text.encode(), 2).tolist() == [1, 2]
    assert packed(text.encode(), DataType.INT8, 2) == b"\1\2"


@pytest.mark.parametrize(
    "text",
    [
        *("", "]", "[]", "[1]", "[1,2,3]", "[1,2", "1,2]", "[1,2]]", "[1],2]", "[1,2] ", "[1,,2]"),
        *("[,1,2]", "[1,2,]", "[1 2]", "[1,[]]", "[[1,2]", "[1]2]", "[1,2}", "[1,true]"),
        *("[1,NaN]", "[1,01]", "[1,+2]", "[1,.5]", "[1,2.]", "[1,2e]", "[1,2e+]", "[1,-]"),
        *("[1,1e400]", "[1,0x1]", "[1,1_0]", '[1,"2"]', "[1,\0]", "[[[[[[[[[1,2]]]]]]]]]"),
    ],
)
def test_unusual_arrays_are_refused(text):
    for datatype in DATATYPES:
        assert packed(text.encode(), datatype, 2) is None


@pytest.mark.parametrize(
    ("datatype", "largest", "beyond"),
    [
        (DataType.FP32, "3.4028234663852886e38", "3.4028234663852890e38"),
        (DataType.FP32, "340282346638528859811704183484516925440", "3.5e38"),
        (DataType.FP64, "1.7976931348623157e308", "1.7976931348623159e308"),
        (DataType.FP64, "8e0", "1e400"),
    ],
)
def test_numbers_beyond_the_largest_are_refused(datatype, largest, beyond):
    read = np.frombuffer(packed(f"[-{largest},{largest}]".encode(), datatype, 2), datatype.numpy)
    assert read.tolist() == [-float(largest), float(largest)]
    for sign in ("", "-"):
        assert packed(f"[1,{sign}{beyond}]".encode(), datatype, 2) is None


@pytest.mark.parametrize(
    "datatype", [each for each in DATATYPES if np.dtype(each.numpy).kind in "iu"]
)
@given(numbers=st.lists(INTEGERS | st.integers(-(2**64), 2**65), min_size=1, max_size=4))
def test_integers_are_read_if_they_fit(datatype, numbers):
    limits = np.iinfo(datatype.numpy)
    fit = all(limits.min <= number <= limits.max for number in numbers)
    read = packed(json.dumps(numbers).encode(), datatype, len(numbers))
    assert read == (np.array(numbers, datatype.numpy).tobytes() if fit else None)


def test_booleans_are_words():
    assert packed(b"[true, false,[true]]", DataType.BOOL, 3) == b"\1\0\1"
    for word in (b"1", b"tru", b"truE", b"fals", b"True", b"truee", b"null", b"t"):
        assert packed(b"[%b]" % word, DataType.BOOL, 1) is None


@pytest.mark.brute_force
@pytest.mark.parametrize("datatype", DATATYPES)
@given(
    elements=st.lists(
        INTEGERS.map(str)
        | SINGLES
        | WRITTEN
        | st.sampled_from(["true", "false", "null", "[1]", "-0"]),
        min_size=1,
        max_size=4,
    )
)
def test_elements_equal_those_of_the_general_reader(datatype, elements):
    text, count = f"[{','.join(elements)}]".encode(), len(elements)
    read = packed(text, datatype, count)
    if read is not None:
        assert read == read_tensor(rapid_json.loads(text), datatype, (count,)).tobytes()
