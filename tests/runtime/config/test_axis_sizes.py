import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.configs import packed_config, pixels_config
from runtime.support.parsing import assert_fault, parse

from ge_runtime.config.axis_sizes import AxisSizes
from ge_runtime.specs import DType, Relation, TensorSpec


def test_totals_are_read_axis_by_axis():
    sizes = parse(pixels_config({"limit.total.width": "64"})).axis_sizes
    assert (sizes.limits["width"], sizes.totals) == (16, {"width": 64})


def test_sizes_are_read_axis_by_axis():
    sizes = parse(pixels_config({"min.width": "3", "align.width": "8"})).axis_sizes
    assert sizes.limits == {"height": 16, "width": 16}
    assert sizes.minimums == {"height": 1, "width": 3}
    assert sizes.steps == {"height": 1, "width": 8}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            pixels_config({"align.width": "5"}),
            "parameter 'limit.width': found 16, expected a multiple of 5 (align.width)",
        ),
        (
            packed_config({"align.tokens": "8"}),
            "parameter 'packing': found align.tokens: 8, expected an axis that is not aligned",
        ),
    ],
)
def test_fault_names_place_found_and_expected(config, expected):
    assert_fault(config, expected)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.integers(0, 60))
def test_every_output_has_a_size_in_the_smallest_execution(minimum, step, other, taken):
    limit = -(-max(minimum, 70 - taken, taken + 1) // step) * step
    sizes = AxisSizes({"a": limit, "b": 9}, {"a": minimum, "b": other}, {"a": step, "b": 1})
    output = TensorSpec("y", DType.FP32, (Relation.parse(f"a - {taken}"), "b"))
    smallest = sizes.smallest([output])
    assert smallest["b"] == other
    assert smallest["a"] - taken >= 1
    assert (smallest["a"] % step, minimum <= smallest["a"] <= limit) == (0, True)
    assert smallest["a"] - step < max(minimum, taken + 1)


def test_a_relation_over_several_axes_is_grown_along_all_of_them():
    sizes = AxisSizes({"a": 4, "b": 50}, {"a": 1, "b": 1}, {"a": 2, "b": 1})
    output = TensorSpec("y", DType.FP32, (Relation.parse("a + b - 30"),))
    assert sizes.smallest([output]) == {"a": 4, "b": 27}
