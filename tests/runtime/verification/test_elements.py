"""Random elements of every type lie in their range; poison is never one of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import DType, TensorSpec
from ge_runtime.verification.distance import TOLERANCES
from ge_runtime.verification.elements import poison_of, random_elements, range_of

NUMBERS = [dtype for dtype in DType if dtype not in (DType.BOOL, DType.BYTES)]
FLOATS = list(TOLERANCES)
NAN = float("nan")


def value_of(dtype, array):
    if dtype is DType.BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


@given(st.sampled_from(NUMBERS), st.integers(0, 60), st.integers(1, 60), st.integers(0, 9))
def test_random_numbers_are_within_their_range(dtype, low, width, seed):
    within = range_of(TensorSpec("x", dtype, ()), (low, low + width))
    drawn = random_elements(np.random.default_rng(seed), dtype, (3, 50), within)
    assert (drawn.dtype, drawn.shape) == (dtype.numpy, (3, 50))
    values = value_of(dtype, drawn).astype(np.float64)
    highest = low + width - 1 if dtype.is_integer else low + width
    assert low <= values.min()
    assert values.max() <= highest


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_without_a_range_elements_differ_and_are_small(dtype):
    within = range_of(TensorSpec("x", dtype, ()), None)
    drawn = random_elements(np.random.default_rng(0), dtype, (2, 100), within)
    assert (drawn.dtype, drawn.shape) == (dtype.numpy, (2, 100))
    assert len(set(drawn.ravel().tolist())) > 1
    if dtype in NUMBERS:
        assert np.abs(value_of(dtype, drawn).astype(np.float64)).max() < 10


def test_a_range_may_contain_the_largest_integers():
    spec = TensorSpec("x", DType.UINT64, ())
    within = range_of(spec, (2.0**63, 2.0**64))
    drawn = random_elements(np.random.default_rng(0), DType.UINT64, (9,), within)
    assert drawn.min() >= 2**63


@pytest.mark.parametrize(
    ("dtype", "given", "found"),
    [
        (DType.INT64, (5, 5), "5:5"),
        (DType.INT64, (0, 1.5), "0:1.5"),
        (DType.UINT8, (-1, 5), "-1:5"),
        (DType.UINT8, (0, 257), "0:257"),
        (DType.FP16, (0, 1e5), "0:100000"),
        (DType.FP32, (NAN, 1), "nan:1"),
    ],
)
def test_a_range_outside_the_type_is_refused(dtype, given, found):
    with pytest.raises(RuntimeFault, match=f"range of 'x': found {found}, expected two "):
        range_of(TensorSpec("x", dtype, ()), given)


def test_a_range_may_contain_all_values_of_a_byte():
    assert range_of(TensorSpec("x", DType.UINT8, ()), (0, 256)) == (0, 256)


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.value)
def test_poison_is_nan_or_the_largest_integer(dtype):
    poison = value_of(dtype, np.array([poison_of(dtype)]))[0]
    assert np.isnan(poison) if dtype in FLOATS else poison == np.iinfo(dtype.numpy).max
