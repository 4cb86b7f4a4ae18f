import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.batching.gear_sets import costs

from ge_runtime.batching.cost import LAUNCH_FLOOR_S, CostModel, calibrate
from ge_runtime.batching.gears import ROWS, Gear, Gears
from ge_runtime.errors import EngineFault

TERMS = [(), ((),), (("a",),), (("a",), ("a", "b")), (("a", "b"), ("b",), ())]
extent = st.integers(1, 4096)


@pytest.mark.parametrize(
    ("terms", "elements"),
    [((), 1), (((),), 1), ((("a",),), 3), ((("a",), ("a", "b")), 18), ((("a", "b"), ()), 16)],
)
def test_elements_add_up_the_products_of_the_terms(terms, elements):
    assert CostModel(0.0, 0.0, 0.0, terms).elements({"a": 3, "b": 5}) == elements


def test_seconds_are_the_launch_and_each_row_by_elements_and_their_square():
    cost = CostModel(100.0, 10.0, 1.0, (("a",),))
    assert cost.seconds(4, {"a": 3}) == 100 + 4 * (10 * 3 + 1 * 9)


@pytest.mark.brute_force
@given(
    st.sampled_from(TERMS).flatmap(lambda terms: costs(*terms)),
    st.lists(st.tuples(st.integers(1, 64), extent, extent), min_size=1),
)
def test_arrays_cost_the_same_as_their_elements(cost, sizes):
    rows, a, b = np.array(sizes).T
    many = cost.seconds_many(rows[:, None], {"a": a[:, None], "b": b})
    many = np.broadcast_to(many, (len(sizes), len(sizes)))
    for i, j in np.ndindex(many.shape):
        extents = {"a": sizes[i][1], "b": sizes[j][2]}
        assert many[i, j] == pytest.approx(cost.seconds(sizes[i][0], extents), rel=1e-12)


TOKENS = (("tokens",),)
FREE = Gears(("tokens",), {"tokens": 512}, 64, {})


