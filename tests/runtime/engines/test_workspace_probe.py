import pytest

from ge_runtime.batching.gears import Gear
from ge_runtime.engines.gearing import measured
from ge_runtime.errors import EngineFault, OutOfMemory
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.memory.plan import Need, Plan

MIB = 2**20


class ArenaOf:
    """Executions take `factor` of what they are guessed to take."""

    def __init__(self, factor):
        self._factor = factor

    def measure(self, execute, about_bytes):
        execute()
        return None if self._factor is None else int(about_bytes * self._factor)


def plan_of(*gears, per_row):
    """Each row of the i-th gear takes per_row[i] bytes."""
    needs = [
        Need({"batch": gear.rows}, {}, {}, Intermediates((Lifetime("x", gear.rows * row, 0, 1),)))
        for gear, row in zip(gears, per_row, strict=True)
    ]
    return Plan.of(needs, weights_bytes=0, answer_slots=1)


def test_few_rows_stand_for_all():
    gears = [Gear(64, {"tokens": 512}), Gear(64, {"tokens": 32})]
    plan = plan_of(*gears, per_row=(8 * MIB, MIB))
    executed = []
    found = measured(ArenaOf(1.5), executed.append, gears, plan)
    assert executed == [Gear(2, {"tokens": 512}), Gear(16, {"tokens": 32})]
    assert [gear.taken_bytes for gear in found.gears] == [64 * 12 * MIB, 64 * 1.5 * MIB]
    assert found.workspace_bytes == 64 * 12 * MIB
    assert plan.workspace_bytes == 64 * 8 * MIB


@pytest.mark.parametrize("fault", [EngineFault("8 rows are fixed"), OutOfMemory("too little")])
def test_a_graph_that_takes_all_rows_or_none_is_measured_with_all(fault):
    gear = Gear(8, {})

    def execute(gear):
        if gear.rows != 8:
            raise fault

    found = measured(ArenaOf(2), execute, [gear], plan_of(gear, per_row=[4 * MIB]))
    assert found.workspace_bytes == 64 * MIB


def test_where_all_rows_would_take_long_the_plan_stays_that_of_the_graph():
    gear = Gear(64, {})

    def execute(gear):
        raise EngineFault("64 rows are fixed")

    plan = plan_of(gear, per_row=[8 * MIB])
    assert measured(ArenaOf(2), execute, [gear], plan) == plan


def test_without_a_measurement_the_plan_is_that_of_the_graph():
    gear = Gear(4, {})
    plan = plan_of(gear, per_row=[MIB])
    assert measured(ArenaOf(None), lambda gear: None, [gear], plan) == plan


def test_of_many_gears_those_that_need_most_are_measured():
    gears = [Gear(1, {"n": size}) for size in range(1, 41)]
    plan = plan_of(*gears, per_row=[MIB * gear.extents["n"] for gear in gears])
    executed = []
    found = measured(ArenaOf(1), executed.append, gears, plan)
    assert [gear.extents["n"] for gear in executed] == list(range(25, 41))
    assert sum(gear.measured_bytes is not None for gear in found.gears) == 16
