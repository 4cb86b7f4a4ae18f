import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.planning import brute

from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.planning.size_demand import SizeDemand, gears_value, pbtxt_lines, sorted_gears

counted = st.dictionaries(
    st.tuples(st.integers(1, 40), st.integers(1, 40)), st.integers(1, 9), min_size=1, max_size=20
)


@given(counted, st.integers(1, 16), st.integers(1, 40), st.integers(1, 40))
def test_sizes_over_the_limit_are_ignored(sizes, align, height, width):
    inside = {size: n for size, n in sizes.items() if size[0] <= height and size[1] <= width}
    histogram = brute.histogram_of(sizes, ["height", "width"])
    limits = {"height": height, "width": width, "other": 3}
    if not inside:
        with pytest.raises(HistogramFault, match=f"none within the limit {height}x{width}"):
            SizeDemand.of(histogram, limits=limits, align=align)
        return
    demand = SizeDemand.of(histogram, limits=limits, align=align)
    assert demand.limit == (height, width)
    assert demand.total == sum(inside.values())
    assert demand.beyond == sum(sizes.values()) - demand.total
    assert demand.useful.sum() == sum(count * math.prod(size) for size, count in inside.items())


@given(counted, st.integers(1, 16))
def test_all_sizes_are_held_by_the_smallest_aligned_ones(sizes, align):
    demand = SizeDemand.of(brute.histogram_of(sizes, ["height", "width"]), align=align)
    assert (demand.total, demand.beyond) == (sum(sizes.values()), 0)
    assert all(limit % align == 0 for limit in demand.limit)
    assert (demand.sizes <= demand.limit).all()
    limit = tuple(map(max, zip(*sizes, strict=True)))
    limits = dict(zip(("height", "width"), limit, strict=True))
    demand = SizeDemand.of(
        brute.histogram_of(sizes, ["height", "width"]), limits=limits, align=align
    )
    for size, candidate in zip(demand.sizes.tolist(), demand.candidates.tolist(), strict=True):
        for along, gear, most in zip(size, candidate, limit, strict=True):
            assert gear == most or (gear % align == 0 and along <= gear < along + align)


def test_rows_are_not_aligned():
    histogram = brute.histogram_of({(3, 5): 1}, ["batch", "tokens"])
    assert SizeDemand.of(histogram, align=8).limit == (3, 8)


def test_a_size_rounded_over_the_limit_counts_as_the_limit():
    histogram = Histogram(["tokens"], capacity=2)
    for size in (100, 250, 500):
        histogram.add((size,))
    assert histogram.steps[0] > 1
    demand = SizeDemand.of(histogram, limits={"tokens": 500})
    assert demand.total == 3
    assert demand.sizes.max() == 500


@pytest.mark.brute_force
@given(counted, st.sets(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=4))
def test_each_size_runs_in_the_smallest_gear_that_holds_it(sizes, others):
    demand = SizeDemand.of(brute.histogram_of(sizes, ["height", "width"]))
    gears = sorted_gears([*others, (40, 40)])
    chosen = [gears[index] for index in demand.assign(gears)]
    for size, gear in zip(demand.sizes.tolist(), chosen, strict=True):
        assert brute.holds(gear, size)
        assert math.prod(gear) == min(math.prod(g) for g in gears if brute.holds(g, size))


def test_waste_is_padding_divided_by_executed_elements():
    demand = SizeDemand.of(brute.histogram_of({(3,): 4, (10,): 1}, ["tokens"]), align=4)
    assert demand.waste(((12,),)) == pytest.approx(1 - 22 / 60)
    assert demand.waste(((4,), (12,))) == pytest.approx(1 - 22 / 28)
    assert demand.bound == pytest.approx(1 - 22 / 28)


def test_huge_sizes_do_not_overflow():
    demand = SizeDemand.of(brute.histogram_of({(2**30, 2**30): 5, (1, 1): 1}, ["height", "width"]))
    assert demand.waste((demand.limit,)) == pytest.approx(1 / 6)
    assert np.isfinite(demand.bound)


def test_gears_are_ordered_by_elements():
    gears = sorted_gears([(64, 48), (32, 32), (48, 64), (32, 32)])
    assert gears == ((32, 32), (48, 64), (64, 48))
    assert gears_value(gears) == "32x32, 48x64, 64x48"
    assert pbtxt_lines(["height", "width"], gears, {"height": 64, "width": 64}, "rows") == [
        'parameters { key: "gears.height,width" value { string_value: "32x32, 48x64, 64x48" } }',
        'parameters { key: "limit.height" value { string_value: "64" } }',
        'parameters { key: "limit.width" value { string_value: "64" } }',
    ]
    assert pbtxt_lines(["batch"], ((4,), (8,)), {"batch": 8}, "max_batch_size") == [
        'parameters { key: "gears.batch" value { string_value: "4, 8" } }',
        "# max_batch_size: at least 8",
    ]
