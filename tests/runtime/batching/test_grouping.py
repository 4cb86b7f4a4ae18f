from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.batching.partition import greedy_runs

request_batches = st.integers(1, 20).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(1, 2 * capacity)), st.just(capacity))
)


@given(request_batches)
def test_every_request_is_in_one_run_in_order(batch):
    rows, capacity = batch
    assert [index for run in greedy_runs(rows, capacity) for index in run] == list(range(len(rows)))


@given(request_batches)
def test_no_run_exceeds_the_capacity_or_could_take_the_next_request(batch):
    rows, capacity = batch
    cut = greedy_runs(rows, capacity)
    for run in cut:
        assert len(run) == 1 or 1 < sum(rows[index] for index in run) <= capacity
    for run in cut[:-1]:
        assert sum(rows[index] for index in run) + rows[run.stop] > capacity


def test_an_empty_batch_has_no_runs():
    assert greedy_runs([], 4) == []
