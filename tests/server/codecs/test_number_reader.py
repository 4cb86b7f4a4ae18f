"""Arrays of numbers in JSON, read without orjson: the same doubles, of the same arrays."""

import json
import math
import struct
import sys

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.compiled import as_python, unless_compiled

from reference_server.codecs import json_data, number_reader
from reference_server.core.dtypes import DataType

FORMS = [
    pytest.param(number_reader.doubles, id="compiled", marks=unless_compiled(number_reader)),
    pytest.param(as_python(number_reader).doubles, id="python"),
]
LARGEST = sys.float_info.max
WHOLE = st.integers(-(10**21), 10**21).map(str)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False).map(repr)
SINGLES = st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr)
DIGITS = st.integers(0, 10**24).map(str)
WRITTEN = st.tuples(
    *(st.sampled_from(["", "-"]), DIGITS),
    *(DIGITS, st.sampled_from(["", "e", "E+", "e-"]), st.integers(0, 340)),
).map(lambda parts: f"{parts[0]}{parts[1]}.{parts[2]}" + (f"{parts[3]}{parts[4]}" * bool(parts[3])))


def pattern(number):
    return struct.pack("<d", number)


def flat(value):
    return [number for each in value for number in flat(each)] if type(value) is list else [value]


@pytest.mark.brute_force
@pytest.mark.parametrize("form", FORMS)
@given(numbers=st.lists(WHOLE | DOUBLES | SINGLES | WRITTEN, min_size=1, max_size=8))
def test_numbers_are_the_doubles_nearest_to_their_texts(form, numbers):
    read = form(f"[{','.join(numbers)}]".encode(), len(numbers), LARGEST)
    # Integers are whole numbers first, of which 0 has no sign.
    nearest = [float(json.loads(number)) for number in numbers]
    if any(map(math.isinf, nearest)):
        assert read is None
    else:
        assert list(map(pattern, read)) == list(map(pattern, nearest))


@pytest.mark.parametrize("form", FORMS)
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
def test_numbers_at_the_edge(form, number):
    (read,) = form(f"[{number}]".encode(), 1, LARGEST)
    assert pattern(read) == pattern(float(json.loads(number)))


@pytest.mark.brute_force
@pytest.mark.parametrize("form", FORMS)
@given(text=st.text("0123456789.-+eE[], \n", max_size=9), count=st.integers(1, 3))
def test_what_is_read_is_such_an_array(form, text, count):
    document = f"[{text}]".encode()
    read = form(document, count, LARGEST)
    if read is not None:
        numbers = flat(orjson.loads(document))
        assert list(map(pattern, read)) == list(map(pattern, map(float, numbers)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text", ["[1,2]", "[ 1 ,\t2\r\n]", "[[1],[2]]", "[[[1,2]]]", "[1,[2]]", "[[[[[[[[1,2]]]]]]]]"]
)
def test_arrays_are_read_depth_first(form, text):
    assert form(text.encode(), 2, LARGEST).tolist() == [1, 2]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text",
    [
        *("", "]", "[]", "[1]", "[1,2,3]", "[1,2", "1,2]", "[1,2]]", "[1],2]", "[1,2] ", "[1,,2]"),
        *("[,1,2]", "[1,2,]", "[1 2]", "[1,[]]", "[[1,2]", "[1]2]", "[1,2}", "[1,true]"),
        *("[1,NaN]", "[1,01]", "[1,+2]", "[1,.5]", "[1,2.]", "[1,2e]", "[1,2e+]", "[1,-]"),
        *("[1,1e400]", "[1,0x1]", "[1,1_0]", '[1,"2"]', "[1,\0]", "[[[[[[[[[1,2]]]]]]]]]"),
    ],
)
def test_anything_else_is_left_to_others(form, text):
    assert form(text.encode(), 2, LARGEST) is None


@pytest.mark.parametrize("form", FORMS)
def test_numbers_beyond_the_largest_are_left_to_others(form):
    assert form(b"[-8,8.0,8e0,800000000000000000000e-20]", 4, 8.0).tolist() == [-8, 8, 8, 8]
    for number in ("9", "-8.5", "1e9", "85000000000000000000e-19", "1e400"):
        assert form(f"[1,{number}]".encode(), 2, 8.0) is None


@pytest.mark.parametrize("form", [*FORMS, pytest.param(None, id="orjson")])
def test_single_precision_is_rounded_from_doubles(monkeypatch, form):
    monkeypatch.setattr(json_data, "_read_doubles", form)
    written = b"[0.1,-3.4028234663852886e38,16777217,1.0000000596046448]"
    read = np.frombuffer(json_data.packed(written, DataType.FP32, 4), np.float32)
    assert read.tolist() == [float(np.float32(each)) for each in json.loads(written)]
    read = np.frombuffer(json_data.packed(written, DataType.FP64, 4))
    assert read.tolist() == json.loads(written)
