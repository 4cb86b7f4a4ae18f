"""The difference between two tensors."""

import math

import numpy as np
import pytest

from ge_runtime.cli.compare.report import difference

INF, NAN = math.inf, math.nan


def floats(*values):
    return np.array(values, np.float32)


def test_difference_of_floats():
    found = difference(floats(3, 4.5), floats(3, 4))
    assert found.relative == pytest.approx(0.1)
    assert found.largest == 0.5
    assert found.cosine == pytest.approx(27 / 5 / math.hypot(3, 4.5))
    assert found.exceeds(0.09)
    assert not found.exceeds(0.11)


def test_equal_arrays_are_within_any_limit():
    for equal in (floats(1, 2), floats(0, 0), floats(), floats(INF, -INF, NAN, 1)):
        found = difference(equal, equal.copy())
        assert (found.relative, found.largest, found.cosine) == (0, 0, pytest.approx(1))
        assert not found.exceeds(0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (floats(INF, 1), floats(70000, 1)),
        (floats(NAN, 1), floats(2, 1)),
        (floats(INF), floats(-INF)),
        (floats(1), floats(0)),
        (floats(1, 2), floats(1)),
        (floats(1), np.array([1], np.float16)),
    ],
)
def test_infinite_differences(found, expected):
    assert difference(found, expected).relative == INF
    assert difference(found, expected).exceeds(1e9)


def test_difference_of_integers_and_booleans():
    found = difference(np.array([1, 2, 3, 9]), np.array([1, 2, 3, 4]))
    assert found.relative == 0.25
    assert found.largest == 5
    assert math.isnan(found.cosine)
    found = difference(np.array([True, False]), np.array([True, True]))
    assert found.relative == 0.5
    assert math.isnan(found.largest)
    assert difference(np.array([1]), np.array([1])).relative == 0
