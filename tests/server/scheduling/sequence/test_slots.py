"""What is refused, what expires, and what the server names itself."""

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
    """The error of a request that is refused at once; nothing has changed by it."""
    before = len(stage.work), list(stage.batches)
    with pytest.raises(ServerError) as caught:
        stage.ask(*arguments, **fields)
    assert caught.value.code is Code.INVALID_ARG
    assert (len(stage.work), stage.batches) == before
    return caught.value.message


@pytest.mark.parametrize("key", [0, ""])
def test_a_request_needs_an_id(key):
    assert refusal(Stage(), "a", key, "start") == (
        "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    )


def test_a_request_is_one_row():
    assert refusal(Stage(), "a", 0, batch_size=2) == (
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence "
        "batcher"
    )


@pytest.mark.parametrize("key", [7, "seven"])
def test_the_first_request_starts(key):
    assert refusal(Stage(), "a", key) == MUST_START.format(key)


def test_nothing_follows_the_end():
    stage = Stage()
    stage.ask("a", 1, "start")
    stage.ask("b", 1, "end")
    assert refusal(stage, "c", 1) == MUST_START.format(1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_lives_as_long_as_it_is_not_idle(strategy):
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
def test_an_idle_sequence_makes_room_for_who_waits(strategy):
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
def test_what_came_in_time_is_executed_though_the_sequence_is_idle_by_then(strategy):
    stage = Stage(strategy, max_batch_size=1)
    stage.ask("a", 1, "start")
    stage.ask("a2", 1)
    stage.ask("b", 2, "start")
    stage.wait(1.5)
    assert refusal(stage, "a3", 1) == MUST_START.format(1)
    stage.drain()
    assert stage.ids == [["a"], ["a2"], ["b"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nobody_is_idle_in_the_backlog_but_may_be_when_let_in(strategy):
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
def test_a_timeout_ends_a_whole_sequence_in_the_backlog(strategy):
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
def test_a_cancelled_request_ends_its_sequence_in_the_backlog(strategy):
    stage = Stage(strategy, max_batch_size=1)
    stage.ask("a", 1, "start")
    stage.ask("b", 2, "start")
    stage.ask("b2", 2).cancellation.cancel()
    stage.look()
    assert {error.code for error in stage.refused.values()} == {Code.CANCELLED}
    assert sorted(stage.refused) == ["b", "b2"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_times_of_sequences_that_are_gone_are_forgotten(strategy):
    stage = Stage(strategy, max_batch_size=1)
    for key in range(1, 500):
        stage.ask(f"{key}", key, "both", timeout_us=3_600_000_000)
        if key > 3:
            stage.finish()
    slots = stage.work._slots
    assert slots._backlog
    assert max(len(times._heap) for times in (slots._late, slots._idle)) < 100


ITERATIVE = [f"iterative_sequence: true {strategy}" for strategy in STRATEGIES]


@pytest.mark.parametrize("settings", ITERATIVE)
def test_the_server_names_iterative_requests_and_starts_them_once(settings):
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
def test_an_iterative_request_is_a_sequence_of_its_own(settings):
    stage = Stage(settings)
    stage.ask("a", 9, "start")
    stage.finish()
    assert refusal(stage, "b", 9) == MUST_START.format(9)


@pytest.mark.parametrize("settings", ITERATIVE)
def test_a_whole_sequence_in_one_request_is_given_again_as_well(settings):
    stage = Stage(settings)
    request = stage.ask("a", 9, "both")
    stage.finish(again=["a"])
    assert stage.ids == [["a"], ["a"]]
    assert request.flags == SequenceFlag.END


@pytest.mark.parametrize("settings", ITERATIVE)
def test_iterations_that_take_long_do_not_make_a_sequence_idle(settings):
    stage = Stage(settings, max_batch_size=1)
    stage.ask("a", 0)
    stage.ask("b", 0)
    for _ in range(5):
        stage.wait(100)
        stage.finish(again=["a"])
    stage.drain()
    assert stage.ids == [["a"]] * 6 + [["b"]]


def test_iterations_of_several_requests_meet_in_their_slots():
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
def test_instances_that_come_take_sequences_from_the_backlog(strategy):
    stage = Stage(strategy, max_batch_size=1)
    stage.instances = 0  # the test takes the batches itself
    stage.ask("a", 1, "start")
    stage.ask("b", 2, "start")
    stage.work.resize([1], [], stage.now)
    assert stage.work.take(1, stage.now)[0].id == "b"
    assert stage.work.take(0, stage.now)[0].id == "a"


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 1 }"])
def test_instances_that_leave_keep_their_sequences_and_get_no_others(strategy):
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
