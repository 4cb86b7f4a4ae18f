"""Events: record, wait, query, time."""

import pytest
from simulator.support.driving import Blocked, ok


def test_events_beyond_the_limit_are_refused(started):
    acl = started(events=2)
    events = [ok(acl.rt.create_event()) for _ in range(2)]
    assert acl.rt.create_event() == (0, 207007)
    ok(acl.rt.destroy_event(events[0]))
    ok(acl.rt.create_event())
    ok(acl.rt.reset_device_force(0))
    ok(acl.rt.set_device(0))
    assert [acl.rt.create_event_with_flag(8)[1] for _ in range(3)] == [0, 0, 207007]


def test_null_events_and_streams(acl):
    event = ok(acl.rt.create_event())
    for call, arguments in [
        (acl.rt.record_event, (0, 0)),
        (acl.rt.stream_wait_event, (0, 0)),
        (acl.rt.synchronize_event, (0,)),
        (acl.rt.synchronize_event_with_timeout, (0, 1)),
        (acl.rt.destroy_event, (0,)),
        (acl.rt.reset_event, (0, 0)),
    ]:
        assert call(*arguments) == 100000
    assert acl.rt.query_event(0) == (0, 100000)
    assert acl.rt.query_event_status(0) == (0, 100000)
    ok(acl.rt.destroy_event(event))


@pytest.mark.parametrize("flag", [0x1, 0x2, 0x8, 0x10, 0x20, 0x40, 0x1B])
def test_flags_of_the_documents(acl, flag):
    ok(acl.rt.create_event_with_flag(flag))
    ok(acl.rt.create_event_ex_with_flag(flag))


@pytest.mark.parametrize("flag", [0, 0x80, 0x4, 0x21, 0x41])
def test_undocumented_event_flags_are_refused(acl, flag):
    assert acl.rt.create_event_with_flag(flag) == (0, 100000)
    assert acl.rt.create_event_ex_with_flag(flag) == (0, 100000)


def test_an_ex_event_that_was_never_recorded_is_complete(acl):
    event = ok(acl.rt.create_event_ex_with_flag(0x1))
    assert acl.rt.query_event_status(event) == (1, 0)


def test_the_two_event_queries_have_opposite_values(acl):
    event = ok(acl.rt.create_event())
    blocked = Blocked()
    ok(acl.rt.record_event(event, 0))
    assert (acl.rt.query_event(event), acl.rt.query_event_status(event)) == ((1, 0), (0, 0))
    blocked.release()
    ok(acl.rt.synchronize_event(event))
    assert (acl.rt.query_event(event), acl.rt.query_event_status(event)) == ((0, 0), (1, 0))


def test_a_second_record_moves_the_event(acl):
    event = ok(acl.rt.create_event())
    ok(acl.rt.record_event(event, 0))
    ok(acl.rt.synchronize_event(event))
    blocked = Blocked()
    ok(acl.rt.record_event(event, 0))
    assert acl.rt.query_event_status(event) == (0, 0)
    blocked.release()
    ok(acl.rt.synchronize_event(event))


def test_a_wait_is_for_the_record_before_it(acl):
    first, second = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    event = ok(acl.rt.create_event())
    ok(acl.rt.record_event(event, first))
    ok(acl.rt.stream_wait_event(second, event))
    blocked = Blocked(first)
    ok(acl.rt.record_event(event, first))
    ok(acl.rt.synchronize_stream(second))  # would hang if the wait were for the second record
    blocked.release()
    ok(acl.rt.synchronize_stream(first))


@pytest.mark.parametrize(
    "make", [lambda rt: rt.create_event(), lambda rt: rt.create_event_with_flag(0x8)]
)
def test_time_between_two_events(acl, make):
    start, end = ok(make(acl.rt)), ok(make(acl.rt))
    ok(acl.rt.record_event(start, 0))
    blocked = Blocked()
    ok(acl.rt.record_event(end, 0))
    assert acl.rt.event_elapsed_time(start, end) == (0.0, 107006)
    blocked.release()
    ok(acl.rt.synchronize_event(end))
    elapsed_ms = ok(acl.rt.event_elapsed_time(start, end))
    assert isinstance(elapsed_ms, float)
    assert elapsed_ms > 0
    assert ok(acl.rt.event_get_timestamp(start)) <= ok(acl.rt.event_get_timestamp(end))


@pytest.mark.parametrize("seed", [None, 7])
def test_after_a_wait_for_a_stream_its_events_are_complete(started, seed):
    acl = started(seed=seed)
    stream = ok(acl.rt.create_stream())
    events = [ok(acl.rt.create_event()) for _ in range(3)]
    for event in events:
        ok(acl.rt.record_event(event, stream))
    ok(acl.rt.synchronize_stream(stream))
    assert acl.rt.query_event_status(events[-1]) == (1, 0)
    ok(acl.rt.event_elapsed_time(events[0], events[-1]))


@pytest.mark.parametrize("seed", [None, 7])
def test_an_event_outlives_the_stream_of_its_record(started, seed):
    acl = started(seed=seed)
    stream, event = ok(acl.rt.create_stream()), ok(acl.rt.create_event())
    ok(acl.rt.record_event(event, stream))
    ok(acl.rt.destroy_stream(stream))
    assert acl.rt.synchronize_event(event) == 0


def test_an_event_is_destroyed_while_its_record_is_queued(acl):
    event = ok(acl.rt.create_event())
    blocked = Blocked()
    ok(acl.rt.record_event(event, 0))
    ok(acl.rt.destroy_event(event))  # does not wait, and no stream waits for it
    blocked.release()
    ok(acl.rt.synchronize_stream(0))


@pytest.mark.parametrize("flag", [0x1, 0x9])
def test_an_event_with_flags_is_reset_and_recorded_again(acl, flag):
    event = ok(acl.rt.create_event_with_flag(flag))
    ok(acl.rt.record_event(event, 0))
    ok(acl.rt.reset_event(event, 0))
    ok(acl.rt.record_event(event, 0))
    ok(acl.rt.synchronize_event(event))
