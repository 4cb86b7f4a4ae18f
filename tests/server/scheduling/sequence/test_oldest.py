"""The oldest strategy: one request of a sequence at a time, in batches with other sequences."""

from server.support.sequences import Stage

from reference_server.core.errors import Code


def oldest(settings="", **more):
    return Stage(f"oldest {{ max_candidate_sequences: 3 {settings} }}", **more)


def test_requests_of_one_sequence_run_in_order():
    stage = oldest()
    for name in ("a", "b", "c"):
        stage.ask(name, 1, "start" if name == "a" else "")
    assert stage.ids == [["a"]]
    stage.drain()
    assert stage.ids == [["a"], ["b"], ["c"]]


def test_next_request_joins_the_waiting_batch():
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


def test_default_candidates_are_the_maximum_batch_size():
    stage = Stage("oldest { }")
    for key in range(6):
        stage.ask(f"{key}", key + 1, "start")
    stage.drain()
    assert stage.ids == [["0"], ["1", "2", "3"]]
    assert len(stage.work) == 2


def test_preferred_size_runs_immediately():
    stage = oldest("preferred_batch_size: 2 max_queue_delay_microseconds: 600000")
    stage.ask("a", 1, "start")
    stage.wait(0.599)
    assert stage.ids == []
    stage.wait(0.001)
    stage.drain()
    stage.ask("b", 2, "start")
    stage.ask("c", 3, "start")
    assert stage.ids == [["a"], ["b", "c"]]


def test_expired_delay_has_no_deadline_while_busy():
    stage = oldest("max_queue_delay_microseconds: 1000")
    stage.ask("a", 1, "start")
    stage.wait(0.001)
    stage.ask("b", 2, "start")
    stage.wait(3600)
    stage.drain()
    assert stage.ids == [["a"], ["b"]]


def test_cancelled_sequence_does_not_affect_others():
    stage = oldest()
    stage.ask("x", 1, "start")
    stage.ask("a", 2, "start")
    stage.ask("b", 2).cancellation.cancel()
    stage.ask("c", 3, "start")
    stage.drain()
    assert stage.ids == [["x"], ["a", "c"]]
    assert {name: error.code for name, error in stage.refused.items()} == {"b": Code.CANCELLED}


def test_flush_runs_all_requests():
    stage = oldest("max_queue_delay_microseconds: 600000")
    for key in range(5):
        stage.ask(f"{key}", key + 1, "start")
    stage.work.flush()
    stage.look()
    stage.drain()
    assert [ids for ids in stage.ids if ids] == [["0", "1", "2"], ["3", "4"]]
    assert len(stage.work) == 0
