"""Plans of reproducible models, for request batches of all kinds."""

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from runtime.batching.gear_sets import costs

from ge_runtime.batching.gears import ROWS, Gears
from ge_runtime.batching.own_gears import OwnGearPartitioner
from ge_runtime.batching.partition import BatchPartitioner, RequestSizes

AXES = ("height", "width")
LIMIT, ROW_LIMIT = 9, 8


@dataclass(frozen=True)
class Asked:
    gears: Gears
    partitioner: OwnGearPartitioner
    rows: list[int]
    sizes: dict[str, list[int]]
    deadlines: list[float]
    kinds: list[str]

    def requests(self, members=None):
        members = range(len(self.rows)) if members is None else members
        return RequestSizes(
            [self.rows[member] for member in members],
            {axis: [own[member] for member in members] for axis, own in self.sizes.items()},
            [self.deadlines[member] for member in members],
            kinds=[self.kinds[member] for member in members],
        )

    def own_gear(self, member):
        return self.gears.fit(
            self.rows[member], {axis: own[member] for axis, own in self.sizes.items()}
        )


@st.composite
def tables(draw):
    """Draw one number of rows for all sizes, or one for each of them."""
    sizes = st.integers(1, LIMIT)
    rows = st.integers(1, ROW_LIMIT)
    points = draw(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=4, unique=True))
    if draw(st.booleans()):
        return {(ROWS,): [(draw(rows),)], AXES: points}
    return {(ROWS, *AXES): [(draw(rows), *point) for point in points]}


@st.composite
def asked(draw):
    gears = Gears(AXES, dict.fromkeys(AXES, LIMIT), ROW_LIMIT, draw(tables()))
    cost = draw(costs(AXES))
    count = draw(st.integers(0, 8))

    def each(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    return Asked(
        gears,
        OwnGearPartitioner(BatchPartitioner(gears, cost, ROW_LIMIT), gears),
        each(st.integers(1, ROW_LIMIT)),
        {axis: each(st.integers(1, LIMIT)) for axis in AXES},
        each(st.sampled_from([1.0, 2.0, math.inf])),
        each(st.sampled_from("ab")),
    )


@given(asked())
def test_every_request_is_executed_once_at_the_size_that_it_has_alone(asked):
    plan = asked.partitioner.plan(asked.requests())
    members = [member for execution in plan for member in execution.members]
    assert sorted(members) == list(range(len(asked.rows)))
    for execution in plan:
        for member in execution.members:
            (alone,) = asked.partitioner.plan(asked.requests([member]))
            assert execution.gear == alone.gear
            sizes = {axis: own[member] for axis, own in asked.sizes.items()}
            assert asked.partitioner.execution_alone(0, asked.rows[member], sizes) == alone


@given(asked())
def test_requests_of_one_execution_have_one_gear_and_kind_and_fit(asked):
    for execution in asked.partitioner.plan(asked.requests()):
        own = {str(asked.own_gear(member)) for member in execution.members}
        assert len(own) == 1
        assert len({asked.kinds[member] for member in execution.members}) == 1
        if own == {"None"}:
            assert len(execution.members) == 1
        assert sum(asked.rows[member] for member in execution.members) <= execution.gear.rows


@given(asked(), st.data())
def test_members_of_an_execution_keep_its_size(asked, data):
    for execution in asked.partitioner.plan(asked.requests()):
        part = data.draw(st.lists(st.sampled_from(execution.members), min_size=1, unique=True))
        assert asked.partitioner.execution_of(part, asked.requests()).gear == execution.gear


@given(asked())
def test_no_two_consecutive_executions_of_one_gear_and_kind_fit_together(asked):
    plan = asked.partitioner.plan(asked.requests())
    if all(rows == 1 for rows in asked.rows):
        groups = {}
        for execution in plan:
            first = execution.members[0]
            if asked.own_gear(first) is not None:
                key = (str(execution.gear), asked.kinds[first])
                groups.setdefault(key, []).append(execution)
        for group in groups.values():
            count = sum(len(execution.members) for execution in group)
            assert len(group) == math.ceil(count / group[0].gear.rows)


@given(asked())
def test_the_earliest_deadlines_are_first(asked):
    plan = asked.partitioner.plan(asked.requests())
    earliest = [min(asked.deadlines[member] for member in own.members) for own in plan]
    assert earliest == sorted(earliest)
