import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import DType, TensorSpec
from ge_runtime.verification.distance import (
    TOLERANCES,
    Difference,
    compare,
    poison_of,
    random_elements,
    range_of,
)

NUMBERS = [dtype for dtype in DType if dtype not in (DType.BOOL, DType.BYTES)]
FLOATS = list(TOLERANCES)
NAN, INF = float("nan"), float("inf")


def floats(dtype, *values):
    return np.array([dtype.scalar(value) for value in values])


def value_of(dtype, array):
    if dtype is DType.BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


# -- ranges and random elements ----------------------------------------------------------------


@given(st.sampled_from(NUMBERS), st.integers(0, 60), st.integers(1, 60), st.integers(0, 9))
def test_random_numbers_lie_in_their_range(dtype, low, width, seed):
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


def test_the_largest_integers_can_be_asked_for():
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
def test_ranges_that_the_type_does_not_have_are_refused(dtype, given, found):
    with pytest.raises(RuntimeFault, match=f"range of 'x': found {found}, expected two "):
        range_of(TensorSpec("x", dtype, ()), given)


def test_all_values_of_a_byte_can_be_asked_for():
    assert range_of(TensorSpec("x", DType.UINT8, ()), (0, 256)) == (0, 256)


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.value)
def test_poison_is_no_random_number(dtype):
    poison = value_of(dtype, np.array([poison_of(dtype)]))[0]
    assert np.isnan(poison) if dtype in FLOATS else poison == np.iinfo(dtype.numpy).max


# -- agreement ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.value)
def test_floats_agree_up_to_the_tolerance_of_their_type(dtype):
    allowed = TOLERANCES[dtype]
    for value in (0.0, 1.0, 8.0):
        near, far = value + 0.4 * allowed * (1 + value), value + 4 * allowed * (1 + value)
        expected = floats(dtype, value)
        assert compare(dtype, floats(dtype, near), expected) is None
        assert compare(dtype, floats(dtype, far), expected) is not None
        assert compare(dtype, floats(dtype, far), expected, tolerance=9 * allowed) is None


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.value)
def test_what_is_no_number_agrees_only_with_itself(dtype):
    same = floats(dtype, NAN, INF, -INF)
    assert compare(dtype, same, same.copy()) is None
    assert compare(dtype, floats(dtype, 0.0, 0.0, 0.0), same).count == 3
    assert compare(dtype, same, floats(dtype, 0.0, 0.0, 0.0)).count == 3
    assert compare(dtype, floats(dtype, INF), floats(dtype, -INF)).count == 1


@pytest.mark.parametrize(
    ("dtype", "found", "expected"),
    [
        (DType.INT64, [2**60 + 1], [2**60]),
        (DType.UINT8, [255], [0]),
        (DType.BOOL, [True], [False]),
        (DType.BYTES, [b"a"], [b"b"]),
    ],
)
def test_all_else_agrees_in_every_bit(dtype, found, expected):
    found, expected = np.array(found, dtype.numpy), np.array(expected, dtype.numpy)
    assert compare(dtype, found, found.copy()) is None
    assert compare(dtype, found, expected, tolerance=1e9).count == 1


def test_a_difference_tells_how_many_where_and_how_far():
    expected = np.array([[1, 2], [4, 8]], np.float32)
    found = np.array([[1, 3], [4, 6]], np.float32)
    difference = compare(DType.FP32, found, expected)
    assert difference == Difference(2, 4, (0, 1), np.float32(3), np.float32(2), 2.0, 0.5)
    assert str(difference) == (
        "2 of 4 element(s) differ, the first at [0, 1]: found 3.0, expected 2.0; "
        "at most 2 apart, 0.5 relative"
    )


def test_elements_that_do_not_count_are_left_out():
    expected, found = np.zeros((2, 2), np.int32), np.array([[0, 1], [1, 0]], np.int32)
    assert compare(DType.INT32, found, expected, where=np.array([[True], [False]])).count == 1
    assert compare(DType.INT32, found, expected, where=np.eye(2, dtype=bool)) is None
