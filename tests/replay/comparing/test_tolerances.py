"""Tolerances: which differences each criterion accepts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from triton_replay.comparing.tolerances import (
    DEFAULT,
    EXACT,
    Tolerance,
    parse_tolerances,
    ulps_between,
)

FLOATS = arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 4)))


def near(tolerance, a, b, dtype=np.float32):
    return not tolerance.violated(np.array(a, dtype), np.array(b, dtype)).any()


@given(FLOATS)
def test_every_tensor_is_near_to_itself(a):
    for tolerance in (DEFAULT, EXACT, Tolerance(ulp=0), Tolerance(top_k=1)):
        assert not tolerance.violated(a, a.copy()).any()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_next_number_is_one_ulp_away(x):
    a = np.float32(x)
    b = np.nextafter(a, np.float32(np.inf))
    if np.isfinite(b):
        expected = 1 if a or b else 0
        assert ulps_between(np.array([a]), np.array([b]))[0] in (expected, 0 if a == b else 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulps_are_those_of_the_type(dtype):
    step, least = np.finfo(dtype).eps, np.finfo(dtype).smallest_subnormal
    a = np.array([1, -1, 0, 0, least], dtype)
    b = np.array([1 + 2 * step, -1 - 2 * step, least, -0.0, -least], dtype)
    assert ulps_between(a, b).tolist() == [2, 2, 1, 0, 2]


@pytest.mark.parametrize(
    ("tolerance", "a", "b", "expected"),
    [
        (Tolerance(absolute=0.1), [1.0], [1.05], True),
        (Tolerance(absolute=0.1), [1.0], [1.2], False),
        (Tolerance(relative=0.1), [100.0], [109.0], True),
        (Tolerance(relative=0.1), [0.0], [0.01], False),
        (Tolerance(ulp=4), [1e30], [1.0000001e30], True),
        (Tolerance(ulp=1), [1.0], [1 + 2.0**-23], True),
        (Tolerance(ulp=1), [1.0], [1 + 2.0**-22], False),
        (Tolerance(absolute=1e9), [np.inf], [1.0], False),
        (Tolerance(absolute=1e9), [np.inf], [-np.inf], False),
        (Tolerance(absolute=1e9), [np.nan], [1.0], False),
        (EXACT, [np.nan, np.inf], [np.nan, np.inf], True),
        (Tolerance(cosine=0.99), [[1.0, 0.0]], [[5.0, 0.01]], True),
        (Tolerance(cosine=1.0), [[0.25, 0.0]], [[0.5, 0.0]], True),
        (Tolerance(cosine=0.99), [[1.0, 0.0]], [[0.0, 1.0]], False),
        (Tolerance(cosine=0.99), [[0.0, 0.0]], [[0.0, 0.0]], True),
        (Tolerance(cosine=0.99), [[0.0, 0.0]], [[0.0, 1.0]], False),
        (Tolerance(top_k=2), [[9.0, 5.0, 1.0]], [[4.0, 6.0, 0.0]], True),
        (Tolerance(top_k=1), [[9.0, 5.0, 1.0]], [[4.0, 6.0, 0.0]], False),
        (Tolerance(top_k=9), [[9.0, 5.0]], [[4.0, 6.0]], True),
        (Tolerance(absolute=0.1), 1.0, 1.05, True),
    ],
)
def test_each_criterion_accepts_its_differences(tolerance, a, b, expected):
    assert near(tolerance, a, b) is expected


def test_integers_and_texts_are_compared_exactly_by_default():
    tolerances = parse_tolerances(["n:abs=1"])
    assert tolerances.of("m", "k", "i") == EXACT
    assert not near(EXACT, [2**62], [2**62 + 1], np.int64)
    assert near(tolerances.of("m", "n", "i"), [-1], [0], np.int8)
    assert not near(tolerances.of("m", "n", "i"), [-1], [1], np.int8)
    assert near(tolerances.of("m", "n", "i"), [5], [6], np.int64)
    words = np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)
    assert DEFAULT.violated(*words).tolist() == [False, True]


def test_the_most_specific_tolerance_applies():
    tolerances = parse_tolerances(["abs=1", "y:rel=0.5,ulp=2", "m/y:cosine=0.9,topk=3"])
    assert tolerances.of("m", "y", "f") == Tolerance(cosine=0.9, top_k=3)
    assert tolerances.of("n", "y", "f") == Tolerance(relative=0.5, ulp=2)
    assert tolerances.of("n", "z", "f") == Tolerance(absolute=1.0)
