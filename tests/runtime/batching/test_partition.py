"""Plans compared with brute force over all partitions and all plans of the family."""

import math
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from runtime.batching.gear_sets import LIMIT, ROW_LIMIT, costs, gear_sets

from ge_runtime.batching.cost import CostModel
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.partition import (
    BatchPartitioner,
    Execution,
    InOrderPartitioner,
    RequestSizes,
    greedy_runs,
)

TOKENS = ("tokens",)
SAME = pytest.approx


@dataclass(frozen=True)
class RequestBatch:
    """Requests with everything that their plan depends on."""

    gears: Gears
    cost: CostModel
    capacity: int
    rows: list[int]
    sizes: dict[str, list[int]]
    equal: tuple[str, ...] = ()

    @property
    def n(self):
        return len(self.rows)

    def plan(self, **deadlines):
        return BatchPartitioner(self.gears, self.cost, self.capacity, self.equal).plan(
            RequestSizes(self.rows, self.sizes, **deadlines)
        )

    def size(self, members):
        extents = {axis: max(own[m] for m in members) for axis, own in self.sizes.items()}
        return sum(self.rows[m] for m in members), extents

    def held(self, members):
        if any(len({self.sizes[axis][m] for m in members}) > 1 for axis in self.equal):
            return False
        rows, extents = self.size(members)
        return rows <= self.capacity and self.gears.fit(rows, extents) is not None

    def seconds(self, members):
        """Return the time of one execution of the members; inf if they may not share one."""
        if len(members) > 1 and not self.held(members):
            return math.inf
        rows, extents = self.size(members)
        gear = self.gears.fit(rows, extents) or Gear(rows, extents)
        return self.cost.seconds(gear.rows, gear.extents)

    def total(self, partition):
        return sum(map(self.seconds, partition))


def request_batches(axes, terms, *, most_rows=3, equal=()):
    request = st.tuples(st.integers(1, most_rows), *(st.integers(1, LIMIT) for _ in axes))

    def build(gears, cost, capacity, requests):
        counts, *columns = (list(column) for column in zip(*requests, strict=True))
        sizes = dict(zip(axes, columns, strict=True))
        return RequestBatch(gears, cost, capacity, counts, sizes, equal)

    return st.builds(
        build,
        gear_sets(axes, equal),
        costs(*terms),
        st.integers(1, ROW_LIMIT),
        st.lists(request, min_size=1, max_size=6) | st.lists(request, min_size=6, max_size=6),
    )


# Rows and axes with all kinds of gears.
any_batches = st.one_of(
    request_batches((), ()),
    request_batches(TOKENS, (TOKENS, ())),
    request_batches(("h", "w"), (("h", "w"),)),
    request_batches(("h", "w", "t"), (("h", "w"), ("t",))),
)
one_row_batches = st.one_of(
    request_batches(TOKENS, (TOKENS,), most_rows=1),
    request_batches(TOKENS, (TOKENS, ("tokens", "tokens")), most_rows=1),
)

HW = ("h", "w")
parted_batches = st.one_of(
    request_batches(HW, (HW,), equal=HW),
    request_batches(("h", "w", "t"), (HW, ("t",)), equal=("w",)),
)
"""Problems with axes that are padded and axes that are not."""


def set_partitions(items):
    """Yield all partitions of a list into sets, as lists of lists."""
    if not items:
        yield []
        return
    first, *others = items
    for count in range(len(others) + 1):
        for friends in combinations(others, count):
            rest = [item for item in others if item not in friends]
            for partition in set_partitions(rest):
                yield [[first, *friends], *partition]


def run_partitions(items):
    """Yield all cuts of a list into runs of neighbours."""
    inner = range(1, len(items))
    for count in range(len(items)):
        for cuts in combinations(inner, count):
            yield [items[a:b] for a, b in pairwise((0, *cuts, len(items)))]


def seconds_of(plan):
    return sum(execution.seconds for execution in plan)


@pytest.mark.brute_force
@given(any_batches)
def test_every_request_is_in_one_execution_that_holds_it(batch):
    plan = batch.plan()
    assert sorted(m for execution in plan for m in execution.members) == list(range(batch.n))
    for execution in plan:
        rows, extents = batch.size(execution.members)
        assert list(execution.members) == sorted(execution.members)
        assert execution.gear.rows >= rows
        assert all(execution.gear.extents[axis] >= extents[axis] for axis in batch.sizes)
        assert execution.seconds == SAME(batch.seconds(execution.members))
        assert execution.seconds == batch.cost.seconds(execution.gear.rows, execution.gear.extents)


