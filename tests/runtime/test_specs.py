import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.specs import UNKNOWN, DType, Relation, TensorSpec


def test_config_names_map_back_to_their_dtype():
    assert all(DType.of_config(dtype.config_name) is dtype for dtype in DType)


def test_each_dtype_has_a_numpy_type_of_its_own_but_bf16_which_is_its_bits():
    of_others = {dtype.numpy for dtype in DType if dtype is not DType.BF16}
    assert len(of_others) == len(DType) - 1
    assert DType.BF16.numpy == np.dtype(np.uint16)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0, 0x0000),
        (1.0, 0x3F80),
        (-2, 0xC000),
        (True, 0x3F80),
        (1 + 2**-8, 0x3F80),  # a tie: to even
        (1 + 3 * 2**-8, 0x3F82),  # a tie: to even
        (1 + 2**-8 + 2**-16, 0x3F81),
        (-(1 + 2**-8 + 2**-16), 0xBF81),
        (2.0**-133, 0x0001),  # the smallest
        (2.0**128 - 2.0**120, 0x7F7F),  # the largest
        (math.inf, 0x7F80),
        (-math.inf, 0xFF80),
        (math.nan, 0x7FC0),
    ],
)
def test_a_bf16_is_rounded_to_nearest_even(value, bits):
    scalar = DType.BF16.scalar(value)
    assert (scalar, type(scalar)) == (bits, np.uint16)


@given(st.floats(width=32, allow_nan=False))
def test_no_bf16_is_nearer_than_the_one_chosen(value):
    bits = int(DType.BF16.scalar(value))
    chosen = widened(bits)
    if math.isfinite(chosen) and math.isfinite(value):
        error = abs(Fraction(chosen) - Fraction(value))
        for other in map(widened, (bits - 1, bits + 1)):
            if math.isfinite(other):
                assert error <= abs(Fraction(other) - Fraction(value))


def widened(bits):
    return float(np.array(bits % 2**16 << 16, np.uint32).view(np.float32))


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [
        (DType.INT8, 127),
        (DType.UINT64, 2**64 - 1),
        (DType.FP16, 65504.0),
        (DType.BF16, float.fromhex("0x1.fep127")),
    ],
)
def test_largest_is_the_largest_finite_element(dtype, largest):
    assert dtype.largest == largest


def test_integers_are_those_that_numpy_calls_integers():
    for dtype in set(DType) - {DType.BYTES, DType.BF16}:
        assert dtype.is_integer == np.issubdtype(dtype.numpy, np.integer)


def test_spec_names_its_axes_and_takes_their_sizes():
    spec = TensorSpec("image", DType.FP32, (1, "height", "width"))
    assert spec.axes == ("height", "width")
    assert spec.shape({"height": 7, "width": 5, "other": 1}) == (1, 7, 5)
    assert str(spec) == "FP32[1,height,width]"


def test_relations_bring_their_axes_and_values_to_a_spec():
    half = Relation.parse("(height + 1) // 2")
    spec = TensorSpec("pooled", DType.FP32, (UNKNOWN, half, "width"))
    assert spec.axes == ("height", "width")
    assert spec.shape({"height": 7, "width": 5}) == (UNKNOWN, 4, 5)
    assert str(spec) == "FP32[-1,(height + 1) // 2,width]"
