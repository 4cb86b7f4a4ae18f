"""How far answers are apart, and what of it is rounding."""

import numpy as np
import pytest

from ge_runtime.specs import DType, TensorSpec
from ge_runtime.verification.distance import (
    NUDGE_MARGIN,
    ROWS_MARGIN,
    Rounding,
    Variants,
    apart,
    furthest,
)

Y = TensorSpec("y", DType.FP32, (3,))


def floats(*values):
    return np.array(values, np.float32)


def test_the_largest_distance_is_found_and_where():
    found = furthest(Y, floats(1, 2.5, 2), floats(1, 2, 3))
    assert (found.output, found.place, found.found, found.expected) == ("y", (2,), 2.0, 3.0)
    assert found.distance == 1.0
    assert str(found) == "output 'y' has 2.0 at [2] where 3.0 is expected, 1 apart"


@pytest.mark.parametrize(
    ("dtype", "one", "other", "distance"),
    [
        (DType.FP32, floats(np.nan, np.inf), floats(np.nan, np.inf), None),
        (DType.FP32, floats(0, 1), floats(np.nan, 1), np.inf),
        (DType.FP32, floats(np.inf, 1), floats(-np.inf, 1), np.inf),
        (DType.FP32, floats(1, 1), floats(1, np.nextafter(np.float32(1), 2)), 2.0**-23),
        (DType.BOOL, np.array([True, False]), np.array([True, True]), 1.0),
        (DType.UINT8, np.array([255], np.uint8), np.array([0], np.uint8), 255.0),
        (DType.BF16, np.array([0x3F80], np.uint16), np.array([0x4000], np.uint16), 1.0),
        (DType.INT64, np.ones((1, 2), np.int64), np.ones((1, 3), np.int64), np.inf),
    ],
)
def test_distances_of_every_type(dtype, one, other, distance):
    found = furthest(TensorSpec("y", dtype, (-1,)), one, other)
    assert (found and found.distance) == (distance and pytest.approx(distance))


def test_only_outputs_that_differ_are_told():
    specs = [Y, TensorSpec("z", DType.INT32, (1,))]
    one = {"y": floats(1, 2, 3), "z": np.int32([7])}
    assert apart(specs, one, dict(one)) == []
    assert [each.output for each in apart(specs, one, {**one, "z": np.int32([8])})] == ["z"]


def rounding_of(answer, nudged=(), more_rows=(), spec=Y):
    name = spec.name
    variants = Variants([{name: own} for own in nudged], [{name: own} for own in more_rows])
    return Rounding([spec], {name: answer}, lambda: variants)


def test_rounding_is_measured_once_and_only_when_asked_for():
    asked = []

    def variants():
        asked.append(1)
        return Variants([{"y": floats(8, 4, 2.25)}, {"y": floats(8, 4.5, 2)}], [])

    rounding = Rounding([Y], {"y": floats(8, 4, 2)}, variants)
    assert not asked
    assert (rounding.seen("y"), rounding.allowed("y")) == (0.5, 0.5 * NUDGE_MARGIN)
    assert len(asked) == 1


def test_more_rows_tell_of_rounding_too():
    moved = floats(1 + 2**-13, 0, 0)
    rounding = rounding_of(floats(1, 0, 0), more_rows=[moved])
    assert (rounding.seen("y"), rounding.allowed("y")) == (2**-13, ROWS_MARGIN * 2**-13)


def test_what_more_rows_change_beyond_all_rounding_is_not_allowed_for_it():
    rounding = rounding_of(floats(1, 0, 0), more_rows=[floats(1.5, 0, 0)])
    assert (rounding.seen("y"), rounding.allowed("y")) == (0.5, pytest.approx(1e-5))


def test_what_the_type_promises_is_allowed_where_nothing_rounds():
    same = floats(-8, 4, np.nan)
    assert rounding_of(same, [same], [same]).allowed("y") == pytest.approx(8e-5)


def test_integers_may_move_no_further_than_rounding_moves_them():
    z = TensorSpec("z", DType.INT64, (1,))
    one, other = np.int64([1000]), np.int64([1001])
    assert rounding_of(one, [one], [one], z).allowed("z") == 0
    assert rounding_of(one, [other], [one], z).allowed("z") == NUDGE_MARGIN
