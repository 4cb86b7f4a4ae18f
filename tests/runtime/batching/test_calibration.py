"""Calibration: the measured sizes, the fitted model, and unreliable samples."""

import math
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.batching.calibration import (
    RELIABLE_WEIGHT,
    ROUNDS,
    UNRELIABLE_WEIGHT,
    Sample,
    calibrate,
)
from ge_runtime.batching.cost import LAUNCH_FLOOR_S, CostModel
from ge_runtime.batching.gears import ROWS, Gears
from ge_runtime.batching.partition import BatchPartitioner, RequestSizes
from ge_runtime.errors import EngineFault

TOKENS = (("tokens",),)
FREE = Gears(("tokens",), {"tokens": 512}, 64, {})


class Engine:
    """Executes with the times of `seconds`, and records the executions."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.sizes = []

    def execute(self, gear):
        self.sizes.append(gear)
        return Sample(self.seconds(gear))


def engine_of(cost):
    return Engine(lambda gear: cost.seconds(gear.rows, gear.extents))


def coefficients(cost):
    return (cost.launch_s, cost.element_s, cost.element2_s, cost.growth_s)


@pytest.mark.brute_force
@given(
    st.floats(LAUNCH_FLOOR_S, 1e-2),
    st.just(0.0) | st.floats(1e-7, 1e-3),
    st.just(0.0) | st.floats(1e-10, 1e-6),
    st.just(0.0) | st.floats(1e-7, 1e-3),
)
def test_the_model_of_an_engine_is_recovered(launch_s, element_s, element2_s, growth_s):
    true = CostModel(launch_s, element_s, element2_s, TOKENS, growth_s)
    found = calibrate(engine_of(true).execute, FREE, TOKENS, budget_s=math.inf).cost
    for rows, tokens in ((1, 1), (1, 512), (64, 1), (64, 512), (7, 100)):
        expected = true.seconds(rows, {"tokens": tokens})
        assert found.seconds(rows, {"tokens": tokens}) == pytest.approx(expected, rel=1e-5)


@given(st.floats(0.01, 10), st.floats(1e-6, 1e-2), st.floats(1e-9, 1e-4), st.floats(1e-6, 1e-2))
def test_no_execution_after_the_first_exceeds_the_budget(budget_s, element_s, element2_s, growth_s):
    cost = CostModel(1e-3, element_s, element2_s, TOKENS, growth_s)
    engine = engine_of(cost)
    calibrate(engine.execute, FREE, TOKENS, budget_s=budget_s)
    warm_up, *counted = (cost.seconds(gear.rows, gear.extents) for gear in engine.sizes)
    assert sum(counted) <= max(budget_s, warm_up)


@pytest.mark.brute_force
@given(
    st.lists(st.tuples(st.floats(0, 1), st.none() | st.floats(0, 2)), min_size=1),
    st.floats(0.1, 20),
)
def test_coefficients_are_finite_for_any_clock(times, budget_s):
    remaining = cycle(times)
    found = calibrate(lambda gear: Sample(*next(remaining)), FREE, TOKENS, budget_s=budget_s).cost
    assert all(0 <= value < math.inf for value in coefficients(found))
    assert found.launch_s >= LAUNCH_FLOOR_S


def test_sizes_take_turns():
    engine = engine_of(CostModel(1e-4, 1e-7, 0.0, TOKENS))
    calibrate(engine.execute, FREE, TOKENS, budget_s=10)
    warm_up, *counted = engine.sizes
    one_round = counted[: len(counted) // ROUNDS]
    assert warm_up == one_round[0]
    assert counted == one_round * ROUNDS
    assert all(one_round.count(gear) == 1 for gear in one_round)


def test_the_first_execution_of_a_size_counts_only_if_it_is_the_only_one():
    runs = {}

    def execute(gear):
        nth = runs[str(gear)] = runs.get(str(gear), 0) + 1
        return Sample(99.0 if len(runs) == 1 and nth == 1 else 5e-3 if nth == 1 else 1e-3)

    calibration = calibrate(execute, FREE, TOKENS, budget_s=9.0)
    assert {timing.seconds for timing in calibration.timings} == {1e-3}
    runs.clear()
    calibration = calibrate(execute, FREE, TOKENS, budget_s=0.1)
    assert {timing.seconds for timing in calibration.timings} == {1e-3, 5e-3}


def test_the_only_size_is_divided_between_launch_and_elements():
    gears = Gears(("tokens",), {"tokens": 64}, 8, {(ROWS, "tokens"): [(8, 64)]})
    calibration = calibrate(lambda gear: Sample(1.024), gears, TOKENS, budget_s=9.0)
    assert coefficients(calibration.cost) == pytest.approx((0.512, 0.001, 0.0, 0.0))
    assert not calibration.doubt


def test_a_size_that_the_engine_cannot_execute_is_left_out():
    cost = CostModel(1e-3, 1e-6, 0.0, TOKENS)

    def seconds(gear):
        if gear.extents["tokens"] < 64:
            raise EngineFault("kernel larger than input")
        return cost.seconds(gear.rows, gear.extents)

    engine = Engine(seconds)
    calibration = calibrate(engine.execute, FREE, TOKENS, budget_s=9.0)
    assert coefficients(calibration.cost) == pytest.approx(coefficients(cost), abs=1e-12)
    assert {gear.extents["tokens"] for gear, _ in calibration.failures} == {16, 32}
    assert len(calibration.failures) == 2 * 7  # each size once
    assert "; 1 row(s), tokens 16 left out: kernel larger than input" in str(calibration)


def test_an_engine_that_executes_nothing_is_a_fault():
    def execute(gear):
        raise EngineFault(f"no kernel for {gear}")

    with pytest.raises(EngineFault, match="no kernel"):
        calibrate(execute, FREE, TOKENS, budget_s=1.0)


def test_a_calibration_has_a_text_of_one_line():
    gears = Gears(("tokens",), {"tokens": 64}, 8, {(ROWS,): [(1,), (8,)], ("tokens",): [(64,)]})
    cost = CostModel(1e-3, 1e-5, 0.0, TOKENS)
    calibration = calibrate(engine_of(cost).execute, gears, TOKENS, budget_s=1.0)
    assert str(calibration) == (
        "launch 1000 us, element 1e+04 ns, squared element 0 ns, from executions of 2 size(s)"
    )
    assert calibration.evidence.weight == pytest.approx(RELIABLE_WEIGHT)


def test_a_selection_of_many_gears_is_measured():
    tables = {(ROWS,): [(n,) for n in range(1, 33)], ("tokens",): [(n,) for n in range(1, 33)]}
    gears = Gears(("tokens",), {"tokens": 32}, 32, tables)
    engine = engine_of(CostModel(1e-4, 1e-7, 1e-9, TOKENS))
    timings = calibrate(engine.execute, gears, TOKENS, budget_s=10).timings
    assert len(timings) == 48
    assert (timings[0].gear, timings[-1].gear) == (gears.every()[0], gears.every()[-1])


# -- clocks that others disturb ----------------------------------------------------------------


def noisy(cost, factors):
    """Return executions on two threads whose wall clock is scaled by `factors` in turn."""
    remaining = cycle(factors)

    def execute(gear):
        seconds = cost.seconds(gear.rows, gear.extents)
        return Sample(seconds * next(remaining), 2 * seconds)

    return execute


def test_cpu_time_counts_where_the_wall_clock_scatters_more():
    cost = CostModel(1e-3, 1e-6, 0.0, TOKENS, 1e-7)
    execute = noisy(cost, [1.0, 3.0, 1.2, 1.0, 7.0, 2.0, 1.1])
    found = calibrate(execute, FREE, TOKENS, budget_s=1.0).cost
    # Relative to the lower quartile of the wall clock.
    ratio = found.seconds(1, {"tokens": 1}) / cost.seconds(1, {"tokens": 1})
    assert 1.0 <= ratio <= 2.0
    assert coefficients(found) == pytest.approx(coefficients(cost.scaled(ratio)), rel=1e-3)


def test_the_wall_clock_counts_where_threads_do_not_share_the_work():
    """One row runs on one thread, more rows on two: CPU time does not show the difference."""
    alone, shared = CostModel(0.0, 2e-5, 0.0, TOKENS), CostModel(0.0, 1e-5, 0.0, TOKENS)

    def execute(gear):
        cpu_s = alone.seconds(gear.rows, gear.extents)
        wall = alone if gear.rows == 1 else shared
        return Sample(1e-4 + wall.seconds(gear.rows, gear.extents), 2e-4 + cpu_s)

    cost = calibrate(execute, FREE, TOKENS, budget_s=5.0).cost
    plan = BatchPartitioner(FREE, cost, 64).plan(RequestSizes([1] * 8, {"tokens": [16] * 8}))
    assert [len(execution.members) for execution in plan] == [8]


def plan_of(cost):
    sizes = {"tokens": [64, 64, 64, 65, 66, 128, 500, 501]}
    plan = BatchPartitioner(FREE, cost, 64).plan(RequestSizes([1] * 8, sizes))
    return sorted(execution.members for execution in plan)


def test_samples_that_no_model_explains_are_unreliable():
    remaining = cycle([1e-3, 40e-3, 2e-3, 9e-3, 90e-3, 1e-3, 5e-3])
    calibration = calibrate(lambda gear: Sample(next(remaining)), FREE, TOKENS, budget_s=3.0)
    assert "around any model" in calibration.doubt
    assert "; unreliable, because samples scatter by " in str(calibration)
    assert calibration.evidence.weight == pytest.approx(UNRELIABLE_WEIGHT)
    assert plan_of(calibration.cost) == [(n,) for n in range(8)]


def test_a_single_measured_size_of_several_is_unreliable():
    calibration = calibrate(lambda gear: Sample(2.0), FREE, TOKENS, budget_s=1.0)
    assert calibration.doubt == "only one size could be timed"
    assert plan_of(calibration.cost) == [(n,) for n in range(8)]


def seconds_of_plans(cost, true):
    """Return the time by `true` of batches of 32 requests planned by `cost`."""
    partitioner = BatchPartitioner(WIDTHS, cost, 32, equal=("width",))
    rng = np.random.default_rng(3)
    seconds = 0.0
    for _ in range(5):
        sizes = {"width": (32 * rng.integers(1, 9, 32)).tolist()}
        for execution in partitioner.plan(RequestSizes([1] * 32, sizes)):
            seconds += true.seconds(execution.gear.rows, execution.gear.extents)
    return seconds


WIDTHS = Gears(("width",), {"width": 640}, 32, {})


@pytest.mark.brute_force
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "true",
    [
        pytest.param(CostModel(2e-3, 60e-6, 0.0, (("width",),)), id="rows cost the same"),
        # 22 ms alone, 40 ms per row of 16.
        pytest.param(CostModel(2e-3, 85e-6, 0.0, (("width",),), 42e-6), id="rows grow dearer"),
    ],
)
def test_plans_are_good_although_each_time_is_a_sixth_off(true, seed):
    rng = np.random.default_rng(seed)

    def execute(gear):
        return Sample(true.seconds(gear.rows, gear.extents) * math.exp(rng.normal(0, 0.17)))

    found = calibrate(execute, WIDTHS, (("width",),), budget_s=1.0).cost
    assert seconds_of_plans(found, true) <= 1.05 * seconds_of_plans(true, true)
