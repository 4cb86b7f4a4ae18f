import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.planning import brute

from ge_runtime.errors import RuntimeFault
from ge_runtime.planning.gear_optimizer import powers_of_two
from ge_runtime.planning.gear_report import (
    BASELINES,
    as_json,
    compare,
    curve_lines,
    draw,
    uses,
)
from ge_runtime.planning.size_demand import SizeDemand, sorted_gears

DEMAND = SizeDemand.of(
    brute.histogram_of({(3,): 60, (9,): 30, (30,): 10}, ["tokens"]),
    limits={"tokens": 64},
    align=8,
)


def test_report_of_several_counts():
    assert curve_lines(DEMAND, compare(DEMAND, range(1, 4))) == [
        "gears  optimum  quantiles  powers of two  linear  gears of the optimum",
        "    1   88.3 %     88.3 %         88.3 %  88.3 %  64",
        "    2   63.9 %     75.3 %         76.6 %  76.6 %  16, 64",
        "    3   53.1 %     53.1 %         57.4 %  71.6 %  8, 16, 64",
        "bound   41.4 %",
    ]


@pytest.mark.brute_force
@given(
    st.dictionaries(
        st.tuples(st.integers(1, 20), st.integers(1, 20)), st.integers(1, 9), min_size=1
    ),
    st.sets(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=4),
)
def test_shares_of_gears_add_up(counted, others):
    demand = SizeDemand.of(brute.histogram_of(counted, ["height", "width"]))
    gears = sorted_gears([*others, (20, 20)])
    done = uses(demand, gears)
    assert [use.gear for use in done] == [*gears]
    assert sum(use.share for use in done) == pytest.approx(1)
    assert sum(use.elements for use in done) == pytest.approx(1)
    assert sum(use.elements * use.waste for use in done) == pytest.approx(demand.waste(gears))


def test_json_report():
    plan = json.loads(json.dumps(as_json(DEMAND, compare(DEMAND, [3]))))
    assert plan["axes"] == ["tokens"]
    assert (plan["limit"], plan["align"], plan["sizes"]) == ([64], 8, 100)
    assert plan["lower_bound"] == {"waste": pytest.approx(0.4140625), "gears": 3}
    (only,) = plan["plans"]
    assert only["count"] == 3
    assert only["choices"]["linear"] == {
        "waste": pytest.approx(0.7159090909),
        "gears": [[24], [48], [64]],
    }
    assert only["gears"][0] == {
        "gear": [8],
        "share": pytest.approx(0.6),
        "elements": pytest.approx(0.3),
        "waste": pytest.approx(0.625),
    }


def demand_of(counted, axes=("tokens",), **options):
    return SizeDemand.of(brute.histogram_of(counted, axes), **options)


LENGTHS = {(size,): 1 for size in range(1, 101)}


@pytest.mark.parametrize(
    ("name", "gears"),
    [
        ("linear", ((32,), (56,), (80,), (104,))),
        ("quantiles", ((32,), (56,), (80,), (104,))),
        ("powers of two", ((16,), (32,), (64,), (104,))),
    ],
)
def test_baselines_are_aligned(name, gears):
    assert BASELINES[name](demand_of(LENGTHS, align=8), 4) == gears


def test_quantiles_hold_equal_shares():
    demand = demand_of({(5,): 50, (9,): 25, (40,): 25})
    assert BASELINES["quantiles"](demand, 2) == ((5,), (40,))
    assert BASELINES["quantiles"](demand, 4) == ((5,), (9,), (40,))


def test_several_axes_grow_together():
    demand = demand_of({(1, 30): 1, (4, 10): 1}, ("batch", "tokens"), align=8)
    assert BASELINES["linear"](demand, 2) == ((2, 16), (4, 32))
    assert BASELINES["quantiles"](demand, 2) == ((1, 16), (4, 32))
    assert BASELINES["powers of two"](demand, 3) == ((1, 8), (2, 16), (4, 32))


@given(st.integers(1, 5000), st.integers(1, 8))
def test_powers_of_two_start_below_the_limit(limit, count):
    *smaller, largest = powers_of_two((limit,), count)
    assert largest == (limit,)
    assert len(smaller) < count
    assert all(size & (size - 1) == 0 and size < limit for (size,) in smaller)
    if smaller:  # none is close to the limit
        assert limit / 3 < smaller[-1][0] < limit * 0.75


@pytest.mark.brute_force
@given(
    st.dictionaries(st.tuples(st.integers(1, 99)), st.integers(1, 9), min_size=1),
    st.integers(1, 6),
    st.sampled_from((1, 8)),
    st.integers(0, 20),
)
def test_baselines_contain_the_limit_and_at_most_count_gears(counted, count, align, spare):
    limit = max(counted)[0] + spare
    demand = demand_of(counted, limits={"tokens": limit}, align=align)
    for choose in BASELINES.values():
        *others, largest = choose(demand, count)
        assert largest == (limit,)
        assert len(others) < count
        assert all(size % align == 0 for (size,) in others)


def plotted(axes):
    return demand_of({(size,) * axes: 40 // size for size in (1, 2, 5, 30)}, "abc"[:axes])


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("demand", "counts"),
    [
        (plotted(1), [3]),
        (plotted(2), [3]),
        (plotted(3), range(1, 4)),
        (demand_of({(7,): 3}), [1]),  # without padding
    ],
)
def test_plots_are_png_files(tmp_path, demand, counts):
    draw(tmp_path / "gears.png", demand, compare(demand, counts))
    assert (tmp_path / "gears.png").read_bytes().startswith(b"\x89PNG")


def test_plots_of_three_axes_or_without_matplotlib_are_refused(tmp_path, monkeypatch):
    for demand, found in (
        (plotted(3), "found 3 axes, expected 1 or 2"),
        (plotted(1), r"pip install 'ge-runtime\[plot\]'"),
    ):
        with pytest.raises(RuntimeFault, match=found):
            draw(tmp_path / "gears.png", demand, compare(demand, [2]))
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not list(tmp_path.iterdir())