@given(any_batches)
def test_a_request_alone_has_the_plan_of_a_batch_of_one(batch):
    own = BatchPartitioner(batch.gears, batch.cost, batch.capacity, batch.equal)
    for member, rows in enumerate(batch.rows):
        sizes = {axis: sizes[member] for axis, sizes in batch.sizes.items()}
        (expected,) = own.plan(RequestSizes([rows], {axis: [size] for axis, size in sizes.items()}))
        assert own.execution_alone(0, rows, sizes) == expected
        own.use(batch.cost.scaled(2.0))
        assert own.execution_alone(0, rows, sizes).seconds == SAME(2 * expected.seconds)
        own.use(batch.cost)


@pytest.mark.brute_force
@given(one_row_batches)
def test_one_axis_and_one_row_each_gives_the_optimum_over_all_sets(batch):
    optimum = min(map(batch.total, set_partitions(list(range(batch.n)))))
    assert seconds_of(batch.plan()) == SAME(optimum, rel=1e-9)


@pytest.mark.brute_force
@given(request_batches(HW, (HW,), most_rows=1, equal=("w",)))
def test_groups_of_equal_sizes_are_optimal_over_all_such_sets(batch):
    optimum = min(map(batch.total, set_partitions(list(range(batch.n)))))
    assert seconds_of(batch.plan()) == SAME(optimum, rel=1e-9)


@pytest.mark.brute_force
@given(parted_batches)
def test_no_execution_has_requests_of_two_sizes_along_an_axis_that_is_not_padded(batch):
    plan = batch.plan(deadlines=[5.0 + member for member in range(batch.n)])
    assert sorted(m for execution in plan for m in execution.members) == list(range(batch.n))
    for execution in plan:
        rows, extents = batch.size(execution.members)
        for axis in batch.equal:
            assert {batch.sizes[axis][m] for m in execution.members} == {
                execution.gear.extents[axis]
            }
        assert batch.held(execution.members) or len(execution.members) == 1
        assert execution.gear == batch.gears.fit(rows, extents) or Gear(rows, extents)


@pytest.mark.brute_force
@given(any_batches | parted_batches, st.data())
def test_the_plan_of_requests_of_several_kinds_is_the_plans_of_each_kind(batch, data):
    kinds = data.draw(st.lists(st.sampled_from("ab"), min_size=batch.n, max_size=batch.n))
    plan = batch.plan(kinds=kinds)
    assert sorted(m for execution in plan for m in execution.members) == list(range(batch.n))
    apart = 0.0
    for kind in {*kinds}:
        places = [place for place, own in enumerate(kinds) if own == kind]
        alone = replace(
            batch,
            rows=[batch.rows[place] for place in places],
            sizes={axis: [own[place] for place in places] for axis, own in batch.sizes.items()},
        )
        apart += seconds_of(alone.plan())
    assert all(len({kinds[m] for m in execution.members}) == 1 for execution in plan)
    assert seconds_of(plan) == SAME(apart, rel=1e-9)


def orders_of(batch, members):
    """Return the documented orders: by size; with several axes by work, and by each axis."""

    def own(member):
        sizes = [sizes[member] for sizes in reversed(batch.sizes.values())]
        return [*sizes, batch.rows[member]]

    if len(batch.sizes) <= 1:
        return [sorted(members, key=own)]
    alone = {m: batch.gears.fit(*batch.size([m])).extents for m in members}
    by_work = sorted(members, key=lambda m: [batch.cost.elements(alone[m]), *own(m)])
    by_axis = [sorted(members, key=lambda m: [alone[m][a], *own(m)]) for a in batch.sizes]
    return [by_work, *by_axis]


def images(launch_s, heights, widths):
    """Return a batch of four one-row requests in which an element of the image costs a second."""
    gears = Gears(("h", "w"), {"h": LIMIT, "w": LIMIT}, ROW_LIMIT, {})
    cost = CostModel(launch_s, 1.0, 0.0, (("h", "w"),))
    return RequestBatch(gears, cost, ROW_LIMIT, [1] * 4, {"h": heights, "w": widths})


