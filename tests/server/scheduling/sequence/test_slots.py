"""Slots of sequences: refused requests, expiry, generated ids, and changes of instances."""

import pytest
from server.support.sequences import Stage

from reference_server.core.errors import Code, ServerError
from reference_server.core.request import SequenceFlag

MUST_START = (
    "inference request for sequence {} to model 'm' must specify the START flag on the first "
    "request of the sequence"
)
STRATEGIES = ["direct { }", "oldest { }"]


def refusal(stage, *arguments, **fields):
    """Return the error of a refused request; check that it has no effect."""
    before = len(stage.work), list(stage.batches)
    with pytest.raises(ServerError) as caught:
        stage.ask(*arguments, **fields)
    assert caught.value.code is Code.INVALID_ARG
    assert (len(stage.work), stage.batches) == before
    return caught.value.message


@pytest.mark.parametrize("key", [0, ""])
def test_correlation_id_is_required(key):
    assert refusal(Stage(), "a", key, "start") == (
        "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    )


def test_batch_size_must_be_one():
    assert refusal(Stage(), "a", 0, batch_size=2) == (
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence "
        "batcher"
    )


@pytest.mark.parametrize("key", [7, "seven"])
def test_first_request_must_have_the_start_flag(key):
    assert refusal(Stage(), "a", key) == MUST_START.format(key)


def test_request_after_the_end_is_refused():
    stage = Stage()
    stage.ask("a", 1, "start")
    stage.ask("b", 1, "end")
    assert refusal(stage, "c", 1) == MUST_START.format(1)


@pytest.mark.brute_force
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sequence_stays_while_it_is_not_idle(strategy):
    stage = Stage(f"max_sequence_idle_microseconds: 2000000 {strategy}")
    stage.ask("a", 1, "start")
    stage.drain()
    for _ in range(3600):
        stage.wait(1.999999)
        stage.ask("b", 1)
        stage.drain()
    stage.wait(2)
    assert refusal(stage, "c", 1) == MUST_START.format(1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_idle_sequence_frees_its_slot(strategy):
    stage = Stage(f"max_sequence_idle_microseconds: 2000000 {strategy}", max_batch_size=1)
    stage.ask("a", 1, "start")
    stage.drain()
    stage.wait(1)
    stage.ask("b", 2, "start")
    stage.wait(0.999)
    assert stage.ids == [["a"]]
    stage.wait(0.001)
    assert stage.ids == [["a"], ["b"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_requests_of_an_idle_sequence_are_executed(strategy):
    stage = Stage(strategy, max_batch_size=1)
    stage.ask("a", 1, "start")
    stage.ask("a2", 1)
    stage.ask("b", 2, "start")
    stage.wait(1.5)
    assert refusal(stage, "a3", 1) == MUST_START.format(1)
    stage.drain()
    assert stage.ids == [["a"], ["a2"], ["b"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_idle_time_is_checked_when_a_sequence_leaves_the_backlog(strategy):
    stage = Stage(strategy, max_batch_size=1)
    stage.ask("a", 1, "start")
    stage.ask("b", 2, "start")
    stage.ask("c", 3, "start")
    stage.wait(10)
    stage.ask("b2", 2)
    stage.drain()
    assert stage.ids == [["a"], ["b"], ["b2"]]
    stage.wait(1)
    stage.drain()
    assert stage.ids[3:] == [["c"]]
    assert refusal(stage, "c2", 3) == MUST_START.format(3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_timeout_ends_a_sequence_in_the_backlog(strategy):
    stage = Stage(strategy, max_batch_size=1)
    stage.ask("a", 1, "start", timeout_us=1)
    stage.ask("b", 2, "start")
    stage.ask("b2", 2, timeout_us=150_000)
    stage.ask("b3", 2)
    stage.ask("c", 3, "start")
    stage.wait(0.149)
    assert not stage.refused
    stage.wait(0.001)
    assert {name: str(error) for name, error in stage.refused.items()} == dict.fromkeys(
        ["b", "b2", "b3"], "timeout of the corresponding sequence has been expired"
    )
    assert {error.code for error in stage.refused.values()} == {Code.UNAVAILABLE}
    assert refusal(stage, "b4", 2) == MUST_START.format(2)
    stage.ask("a2", 1, "end")
    stage.drain()
    assert stage.ids == [["a"], ["a2"], ["c"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_cancelled_request_ends_a_sequence_in_the_backlog(strategy):
    stage = Stage(strategy, max_batch_size=1)
    stage.ask("a", 1, "start")
    stage.ask("b", 2, "start")
    stage.ask("b2", 2).cancellation.cancel()
    stage.look()
    assert {error.code for error in stage.refused.values()} == {Code.CANCELLED}
    assert sorted(stage.refused) == ["b", "b2"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_times_of_ended_sequences_are_removed(strategy):
    stage = Stage(strategy, max_batch_size=1)
    for key in range(1, 500):
        stage.ask(f"{key}", key, "both", timeout_us=3_600_000_000)
        if key > 3:
            stage.finish()
    slots = stage.work.slots
    assert slots._backlog
    assert max(len(times._heap) for times in (slots._late, slots._idle)) < 100


ITERATIVE = [f"iterative_sequence: true {strategy}" for strategy in STRATEGIES]


@pytest.mark.parametrize("settings", ITERATIVE)
def test_iterative_requests_get_an_id_and_one_start_flag(settings):
    stage = Stage(settings)
    first = stage.ask("a", 0)
    assert (first.correlation_id, first.flags) == (1, SequenceFlag.START)
    stage.finish(again=["a"])
    assert (first.correlation_id, first.flags) == (1, SequenceFlag.NONE)
    stage.finish()
    second = stage.ask("b", "", "end")
    assert (second.correlation_id, second.flags) == (2, SequenceFlag.START)
    assert stage.ids == [["a"], ["a"], ["b"]]


@pytest.mark.parametrize("settings", ITERATIVE)
def test_iterative_request_is_its_own_sequence(settings):
    stage = Stage(settings)
    stage.ask("a", 9, "start")
    stage.finish()
    assert refusal(stage, "b", 9) == MUST_START.format(9)


@pytest.mark.parametrize("settings", ITERATIVE)
def test_single_request_sequence_can_be_rescheduled(settings):
    stage = Stage(settings)
    request = stage.ask("a", 9, "both")
    stage.finish(again=["a"])
    assert stage.ids == [["a"], ["a"]]
    assert request.flags == SequenceFlag.END


def test_iterations_of_several_requests_share_batches():
    stage = Stage(ITERATIVE[0])
    stage.ask("p", 0)
    for name in "qrz":
        stage.ask(name, 0)
    stage.finish(again=["p"])
    stage.finish(again=["q", "r"])
    stage.finish(again=["q"])
    stage.finish()
    assert stage.ids == [["p"], ["p", "q", "r", "z"], ["", "q", "r"], ["", "q"]]
    assert not stage.busy


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 1 }"])
def test_added_instances_take_sequences_from_the_backlog(strategy):
    stage = Stage(strategy, max_batch_size=1)
    stage.instances = 0  # the test takes the batches itself
    stage.ask("a", 1, "start")
    stage.ask("b", 2, "start")
    stage.work.resize([1], [], stage.now)
    assert stage.work.take(1, stage.now)[0].id == "b"
    assert stage.work.take(0, stage.now)[0].id == "a"


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 1 }"])
def test_leaving_instances_keep_their_sequences_only(strategy):
    stage = Stage(strategy, max_batch_size=1)
    stage.instances = 0  # the test takes the batches itself
    stage.work.resize([1], [], stage.now)
    stage.ask("a", 1, "start")
    stage.ask("b", 2, "start")
    stage.work.resize([], [1], stage.now)
    assert stage.work.keeps(1)
    stage.ask("c", 2, "end")
    stage.ask("d", 3, "start")
    for id in "bc":
        batch = stage.work.take(1, stage.now)
        assert batch[0].id == id
        stage.work.finished(1, batch, [], stage.now)
    assert not stage.work.keeps(1)
    assert stage.work.take(1, stage.now) is None
