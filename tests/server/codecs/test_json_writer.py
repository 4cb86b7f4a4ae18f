"""Tensors as JSON text, byte for byte as the real server prints them."""

import json
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.codecs import json_writer
from reference_server.codecs.json_writer import write_array, write_string

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "rapid_json_numbers.json").read_text())


def powers_of_ten():
    return np.array([float(f"1e{exponent}") for exponent in range(-323, 309)])


def texts(values):
    """The text of each element."""
    return write_array(values)[1:-1].decode().split(",")


def laid_out(text):
    """Return a finite number in the layout of RapidJSON: point, zeros and exponent."""
    sign, digits, exponent = Decimal(text).as_tuple()
    point = len(digits) + exponent
    digits = "".join(map(str, digits)).lstrip("0")
    shown = digits.rstrip("0") or "0"
    minus = "-" * sign
    if not digits:
        return f"{minus}0.0"
    point -= len("".join(map(str, Decimal(text).as_tuple().digits))) - len(digits)
    if point < -5 or point > 21:
        decimals = f".{shown[1:]}" if len(shown) > 1 else ""
        return f"{minus}{shown[0]}{decimals}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{shown}"
    return f"{minus}{shown[:point].ljust(point, '0')}.{shown[point:] or '0'}"


@pytest.mark.parametrize(("datatype", "dtype"), [("FP64", ">f8"), ("FP32", ">f4")])
def test_floats_are_printed_like_the_real_server(datatype, dtype):
    bits, printed = zip(*GOLDEN[datatype], strict=True)
    values = np.frombuffer(bytes.fromhex("".join(bits)), dtype).astype(dtype[1:])
    assert len(values) > 250
    assert texts(values) == list(printed)
    assert [text for value in values for text in texts(np.array([value]))] == list(printed)


def test_strings_are_printed_like_the_real_server():
    for raw, printed in GOLDEN["BYTES"]:
        assert write_string(raw.encode("latin-1")) == printed.encode("latin-1")
    elements = np.array([raw.encode("latin-1") for raw, _ in GOLDEN["BYTES"]], dtype=object)
    printed = ",".join(printed for _, printed in GOLDEN["BYTES"])
    assert write_array(elements) == f"[{printed}]".encode("latin-1")


@pytest.mark.brute_force
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(lambda random: random.standard_normal(5000), id="normal"),
        pytest.param(lambda random: random.random(5000).astype(np.float32), id="float32"),
        pytest.param(lambda random: random.integers(0, 2**63, 5000).view(np.float64), id="any"),
        pytest.param(lambda random: random.integers(0, 10**7, 5000) / 1000, id="decimals"),
        pytest.param(lambda random: random.integers(0, 2**52, 5000).view(np.float64), id="tiny"),
        pytest.param(lambda random: random.integers(2**53, 2**62, 5000) * 1.0, id="whole"),
        pytest.param(lambda _: 2.0 ** np.arange(-1074, 1024), id="powers of two"),
        pytest.param(lambda _: powers_of_ten(), id="powers of ten"),
    ],
)
def test_all_magnitudes_are_laid_out_and_read_back(values):
    array = values(np.random.default_rng(0))
    finite = array[np.isfinite(array)]
    assert texts(finite) == [laid_out(text) for text in texts(finite)]
    read = np.array([float(text) for text in texts(array)], array.dtype)
    np.testing.assert_array_equal(read, array)


def test_pieces_of_doubles_are_joined():
    count = json_writer._DOUBLES
    array = np.concatenate([np.arange(count), [0.1, math.nan]])
    assert texts(array) == texts(array[:100]) + texts(array[100:])


def test_half_precision_has_no_json_form():
    with pytest.raises(ValueError, match="float16"):
        write_array(np.zeros(2, np.float16))


@pytest.mark.parametrize("dtype", [*"bhilq", *"BHILQ"])
def test_integers_are_plain(dtype):
    limits = np.iinfo(dtype)
    assert write_array(np.array([limits.min, 7, limits.max], dtype)) == (
        f"[{limits.min},7,{limits.max}]".encode()
    )


def test_every_byte_but_zero_is_true():
    array = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    assert write_array(array) == b"[false,true,true,true]"


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.bool_, np.object_])
def test_any_layout_is_flat_in_c_order(dtype):
    array = np.array([[1, 0, 1], [0, 0, 1]]).astype(dtype)
    flat = write_array(array.ravel())
    assert write_array(array) == flat
    assert write_array(np.asfortranarray(array)) == flat
    assert write_array(np.repeat(array, 2, axis=1)[:, ::2]) == flat
    assert write_array(array[0, 0, ...]) == write_array(array[0, :1])


def test_elements_that_are_not_bytes_are_their_str():
    array = np.array(["hé", b"\xff", 5, None], dtype=object)
    assert write_array(array) == '["hé",'.encode() + b'"\xff","5","None"]'
    assert write_array(np.array([b"a", b"bc"])) == b'["a","bc"]'


@pytest.mark.brute_force
@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.bool_, np.object_])
@pytest.mark.parametrize("count", [1, 140_001])
def test_long_tensors_are_written_in_pieces_that_make_one_text(dtype, count):
    numbers = np.arange(count) % 251
    array = numbers.astype(str).astype(object) if dtype is np.object_ else numbers.astype(dtype)
    written = json_writer.write_elements(array)
    assert json.loads(b"[%b]" % b"".join(written)) == array.tolist()
    assert max(map(len, written)) < 1_000_000
    assert (len(written) > 1) == (count > 1000)
    assert write_array(array) == b"[%b]" % b"".join(written)


@given(st.lists(st.binary(max_size=9000), max_size=4))
def test_long_strings_are_escaped_like_their_parts(parts):
    whole = b"".join(parts)
    short = [whole[start : start + 100] for start in range(0, len(whole), 100)]
    assert write_string(whole) == b'"%b"' % b"".join(write_string(each)[1:-1] for each in short)


@given(st.lists(st.binary(max_size=9), max_size=40))
def test_many_short_strings_are_escaped_like_single_ones(texts):
    written = b"[%b]" % b",".join(map(write_string, texts))
    assert write_array(np.array(texts, object)) == written


def test_many_short_strings_are_escaped_without_a_call_for_each(monkeypatch):
    calls = []
    monkeypatch.setattr(json_writer, "_escape_codes", lambda codes: calls.append(codes) or b"")
    write_array(np.array([b"\x01"] * 8000, object))
    assert len(calls) == 2
