"""Tolerances: which differences each criterion accepts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from triton_replay.comparing.tolerances import (
    DEFAULT,
    EXACT,
    HALF,
    Tolerance,
    Tolerances,
    parse_tolerances,
    ulps_between,
)
from triton_replay.errors import ReplayError

FLOATS = arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 4)))


def near(tolerance, a, b, dtype=np.float32):
    return not tolerance.violated(np.array(a, dtype), np.array(b, dtype)).any()


@given(FLOATS)
def test_every_tensor_is_near_to_itself(a):
    for tolerance in (DEFAULT, HALF, EXACT, Tolerance(ulp=0), Tolerance(top_k=1)):
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
        (Tolerance(scaled=0.01), [100.0, 0.0], [100.0, 0.9], True),
        (Tolerance(scaled=0.01), [100.0, 0.0], [100.0, 1.1], False),
        (Tolerance(scaled=0.01), [np.inf, 100.0, 0.0], [np.inf, 100.0, 1.1], False),
        # A lost output differs with any tolerance.
        (Tolerance(absolute=1.0), [3e-6, 9e-6], [0.0, 0.0], False),
        (Tolerance(absolute=1.0), [0.0, -0.0], [3e-6, 0.0], False),
        (Tolerance(absolute=1.0), [0.0, 0.0], [-0.0, 0.0], True),
        (Tolerance(absolute=1.0), [3e-6, 9e-6], [0.0, 9e-6], True),
        (Tolerance(cosine=0.0), [[3e-6, 9e-6]], [[0.0, 0.0]], False),
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
    assert tolerances.of("m", "k", "INT32") == EXACT
    assert not near(EXACT, [2**62], [2**62 + 1], np.int64)
    assert near(tolerances.of("m", "n", "INT64"), [-1], [0], np.int8)
    assert not near(tolerances.of("m", "n", "INT64"), [-1], [1], np.int8)
    assert near(tolerances.of("m", "n", "INT64"), [5], [6], np.int64)
    words = np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)
    assert DEFAULT.violated(*words).tolist() == [False, True]


PROBABILITIES = [0.9, 0.1 - 1e-5, 7e-6, 3e-6]


@pytest.mark.parametrize(
    ("datatype", "a", "b", "expected"),
    [
        # Another order of summation is accepted at the scale of the tensor.
        ("FP32", [1000.0, 1.0], [1000.05, 1.0009], True),
        ("FP32", [1000.0, 0.0], [1000.0, 0.0009], True),
        ("FP32", [1.0, 0.0], [1.0, 2e-6], False),
        ("FP32", [1e-6, 3e-7], [1e-6, 4e-7], False),
        ("FP32", PROBABILITIES, [*PROBABILITIES[:2], 3e-6, 7e-6], False),
        ("FP32", [3e-6, 9e-6], [0.0, 0.0], False),
        ("FP64", [1.0, 1.0], [1.0, 1.00005], True),
        ("FP16", [1.0, 1000.0], [1 + 2.0**-9, 1001.0], True),
        ("FP16", [1.0], [1 + 3 * 2.0**-10], False),
        ("FP16", [6e-8, 1.2e-7], [0.0, 0.0], False),
        ("BF16", [1.0], [1 + 2.0**-6], True),
        ("BF16", [1.0], [1 + 3 * 2.0**-7], False),
    ],
)
def test_the_default_depends_on_datatype_and_scale(datatype, a, b, expected):
    dtype = {"FP16": np.float16, "FP64": np.float64}.get(datatype, np.float32)
    tolerance = Tolerances().of("m", "y", datatype)
    wrong = tolerance.violated(np.array(a, dtype), np.array(b, dtype), datatype)
    assert (not wrong.any()) == expected


@pytest.mark.parametrize(
    "rules",
    [
        *("abs=nan", "abs=-1", "rel=-1e-9", "scale=nan", "ulp=-1", "ulp=0.5", "topk=0"),
        *("cosine=1.01", "cosine=-0.1", "cosine=nan", "abs=", "abs", "near=1", "", "json=1"),
    ],
)
def test_invalid_numbers_are_refused(rules):
    with pytest.raises(ReplayError, match="numbers of 0 or more, cosine at most 1"):
        parse_tolerances([f"y:{rules}"])


def test_the_most_specific_tolerance_applies():
    tolerances = parse_tolerances(["abs=1", "y:rel=0.5,ulp=2", "m/y:cosine=0.9,topk=3"])
    assert tolerances.of("m", "y", "FP32") == Tolerance(cosine=0.9, top_k=3)
    assert tolerances.of("n", "y", "FP32") == Tolerance(relative=0.5, ulp=2)
    assert tolerances.of("n", "z", "FP16") == Tolerance(absolute=1.0)
    assert tolerances.of("n", "z", "BYTES") == EXACT
    # A rule for JSON does not accept other numbers in tensors.
    tolerances = parse_tolerances(["json", "y:json"])
    assert tolerances.of("n", "z", "BYTES") == tolerances.of("n", "y", "BYTES")
    assert tolerances.of("n", "z", "BYTES") == Tolerance(json=True)
    assert tolerances.of("n", "z", "FP16") == tolerances.of("n", "y", "FP16") == HALF
    assert tolerances.of("n", "z", "INT8") == EXACT