class Engine:
    """Executions that take what `seconds` says, and a record of them."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.sizes = []

    def time_launch(self, gear):
        self.sizes.append(gear)
        return self.seconds(gear)


def engine_of(cost):
    return Engine(lambda gear: cost.seconds(gear.rows, gear.extents))


def coefficients(cost):
    return (cost.launch_s, cost.element_s, cost.element2_s)


@pytest.mark.brute_force
@given(
    st.floats(LAUNCH_FLOOR_S, 1e-2),
    st.just(0.0) | st.floats(1e-7, 1e-3),
    st.just(0.0) | st.floats(1e-10, 1e-6),
)
def test_an_engine_that_follows_the_model_is_found_out(launch_s, element_s, element2_s):
    true = CostModel(launch_s, element_s, element2_s, TOKENS)
    found = calibrate(engine_of(true).time_launch, FREE, TOKENS, budget_s=math.inf).cost
    for rows, tokens in ((1, 1), (1, 512), (64, 1), (64, 512), (7, 100)):
        expected = true.seconds(rows, {"tokens": tokens})
        assert found.seconds(rows, {"tokens": tokens}) == pytest.approx(expected, rel=1e-6)


@given(st.floats(0.01, 10), st.floats(1e-6, 1e-2), st.floats(1e-9, 1e-4))
def test_no_execution_after_the_first_exceeds_the_budget(budget_s, element_s, element2_s):
    cost = CostModel(1e-3, element_s, element2_s, TOKENS)
    engine = engine_of(cost)
    calibrate(engine.time_launch, FREE, TOKENS, budget_s=budget_s)
    warm_up, *counted = (cost.seconds(gear.rows, gear.extents) for gear in engine.sizes)
    assert sum(counted) <= max(budget_s, warm_up)


@pytest.mark.brute_force
@given(st.lists(st.floats(0, 1), min_size=60, max_size=60), st.floats(0.1, 20))
def test_whatever_the_clock_says_coefficients_are_finite_and_a_launch_costs(times, budget_s):
    left = iter(times)
    found = calibrate(lambda gear: next(left), FREE, TOKENS, budget_s=budget_s).cost
    assert all(0 <= value < math.inf for value in coefficients(found))
    assert found.launch_s >= LAUNCH_FLOOR_S


def test_a_large_batch_that_takes_seconds_is_not_executed():
    cost = CostModel(1e-3, 85e-6, 55e-9, TOKENS)  # an encoder of 6 layers on 2 cores
    engine = engine_of(cost)
    calibration = calibrate(engine.time_launch, FREE, TOKENS, budget_s=0.5)
    assert max(cost.seconds(gear.rows, gear.extents) for gear in engine.sizes) < 0.25
    assert coefficients(calibration.cost) == pytest.approx(coefficients(cost))


def test_few_and_many_rows_short_and_long_are_timed_when_there_is_time():
    engine = engine_of(CostModel(1e-4, 1e-7, 0.0, TOKENS))
    calibrate(engine.time_launch, FREE, TOKENS, budget_s=10)
    corners = [(1, 16), (64, 16), (1, 512), (64, 512)]
    assert all(Gear(rows, {"tokens": tokens}) in engine.sizes for rows, tokens in corners)


def test_the_faster_of_two_runs_counts_and_the_first_of_all_does_not():
    runs = {}

    def time_launch(gear):
        nth = runs[str(gear)] = runs.get(str(gear), 0) + 1
        first_of_all = len(runs) == 1 and nth == 1
        return 99.0 if first_of_all else 1e-3 * (2 if nth == 1 else 1)

    calibration = calibrate(time_launch, FREE, TOKENS, budget_s=1.0)
    assert {timing.seconds for timing in calibration.timings} == {1e-3}


def test_declared_gears_are_what_is_timed():
    table = {(ROWS, "tokens"): [(2, 512), (8, 64), (32, 16)]}
    gears = Gears(("tokens",), {"tokens": 512}, 32, table)
    engine = engine_of(CostModel(1e-4, 1e-6, 1e-9, TOKENS))
    calibration = calibrate(engine.time_launch, gears, TOKENS, budget_s=1.0)
    timed = [timing.gear for timing in calibration.timings]
    assert sorted(gear.rows for gear in timed) == [2, 8, 32]
    assert all(gear in gears.every() for gear in engine.sizes)
    assert coefficients(calibration.cost) == pytest.approx((1e-4, 1e-6, 1e-9))


def test_free_rows_are_timed_at_declared_extents():
    gears = Gears(("tokens",), {"tokens": 512}, 64, {("tokens",): [(40,), (512,)]})
    engine = engine_of(CostModel(1e-4, 1e-7, 0.0, TOKENS))
    timings = calibrate(engine.time_launch, gears, TOKENS, budget_s=10).timings
    timed = [(timing.gear.rows, timing.gear.extents["tokens"]) for timing in timings]
    assert sorted(timed) == [(rows, tokens) for rows in (1, 4, 16, 64) for tokens in (40, 512)]


def test_of_very_many_gears_a_spread_is_timed():
    tables = {(ROWS,): [(n,) for n in range(1, 33)], ("tokens",): [(n,) for n in range(1, 33)]}
    gears = Gears(("tokens",), {"tokens": 32}, 32, tables)
    engine = engine_of(CostModel(1e-4, 1e-7, 1e-9, TOKENS))
    timings = calibrate(engine.time_launch, gears, TOKENS, budget_s=10).timings
    assert len(timings) == 24
    assert (timings[0].gear, timings[-1].gear) == (gears.every()[0], gears.every()[-1])


def test_a_model_without_axes_has_a_cost_per_row():
    engine = Engine(lambda gear: 1e-3 + gear.rows * 1e-4)
    found = calibrate(engine.time_launch, Gears((), {}, 64, {}), (), budget_s=1.0).cost
    assert found.seconds(10, {}) == pytest.approx(2e-3)


def test_one_size_is_divided_between_launch_and_elements():
    gears = Gears(("tokens",), {"tokens": 64}, 8, {(ROWS, "tokens"): [(8, 64)]})
    found = calibrate(lambda gear: 1.024, gears, TOKENS, budget_s=9.0).cost
    assert coefficients(found) == pytest.approx((0.512, 0.001, 0.0))


def test_a_clock_that_stands_still_gives_the_floor():
    found = calibrate(lambda gear: 0.0, FREE, TOKENS, budget_s=1.0).cost
    assert found.launch_s == LAUNCH_FLOOR_S
    assert found.seconds(64, {"tokens": 512}) < 2 * LAUNCH_FLOOR_S


def test_a_size_that_the_engine_cannot_execute_is_left_out():
    cost = CostModel(1e-3, 1e-6, 0.0, TOKENS)

    def seconds(gear):
        if gear.extents["tokens"] < 64:
            raise EngineFault("kernel larger than input")
        return cost.seconds(gear.rows, gear.extents)

    engine = Engine(seconds)
    calibration = calibrate(engine.time_launch, FREE, TOKENS, budget_s=9.0)
    assert coefficients(calibration.cost) == pytest.approx(coefficients(cost))
    assert {gear.extents["tokens"] for gear, _ in calibration.failures} == {16, 32}
    assert "; 1 row(s), tokens 16 left out: kernel larger than input" in str(calibration)


def test_an_engine_that_executes_nothing_is_a_fault():
    def time_launch(gear):
        raise EngineFault(f"no kernel for {gear}")

    with pytest.raises(EngineFault, match="no kernel"):
        calibrate(time_launch, FREE, TOKENS, budget_s=1.0)


def test_a_calibration_is_told_in_one_line():
    gears = Gears(("tokens",), {"tokens": 64}, 8, {(ROWS,): [(1,), (8,)], ("tokens",): [(64,)]})
    cost = CostModel(1e-3, 1e-5, 0.0, TOKENS)
    calibration = calibrate(engine_of(cost).time_launch, gears, TOKENS, budget_s=1.0)
    assert str(calibration) == (
        "launch 1000 us, element 1e+04 ns, squared element 0 ns, from executions of 2 size(s)"
    )
