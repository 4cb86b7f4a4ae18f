"""Argument conversion; tests/contract/test_model_api.py compares it with the real server."""

import decimal
import enum
import fractions

import numpy as np
import pytest

from reference_server.backends.python_host import triton_python_backend_utils as pb_utils
from reference_server.backends.python_host.api import native

X = pb_utils.Tensor("X", np.zeros(2, np.float32))


class Text(str):
    __slots__ = ()


class Word(str, enum.Enum):
    MEMBER = "m"


class WithIndex:
    def __index__(self):
        return 1


class WithInt:
    def __int__(self):
        return 1


class WithFloat:
    def __float__(self):
        return 1.0


class Failing:
    def __index__(self):
        raise ValueError

    __float__ = __bool__ = __index__


def request(**named):
    given = {"model_name": "m", "inputs": [X], "requested_output_names": ["Y"]}
    return pb_utils.InferenceRequest(**given | named)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("m", "m"),
        (Text("m"), "m"),
        (Word.MEMBER, "m"),
        (np.str_("m"), "m"),
        ("é", "é"),
        ("a\0b", "a\0b"),
        (b"m", "m"),
        ("é".encode(), "é"),
        (b"\xff", "\ufffd"),
        (bytearray(b"m"), "m"),
        (np.bytes_(b"m"), "m"),
    ],
)
def test_text(value, text):
    converted = native.as_text(value, "name")
    assert converted == text
    assert type(converted) is str


@pytest.mark.parametrize("value", [None, 5, memoryview(b"m"), ["m"], "\ud800"])
def test_other_values_are_not_text(value):
    with pytest.raises(TypeError, match=r"^argument 'name': found .*; expected "):
        native.as_text(value, "name")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (2**32 - 1, 2**32 - 1),
        (True, 1),
        (np.float32(1.5), 1),
        (np.complex64(1), 1),
        (decimal.Decimal(1), 1),
        (fractions.Fraction(3, 2), 1),
        (np.array(1.5), 1),
        (WithIndex(), 1),
        (WithInt(), 1),
        (pb_utils.TritonError.CANCELLED, 7),
        *((np.dtype(code).type(3), 3) for code in np.typecodes["AllInteger"]),
    ],
)
@pytest.mark.filterwarnings("ignore")  # NumPy warns of the discarded imaginary part
def test_integers(value, number):
    converted = native.as_integer(value, "flags", native.UINT32)
    assert converted == number
    assert type(converted) is int


@pytest.mark.parametrize(
    "value",
    [1.0, np.float64(1), "1", None, 2**32, -1, [1], 1j, WithFloat(), Failing(), np.str_("1")],
)
def test_other_values_are_not_integers(value):
    with pytest.raises(TypeError, match=r"^argument 'flags': found .*; expected "):
        request().set_flags(value)
    with pytest.raises(TypeError, match=r"^argument 'flags': found .*; expected "):
        request().set_release_flags(value)


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1.0), (True, 1.0), (np.float16(0.5), 0.5), (WithFloat(), 1.0), (WithIndex(), 1.0)],
)
def test_floats(value, number):
    converted = native.as_float(value, "amount")
    assert converted == number
    assert type(converted) is float


@pytest.mark.parametrize("value", [None, "1", b"1", 1j, 10**400, WithInt(), Failing()])
def test_other_values_are_not_floats(value):
    with pytest.raises(TypeError, match=r"^argument 'amount': found .*; expected float$"):
        native.as_float(value, "amount")


@pytest.mark.parametrize(
    ("value", "truth"),
    [(True, True), (0, False), (2.5, True), (np.bool_(False), False), (range(0), False)],
)
def test_truth_values(value, truth):
    assert native.as_bool(value, "decoupled") is truth


@pytest.mark.parametrize("value", [None, "", b"", [], object(), Failing()])
def test_other_values_have_no_truth_value(value):
    with pytest.raises(TypeError, match=r"^argument 'decoupled': found .*; expected bool$"):
        native.as_bool(value, "decoupled")


def test_a_refusal_names_the_argument_and_its_value_or_type():
    with pytest.raises(TypeError, match=r"^argument 'code': found 1; expected __ErrorCode$"):
        pb_utils.TritonError("m", code=1)
    with pytest.raises(TypeError, match=r"^argument 'error': found str; expected TritonError or"):
        pb_utils.InferenceResponse(error="e")


def test_the_number_of_arguments_is_checked_before_their_values():
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        pb_utils.InferenceResponse(np.array(1), None, unknown=1)
    with pytest.raises(TypeError, match="len"):
        pb_utils.InferenceResponse(np.array(1))


def test_enumeration_members_equal_their_numbers_but_are_no_int():
    level = pb_utils.Logger.LogLevel(2)
    assert level == pb_utils.Logger.ERROR == 2
    assert not isinstance(level, int)
    assert (level.name, level.value, int(level), [7, 8, 9][level]) == ("ERROR", 2, 2, 9)
    assert str(pb_utils.Logger.LogLevel(7)) == "LogLevel.???"
    with pytest.raises(TypeError, match="argument 'value'"):
        pb_utils.Logger.LogLevel("ERROR")
