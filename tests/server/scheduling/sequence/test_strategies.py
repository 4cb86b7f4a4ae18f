"""The strategies direct and oldest: slots, null requests, batches, delays and the backlog."""

import pytest
from server.support.sequences import Stage

from reference_server.core.errors import Code


def test_sequence_keeps_its_slot():
    stage = Stage()
    for key in (1, 2, 3):
        stage.ask(f"{key}", key, "start")
        stage.drain()
    stage.ask("2b", 2)
    assert stage.ids == [["1"], ["", "2"], ["", "", "3"], ["", "2b"]]


def test_batch_has_one_request_of_each_sequence():
    stage = Stage()
    stage.ask("a", 1, "start")
    for name, key, flags in [("a2", 1, ""), ("a3", 1, ""), ("b", 2, "start"), ("c", 3, "start")]:
        stage.ask(name, key, flags)
    stage.drain()
    assert stage.ids == [["a"], ["a2", "b", "c"], ["a3"]]


def test_empty_slots_below_the_highest_get_null_requests():
    stage = Stage()
    for key in (1, 2, 3, 4):
        stage.ask(f"{key}", key, "start")
    stage.drain()
    stage.ask("3b", 3)
    stage.ask("2b", 2)
    stage.ask("4b", 4)
    stage.drain()
    assert stage.ids[-2:] == [["", "", "3b"], ["", "2b", "", "4b"]]


def test_null_request_has_zeros_and_no_id():
    stage = Stage()
    for key in (1, 2):
        stage.ask(f"{key}", key, "start", shape=3)
    stage.drain()
    stage.ask("2b", 2, shape=3)
    null, _ = stage.finish()
    assert (null.batch_size, null.id, null.correlation_id, null.flags) == (0, "", 0, 0)
    assert null.inputs["X"].array().tolist() == [[0.0, 0.0, 0.0]]


def test_ended_sequence_frees_its_slot_for_the_backlog():
    stage = Stage(max_batch_size=1)
    for key in (1, 2, 3):
        stage.ask(f"{key}", key, "start")
    stage.ask("3b", 3, "end")
    stage.ask("2b", 2, "end")
    stage.ask("1b", 1, "end")
    stage.drain()
    assert stage.ids == [["1"], ["1b"], ["2"], ["2b"], ["3"], ["3b"]]


def test_ended_id_may_restart_immediately_in_another_slot():
    stage = Stage()
    stage.ask("x", 50, "start")
    for name in ("a", "b"):
        stage.ask(f"{name}1", 1, "start")
        stage.ask(f"{name}2", 1, "end")
    stage.drain()
    assert stage.ids == [["x"], ["", "a1", "b1"], ["", "a2", "b2"]]


def test_slots_of_all_instances_are_used_before_the_backlog():
    stage = Stage(max_batch_size=0, more="instance_group { count: 2 kind: KIND_CPU }")
    for key in (1, 2, 3):
        stage.ask(f"{key}", key, "start")
    assert stage.batches == [(0, ["1"]), (1, ["2"])]
    stage.ask("2b", 2, "end")
    stage.finish(1)
    stage.finish(1)
    assert stage.batches[2:] == [(1, ["2b"]), (1, ["3"])]


def test_lower_slots_are_used_first_across_instances():
    stage = Stage(max_batch_size=2, more="instance_group { count: 2 kind: KIND_CPU }")
    for key in range(4):
        stage.ask(f"{key}", key + 1, "start")
        stage.drain()
    assert stage.batches == [(0, ["0"]), (1, ["1"]), (0, ["", "2"]), (1, ["", "3"])]


def test_different_shapes_run_in_separate_batches():
    stage = Stage()
    stage.ask("x", 50, "start")
    stage.ask("a", 1, "start", shape=2)
    stage.ask("b", 2, "start", shape=3)
    stage.ask("c", 3, "start", shape=2)
    stage.drain()
    assert stage.ids == [["x"], ["", "a", "", "c"], ["", "", "b"]]


DELAYED = "direct { max_queue_delay_microseconds: 600000 minimum_slot_utilization: 0.5 }"


def test_delay_applies_below_the_slot_utilization():
    stage = Stage(DELAYED)
    stage.ask("a", 1, "start")
    stage.wait(0.599)
    assert stage.ids == []
    stage.wait(0.001)
    assert stage.ids == [["a"]]


def test_sufficient_slot_utilization_ends_the_delay():
    stage = Stage(DELAYED)
    stage.ask("a", 1, "start")
    stage.wait(0.2)
    stage.ask("b", 2, "start")
    assert stage.ids == [["a", "b"]]


def test_flush_ends_the_delay_and_serves_the_backlog():
    stage = Stage(DELAYED.replace("0.5", "1"), max_batch_size=2)
    for key in (1, 2, 3, 4):
        stage.ask(f"{key}", key, "start")
    stage.ask("5", 5, "start")
    stage.work.flush()
    stage.drain()
    assert stage.ids == [["1", "2"], ["3", "4"], ["5"]]
    assert len(stage.work) == 0


def test_cancelled_request_ends_its_sequence():
    stage = Stage()
    stage.ask("x", 50, "start")
    cancelled = stage.ask("a", 1, "start")
    stage.ask("b", 1)
    cancelled.cancellation.cancel()
    stage.finish()
    assert {name: error.code for name, error in stage.refused.items()} == {
        "a": Code.CANCELLED,
        "b": Code.CANCELLED,
    }
    with pytest.raises(Exception, match="must specify the START flag"):
        stage.ask("c", 1)
    stage.ask("d", 2, "start")
    assert stage.ids == [["x"], ["", "d"]]


def oldest(settings="", **more):
    return Stage(f"oldest {{ max_candidate_sequences: 3 {settings} }}", **more)


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
