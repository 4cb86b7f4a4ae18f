"""The oldest strategy: one request of a sequence at a time, batched with those of others."""

from server.support.sequences import Stage

from reference_server.core.errors import Code


def oldest(settings="", **more):
    return Stage(f"oldest {{ max_candidate_sequences: 3 {settings} }}", **more)


def test_requests_of_one_sequence_follow_one_another():
    stage = oldest()
    for name in ("a", "b", "c"):
        stage.ask(name, 1, "start" if name == "a" else "")
    assert stage.ids == [["a"]]
    stage.drain()
    assert stage.ids == [["a"], ["b"], ["c"]]


def test_the_next_request_joins_the_batch_that_waits():
    stage = oldest()
    stage.ask("a", 1, "start")
    stage.ask("a2", 1)
    stage.ask("b", 2, "start")
    stage.ask("b2", 2)
    stage.ask("c", 3, "start")
    stage.ask("d", 4, "start")
    stage.ask("b3", 2, "end")
    stage.drain()
    assert stage.ids == [["a"], ["b", "c", "a2"], ["b2"], ["b3"], ["d"]]


def test_there_are_as_many_candidates_as_rows_unless_said():
    stage = Stage("oldest { }")
    for key in range(6):
        stage.ask(f"{key}", key + 1, "start")
    stage.drain()
    assert stage.ids == [["0"], ["1", "2", "3"]]
    assert len(stage.work) == 2


def test_a_preferred_size_goes_at_once_and_fewer_wait():
    stage = oldest("preferred_batch_size: 2 max_queue_delay_microseconds: 600000")
    stage.ask("a", 1, "start")
    stage.wait(0.599)
    assert stage.ids == []
    stage.wait(0.001)
    stage.drain()
    stage.ask("b", 2, "start")
    stage.ask("c", 3, "start")
    assert stage.ids == [["a"], ["b", "c"]]


def test_a_delay_that_is_over_asks_for_nothing_while_the_instance_is_busy():
    stage = oldest("max_queue_delay_microseconds: 1000")
    stage.ask("a", 1, "start")
    stage.wait(0.001)
    stage.ask("b", 2, "start")
    stage.wait(3600)
    stage.drain()
    assert stage.ids == [["a"], ["b"]]


def test_a_cancelled_sequence_leaves_the_rest_alone():
    stage = oldest()
    stage.ask("x", 1, "start")
    stage.ask("a", 2, "start")
    stage.ask("b", 2).cancellation.cancel()
    stage.ask("c", 3, "start")
    stage.drain()
    assert stage.ids == [["x"], ["a", "c"]]
    assert {name: error.code for name, error in stage.refused.items()} == {"b": Code.CANCELLED}


def test_closing_runs_all_that_has_come():
    stage = oldest("max_queue_delay_microseconds: 600000")
    for key in range(5):
        stage.ask(f"{key}", key + 1, "start")
    stage.work.flush()
    stage.look()
    stage.drain()
    assert [ids for ids in stage.ids if ids] == [["0", "1", "2"], ["3", "4"]]
    assert len(stage.work) == 0