@pytest.mark.brute_force
@given(any_batches)
@example(images(20.0, [8, 7, 7, 2], [4, 8, 3, 4]))  # found by work only
@example(images(30.0, [7, 3, 3, 5], [3, 8, 3, 4]))  # by height only
@example(images(20.0, [5, 4, 5, 7], [6, 3, 2, 2]))  # by width only
def test_any_batch_is_the_optimum_over_the_runs_of_its_orders(batch):
    alone = [m for m in range(batch.n) if not batch.held([m])]
    shared = [m for m in range(batch.n) if batch.held([m])]
    optimum = sum(batch.seconds([m]) for m in alone)
    if shared:
        orders = orders_of(batch, shared)
        optimum += min(batch.total(cut) for order in orders for cut in run_partitions(order))
    assert seconds_of(batch.plan()) == SAME(optimum, rel=1e-9)


def moved(batch, places):
    rows = [batch.rows[place] for place in places]
    sizes = {axis: [own[place] for place in places] for axis, own in batch.sizes.items()}
    return replace(batch, rows=rows, sizes=sizes)


@pytest.mark.brute_force
@given(any_batches, st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_change_the_total(batch, random):
    shuffled = moved(batch, random.sample(range(batch.n), batch.n))
    assert seconds_of(shuffled.plan()) == SAME(seconds_of(batch.plan()), rel=1e-9)


@pytest.mark.brute_force
@given(any_batches)
def test_without_deadlines_the_longest_execution_runs_first(batch):
    times = [execution.seconds for execution in batch.plan()]
    assert times == sorted(times, reverse=True)


@pytest.mark.brute_force
@given(any_batches)
def test_deadlines_that_the_optimum_meets_change_only_the_order(batch):
    late = [1000.0 - member for member in range(batch.n)]
    plan = batch.plan(now=1.0, deadlines=late)
    assert seconds_of(plan) == SAME(seconds_of(batch.plan()), rel=1e-9)
    earliest = [min(late[m] for m in execution.members) for execution in plan]
    assert earliest == sorted(earliest)


def outcome(batch, executions, now, due):
    """Return the number of missed deadlines, and the end of the last execution."""
    missed = 0
    for members in executions:
        now += batch.seconds(members)
        missed += sum(due[m] < now for m in members)
    return missed, now


def earliest_first(batch, partition, due):
    return sorted(partition, key=lambda run: (min(due[m] for m in run), -batch.seconds(run)))


def only_optimum(batch, members):
    """Return the only best partition into sets; examples with several are skipped."""
    ranked = sorted(set_partitions(members), key=batch.total)
    totals = [batch.total(partition) for partition in ranked[:2]]
    assume(len(totals) < 2 or totals[0] < totals[1] * (1 - 1e-9))
    return ranked[0]


def family(batch, now, due):
    """Yield every plan of the documented family."""
    alone = [now + batch.seconds([m]) for m in range(batch.n)]
    due = [d if end <= d else math.inf for d, end in zip(due, alone, strict=True)]
    order = sorted(range(batch.n), key=lambda m: due[m])
    urgent = batch.n - due.count(math.inf)
    for k in {0, 1, 2, 4, 8, urgent} & set(range(urgent + 1)):
        parts = [only_optimum(batch, part) for part in (order[:k], order[k:])]
        yield [run for part in parts for run in earliest_first(batch, part, due)]


@pytest.mark.brute_force
@given(one_row_batches, st.lists(st.just(1.0) | st.floats(0, 1), min_size=6, max_size=6))
def test_missed_deadlines_are_the_fewest_of_the_family_and_then_the_time(batch, shares):
    assume(len(set(batch.sizes["tokens"])) == batch.n)
    everyone = only_optimum(batch, list(range(batch.n)))
    now, total = 50.0, batch.total(everyone)
    # Up to the time of the optimum, or none.
    due = [now + share * total if share < 1 else math.inf for share in shares][: batch.n]
    unhurried = outcome(batch, earliest_first(batch, everyone, due), now, due)
    if unhurried[0]:
        best = min(outcome(batch, executions, now, due) for executions in family(batch, now, due))
    else:
        best = unhurried
    plan = batch.plan(now=now, deadlines=due)
    missed, end = outcome(batch, [execution.members for execution in plan], now, due)
    assert (missed, end) == (best[0], SAME(best[1], rel=1e-9))


def partitioner(launch_s=0.0, element_s=0.001, tables=None, capacity=64):
    gears = Gears(TOKENS, {"tokens": 512}, 64, tables or {})
    return BatchPartitioner(gears, CostModel(launch_s, element_s, 0.0, (TOKENS,)), capacity)


def members_of(plan):
    return [execution.members for execution in plan]


def test_packed_requests_share_executions_of_equal_sizes_in_order_of_arrival():
    axes = ("tokens", "width")
    gears = Gears(axes, {"tokens": 512, "width": 8}, 3, {}, equal=("width",))
    cost = CostModel(1.0, 0.001, 0.0, (axes,))
    packed = InOrderPartitioner(BatchPartitioner(gears, cost, 3, ("width",)), gears, ("width",))
    sizes = {"tokens": [5, 400, 7, 9, 2, 1], "width": [4, 8, 4, 8, 4, 4]}
    assert members_of(packed.plan(RequestSizes([1] * 6, sizes))) == [(0, 2, 4), (1, 3), (5,)]


def test_an_answer_exactly_at_the_deadline_meets_it():
    # Together both end at 3.0 s, separately at 2.0 and 4.0 s.
    whole = BatchPartitioner(
        Gears(TOKENS, {"tokens": 8}, 8, {}), CostModel(1.0, 1.0, 0.0, (TOKENS,)), 8
    )
    plan = whole.plan(RequestSizes([1, 1], {"tokens": [1, 1]}, deadlines=[3.0, math.inf]))
    assert members_of(plan) == [(0, 1)]


def test_execution_of_accepts_any_members():
    batch = [1, 2, 3], {"tokens": [9, 20, 70]}
    tables = {TOKENS: [(16,), (64,)]}
    execution = partitioner(tables=tables).execution_of([1, 0], RequestSizes(*batch))
    assert execution == Execution((0, 1), Gear(3, {"tokens": 64}), SAME(0.192))
    beyond = partitioner(tables=tables).execution_of([2, 0], RequestSizes(*batch))
    assert beyond == Execution((0, 2), Gear(4, {"tokens": 70}), SAME(0.28))


@given(any_batches | parted_batches)
def test_a_pair_may_share_an_execution_and_loses_least(batch):
    partitioner = BatchPartitioner(batch.gears, batch.cost, batch.capacity, batch.equal)
    requests = RequestSizes(batch.rows, batch.sizes)
    alone = [partitioner.execution_of([member], requests) for member in range(batch.n)]
    plan = partitioner.with_a_pair(alone, requests)
    assert sorted(member for own in plan for member in own.members) == list(range(batch.n))
    pairs = [own for own in plan if len(own.members) > 1]
    possible = [pair for pair in combinations(range(batch.n), 2) if batch.held(pair)]
    assert len(pairs) <= 1
    assert not pairs or pairs[0].members in possible
    if len(batch.sizes) <= 1 and len(set(batch.rows)) == 1 and possible and not batch.gears.fixed:
        assert pairs


@pytest.mark.brute_force
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, LIMIT)), min_size=1, max_size=6),
    costs(TOKENS),
)
def test_a_graph_without_padding_is_planned_by_its_tokens(requests, cost):
    """The plan is the best of all runs of the requests in order of their size."""
    gears = Gears(TOKENS, {"tokens": LIMIT}, ROW_LIMIT, {})
    rows, tokens = map(list, zip(*requests, strict=True))
    own = BatchPartitioner(gears, cost, ROW_LIMIT, unpadded=True)
    sizes = RequestSizes(rows, {"tokens": tokens})

    def seconds(members):
        total, valid = 0, 0
        for member in members:
            total += rows[member]
            valid += rows[member] * tokens[member]
        if len(members) > 1 and total > ROW_LIMIT:
            return math.inf
        return cost.seconds(total, {"tokens": max(tokens[m] for m in members)}, valid)

    plan = own.plan(sizes)
    for execution in plan:
        assert execution.seconds == SAME(seconds(execution.members))
        assert execution.valid == sum(rows[m] * tokens[m] for m in execution.members)
    order = sorted(range(len(rows)), key=lambda member: (tokens[member], rows[member]))
    best = min(sum(map(seconds, cut)) for cut in run_partitions(order))
    assert seconds_of(plan) == SAME(best)


rows_and_capacity = st.integers(1, 20).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(1, 2 * capacity)), st.just(capacity))
)


@given(rows_and_capacity)
def test_every_request_is_in_one_run_in_order(batch):
    rows, capacity = batch
    assert [index for run in greedy_runs(rows, capacity) for index in run] == list(range(len(rows)))


@given(rows_and_capacity)
def test_no_run_exceeds_the_capacity_or_could_take_the_next_request(batch):
    rows, capacity = batch
    cut = greedy_runs(rows, capacity)
    for run in cut:
        assert len(run) == 1 or 1 < sum(rows[index] for index in run) <= capacity
    for run in cut[:-1]:
        assert sum(rows[index] for index in run) + rows[run.stop] > capacity


def test_an_empty_batch_has_no_runs():
    assert greedy_runs([], 4) == []
