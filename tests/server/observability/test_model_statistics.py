"""The counters of a model version."""

import pytest
from server.support.clock import ManualClock
from server.support.requests import a_request

from reference_server.core.request import Execution, Timing
from reference_server.core.telemetry import Duration
from reference_server.observability.model_statistics import ModelStatistics


@pytest.fixture
def clock():
    return ManualClock(now_ns=1000, wall_ms=1_795_190_437_433)


@pytest.fixture
def statistics(clock):
    return ModelStatistics("m", 1, clock)


def arrived(rows=1, *, received_ns=100, queued_ns=200):
    return a_request(batch_size=rows, received_ns=received_ns, queued_ns=queued_ns)


#: Started at 300; inputs until 320, the model until 720, outputs until 1000.
EXECUTION = Execution((), input_end_ns=320, output_start_ns=720)


def nothing_but(snapshot, **moved):
    """Assert that only the given durations of a snapshot changed, to these values."""
    for name in (
        *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"),
        *("cache_hit", "cache_miss"),
    ):
        assert getattr(snapshot, name) == Duration(*moved.get(name, (0, 0))), name


def test_an_execution_is_counted_with_its_rows_and_the_time_of_day(statistics):
    statistics.executed([arrived(3), arrived(2)], EXECUTION, 300)
    snapshot = statistics.snapshot()
    assert (snapshot.inference_count, snapshot.execution_count) == (5, 1)
    assert snapshot.last_inference_ms == 1_795_190_437_433


def test_each_request_of_a_batch_has_the_durations_of_the_whole_batch(statistics):
    statistics.executed([arrived(3), arrived(2, received_ns=150, queued_ns=250)], EXECUTION, 300)
    nothing_but(
        statistics.snapshot(),
        success=(2, 900 + 850),
        queue=(2, 100 + 50),
        compute_input=(2, 2 * 20),
        compute_infer=(2, 2 * 400),
        compute_output=(2, 2 * 280),
    )


def test_batches_are_counted_by_their_rows_in_ascending_order(statistics):
    statistics.executed([arrived(3), arrived(2)], EXECUTION, 300)
    statistics.executed([arrived(1)], EXECUTION, 310)
    statistics.executed([arrived(5)], EXECUTION, 300)
    batches = statistics.snapshot().batches
    assert list(batches) == [1, 5]
    assert batches[5].compute_input == Duration(2, 2 * 20)
    assert batches[5].compute_infer == Duration(2, 2 * 400)
    assert batches[5].compute_output == Duration(2, 2 * 280)
    assert batches[1].compute_input == Duration(1, 10)


def test_a_failed_batch_counts_as_an_execution_and_not_as_inference(statistics):
    statistics.failed([arrived(3), arrived(2)], 300)
    snapshot = statistics.snapshot()
    assert (snapshot.inference_count, snapshot.execution_count) == (0, 1)
    assert snapshot.last_inference_ms == 1_795_190_437_433
    nothing_but(snapshot, fail=(2, 2 * 900))
    assert snapshot.batches[5].compute_infer.count == 1


def test_an_ensemble_counts_the_sums_of_its_steps(statistics):
    steps = [Timing(1, 10, 100), Timing(2, 20, 200)]
    timing = statistics.composed(arrived(4), 250, steps)
    assert timing == Timing(3, 30, 300)
    snapshot = statistics.snapshot()
    assert (snapshot.inference_count, snapshot.execution_count) == (4, 1)
    nothing_but(
        snapshot,
        success=(1, 900),
        queue=(1, 50),
        compute_input=(1, 3),
        compute_infer=(1, 30),
        compute_output=(1, 300),
    )
    assert snapshot.batches[4].compute_infer == Duration(1, 30)


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_late_step_changes_only_the_durations(statistics, comes_first):
    def add():
        statistics.took_longer(arrived(4), Timing(1, 20, 300))

    if comes_first:
        add()
    statistics.composed(arrived(4), 250, [Timing(1, 2, 3)])
    if not comes_first:
        add()
    snapshot = statistics.snapshot()
    for counted in (snapshot, snapshot.batches[4]):
        assert counted.compute_input == Duration(1, 2)
        assert counted.compute_infer == Duration(1, 22)
        assert counted.compute_output == Duration(1, 303)
    assert snapshot.execution_count == 1


def test_a_snapshot_does_not_change(statistics):
    statistics.executed([arrived()], EXECUTION, 300)
    before = statistics.snapshot()
    statistics.executed([arrived()], EXECUTION, 300)
    assert before.success.count == 1
    assert before.batches[1].compute_infer.count == 1


def test_a_cache_hit_is_a_success_without_an_execution(statistics):
    statistics.cache_hit(arrived(4), 300, 450)
    snapshot = statistics.snapshot()
    nothing_but(snapshot, success=(1, 900), queue=(1, 100), cache_hit=(1, 150))
    assert (snapshot.last_inference_ms, snapshot.inference_count, snapshot.batches) == (0, 0, {})


def test_the_duration_of_a_cache_miss_also_counts_for_successes(statistics):
    statistics.executed([arrived()], EXECUTION, 300)
    statistics.cache_missed(70)
    snapshot = statistics.snapshot()
    assert snapshot.cache_miss == Duration(1, 70)
    assert snapshot.success == Duration(1, 970)


def test_placeholders_count_only_for_the_size_of_a_batch(statistics):
    statistics.executed([arrived(0), arrived(1), arrived(0)], EXECUTION, 300)
    snapshot = statistics.snapshot()
    once = {"compute_input": (1, 20), "compute_infer": (1, 400), "compute_output": (1, 280)}
    nothing_but(snapshot, success=(1, 900), queue=(1, 100), **once)
    assert (snapshot.inference_count, snapshot.execution_count) == (1, 1)
    assert list(snapshot.batches) == [3]
