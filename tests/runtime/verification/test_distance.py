"""Differences between answers, and how much of a difference is rounding or chance."""

import numpy as np
import pytest

from ge_runtime.specs import DType, TensorSpec
from ge_runtime.verification.distance import (
    NUDGE_MARGIN,
    ROWS_MARGIN,
    TOLERANCES,
    Difference,
    Rounding,
    Variants,
    beyond_chance,
    compare,
    compare_all,
)

Y = TensorSpec("y", DType.FP32, (3,))
FLOATS = list(TOLERANCES)
NAN, INF = float("nan"), float("inf")


def floats(*values):
    return np.array(values, np.float32)


def elements(dtype, *values):
    return np.array([dtype.scalar(value) for value in values])


def spec_of(dtype):
    return TensorSpec("y", dtype, (-1,))


def test_the_largest_distance_is_reported_with_its_place():
    found = compare(Y, floats(1, 2.5, 2), floats(1, 2, 3))
    assert found == Difference("y", (2,), 2.0, 3.0, 1.0, 2, 3)
    assert str(found) == (
        "output 'y': found 2.0 at [2], expected 3.0, distance 1; 2 of 3 element(s) differ"
    )


@pytest.mark.parametrize(
    ("dtype", "one", "other", "distance"),
    [
        (DType.FP32, floats(0, 1), floats(np.nan, 1), np.inf),
        (DType.FP32, floats(np.inf, 1), floats(-np.inf, 1), np.inf),
        (DType.FP32, floats(1, 1), floats(1, np.nextafter(np.float32(1), np.float32(2))), 2.0**-23),
        (DType.BOOL, np.array([True, False]), np.array([True, True]), 1.0),
        (DType.UINT8, np.array([255], np.uint8), np.array([0], np.uint8), 255.0),
        (DType.BF16, np.array([0x3F80], np.uint16), np.array([0x4000], np.uint16), 1.0),
        (DType.BYTES, np.array([b"a"], object), np.array([b"b"], object), np.inf),
        (DType.INT64, np.ones((1, 2), np.int64), np.ones((1, 3), np.int64), np.inf),
    ],
)
def test_distances_of_every_type(dtype, one, other, distance):
    found = compare(spec_of(dtype), one, other)
    assert (found and found.distance) == (distance and pytest.approx(distance))


def test_only_outputs_that_differ_are_reported():
    specs = [Y, TensorSpec("z", DType.INT32, (1,))]
    one = {"y": floats(1, 2, 3), "z": np.int32([7])}
    assert compare_all(specs, one, dict(one)) == []
    assert [each.output for each in compare_all(specs, one, {**one, "z": np.int32([8])})] == ["z"]
    assert compare(Y, np.float32(2)[...], np.float32(3)[...]).distance == 1.0
    found = compare(spec_of(DType.INT64), np.ones((1, 2), np.int64), np.ones((1, 3), np.int64))
    assert str(found) == "output 'y': found shape [1, 2], expected [1, 3]"


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.value)
def test_floats_agree_up_to_the_tolerance(dtype):
    spec, allowed = spec_of(dtype), TOLERANCES[dtype]
    for value in (0.0, 1.0, 8.0):
        near, far = value + 0.4 * allowed * (1 + value), value + 4 * allowed * (1 + value)
        expected = elements(dtype, value)
        assert compare(spec, elements(dtype, near), expected, tolerance=allowed) is None
        assert compare(spec, elements(dtype, far), expected, tolerance=allowed) is not None
        assert compare(spec, elements(dtype, far), expected, tolerance=9 * allowed) is None


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_nan_and_infinity_agree_only_with_themselves(dtype, tolerance):
    def count(found, expected):
        difference = compare(spec_of(dtype), found, expected, tolerance=tolerance)
        return difference and difference.count

    same = elements(dtype, NAN, INF, -INF)
    zeros = elements(dtype, 0.0, 0.0, 0.0)
    assert count(same, same.copy()) is None
    assert count(zeros, same) == 3
    assert count(same, zeros) == 3
    assert count(elements(dtype, INF), elements(dtype, -INF)) == 1


@pytest.mark.parametrize(
    ("dtype", "found", "expected"),
    [
        (DType.INT64, [2**60 + 1], [2**60]),
        (DType.UINT8, [255], [0]),
        (DType.BOOL, [True], [False]),
        (DType.BYTES, [b"a"], [b"b"]),
    ],
)
def test_no_tolerance_applies_to_other_types(dtype, found, expected):
    found, expected = np.array(found, dtype.numpy), np.array(expected, dtype.numpy)
    assert compare(spec_of(dtype), found, found.copy()) is None
    assert compare(spec_of(dtype), found, expected, tolerance=1e9).count == 1


def test_elements_outside_the_mask_do_not_count():
    spec = spec_of(DType.INT64)
    expected, found = np.zeros((2, 2), np.int64), np.array([[0, 1], [9, 0]])
    assert compare(spec, found, expected, where=np.array([[True], [False]])) == Difference(
        "y", (0, 1), 1, 0, 1.0, 1, 4
    )
    assert compare(spec, found, expected, where=np.eye(2, dtype=bool)) is None


def test_a_difference_that_equal_executions_show_too_is_chance():
    one, other = {"y": floats(1, 2, 3)}, {"y": floats(1, 2, 3.5)}
    differences = compare_all([Y], other, one)
    assert beyond_chance([Y], differences, lambda: [one, other, one]) is None
    assert beyond_chance([Y], differences, lambda: [one, {"y": floats(1, 2, 3.25)}]) is None
    assert beyond_chance([Y], differences, lambda: [one, {"y": floats(1, 2, 3.125)}]) == (
        differences[0],
        0.125,
    )
    assert beyond_chance([Y], [], lambda: pytest.fail("executed")) is None


def rounding_of(answer, nudged=(), more_rows=(), spec=Y):
    name = spec.name
    variants = Variants([{name: own} for own in nudged], [{name: own} for own in more_rows])
    return Rounding([spec], {name: answer}, lambda: variants)


def test_rounding_is_measured_once_and_only_when_needed():
    measured = []

    def variants():
        measured.append(1)
        return Variants([{"y": floats(8, 4, 2.25)}, {"y": floats(8, 4.5, 2)}], [])

    rounding = Rounding([Y], {"y": floats(8, 4, 2)}, variants)
    assert not measured
    assert (rounding.seen("y"), rounding.allowed("y")) == (0.5, 0.5 * NUDGE_MARGIN)
    assert len(measured) == 1


@pytest.mark.parametrize(
    ("change", "allowed"), [(2**-13, ROWS_MARGIN * 2**-13), (0.5, pytest.approx(1e-5))]
)
def test_a_change_by_more_rows_is_rounding_unless_it_is_large(change, allowed):
    rounding = rounding_of(floats(1, 0, 0), more_rows=[floats(1 + change, 0, 0)])
    assert (rounding.seen("y"), rounding.allowed("y")) == (change, allowed)


def test_the_tolerance_of_the_type_is_allowed_without_measured_rounding():
    same = floats(-8, 4, np.nan)
    assert rounding_of(same, [same], [same]).allowed("y") == pytest.approx(8e-5)


def test_integers_may_change_as_far_as_nudged_inputs_change_them():
    z = TensorSpec("z", DType.INT64, (1,))
    one, other = np.int64([1000]), np.int64([1001])
    assert rounding_of(one, [one], [one], z).allowed("z") == 0
    assert rounding_of(one, [other], [one], z).allowed("z") == NUDGE_MARGIN
