"""Streams: order, waits, failures, and concurrent uses of memory."""

import numpy as np
import pytest
from runtime.support.threads import Beside
from simulator.support.driving import D2H, H2D, Blocked, content, fail, fill, ok
from simulator.support.models import Loaded, static_om

import ascend_simulator
from ascend_simulator import current
from ascend_simulator.streams.tasks import Task


def note(stream, notes, word):
    current().stream(stream, "test").submit(Task(lambda: notes.append(word), (), (), word))


def in_context(acl, function, *arguments):
    """Run on another thread, in the test's context."""
    context = ok(acl.rt.get_context())

    def run():
        ok(acl.rt.set_context(context))
        return function(*arguments)

    return Beside(run)


def test_tasks_run_in_order_and_asynchronously(acl):
    stream = ok(acl.rt.create_stream())
    notes = []
    blocked = Blocked(stream)
    for word in "abc":
        note(stream, notes, word)
    assert notes == []
    waiting = in_context(acl, acl.rt.synchronize_stream, stream)
    blocked.release()
    assert waiting.result() == 0
    assert notes == ["a", "b", "c"]


def test_one_stream_goes_on_while_another_is_blocked(acl):
    stream, other = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    blocked, notes = Blocked(stream), []
    note(other, notes, "other")
    assert acl.rt.synchronize_stream(other) == 0
    assert notes == ["other"]
    blocked.release()
    assert acl.rt.synchronize_stream(stream) == 0


def test_stream_zero_is_the_contexts_default_stream(acl):
    notes = []
    note(0, notes, "default")
    assert acl.rt.synchronize_stream(0) == 0
    assert notes == ["default"]
    assert acl.rt.destroy_stream(0) == 100000


def test_streams_beyond_the_limit_are_refused(machine):
    acl = machine(streams=4)  # one of them is the context's
    ok(acl.init())
    ok(acl.rt.set_device(0))
    streams = [ok(acl.rt.create_stream()) for _ in range(3)]
    assert acl.rt.create_stream() == (0, 207008)
    assert acl.rt.create_context(0) == (0, 207008)
    ok(acl.rt.destroy_stream(streams[0]))
    ok(acl.rt.create_stream())
    ok(acl.rt.reset_device_force(0))
    ok(acl.rt.set_device(0))
    assert [acl.rt.create_stream()[1] for _ in range(4)] == [0, 0, 0, 207008]


def test_each_device_has_streams_of_its_own(machine):
    acl = machine(streams=2, devices=2)
    ok(acl.init())
    for device in range(2):
        ok(acl.rt.set_device(device))
        ok(acl.rt.create_stream())
        assert acl.rt.create_stream() == (0, 207008)


def test_loaded_models_use_streams_of_the_same_limit(started, tmp_path):
    acl = started(streams=5, model_streams=2)
    path = static_om(tmp_path)
    models = [ok(acl.mdl.load_from_file(path)) for _ in range(2)]
    assert acl.rt.create_stream() == (0, 207008)
    assert acl.mdl.load_from_file(path) == (0, 207008)
    ok(acl.mdl.unload(models[0]))
    ok(acl.rt.create_stream())
    assert acl.mdl.load_from_file(path) == (
        0,
        207008,
    )  # one stream is left, and the model needs two
    ok(acl.rt.create_stream())


def test_a_load_that_fails_takes_no_streams(started, tmp_path):
    acl = started(streams=2)
    path = static_om(tmp_path)
    work, weight = ok(acl.mdl.query_size(path))
    ptr = ok(acl.rt.malloc(work, 0))
    assert acl.mdl.load_from_file_with_mem(path, ptr, work - 1, 0, weight) == (0, 145000)
    ok(acl.mdl.load_from_file(path))


def test_a_full_queue_refuses_tasks_until_one_is_done(started):
    acl = started(queue=2)
    stream, event = ok(acl.rt.create_stream()), ok(acl.rt.create_event())
    ptr = ok(acl.rt.malloc(64, 0))
    ok(acl.rt.record_event(event, 0))
    blocked = Blocked(stream)
    ok(acl.rt.memset_async(ptr, 64, 1, 64, stream))
    assert acl.rt.memset_async(ptr, 64, 2, 64, stream) == 507002
    assert acl.rt.stream_wait_event(stream, event) == 507002
    blocked.release()
    ok(acl.rt.synchronize_stream(stream))
    assert content(ptr, 64) == bytes([1]) * 64  # the refused task had no effect
    ok(acl.rt.memset_async(ptr, 64, 2, 64, stream))
    ok(acl.rt.synchronize_stream(stream))
    assert content(ptr, 64) == bytes([2]) * 64


@pytest.mark.parametrize(("priority", "flag"), [(0, 0), (7, 7)])
def test_stream_options_of_the_documents(acl, priority, flag):
    ok(acl.rt.destroy_stream(ok(acl.rt.create_stream_with_config(priority, flag))))


@pytest.mark.parametrize(("priority", "flag"), [(8, 0), (0, 8), (-1, 0)])
def test_undocumented_stream_options_are_refused(acl, priority, flag):
    assert acl.rt.create_stream_with_config(priority, flag) == (0, 107000)


@pytest.mark.parametrize("timeout_ms", [0, -2, -1000])
def test_a_timeout_is_positive_or_minus_one(acl, timeout_ms):
    event = ok(acl.rt.create_event())
    ok(acl.rt.record_event(event, 0))
    assert acl.rt.synchronize_stream_with_timeout(0, timeout_ms) == 107000
    assert acl.rt.synchronize_event_with_timeout(event, timeout_ms) == 107000


def test_waiting_ends_at_its_timeout_and_can_begin_again(acl):
    blocked = Blocked()
    event = ok(acl.rt.create_event())
    ok(acl.rt.record_event(event, 0))
    assert acl.rt.synchronize_stream_with_timeout(0, 1) == 507046
    assert acl.rt.synchronize_event_with_timeout(event, 1) == 507047
    blocked.release()
    assert acl.rt.synchronize_event_with_timeout(event, -1) == 0
    assert acl.rt.synchronize_stream_with_timeout(0, -1) == 0
    assert acl.rt.synchronize_stream_with_timeout(0, 10_000) == 0


def test_synchronize_device_waits_for_all_streams_of_its_contexts(acl):
    notes = []
    for _ in range(2):
        note(ok(acl.rt.create_stream()), notes, "stream")
    note(0, notes, "default")
    ok(acl.rt.create_context(0))
    note(0, notes, "default of another context")
    assert acl.rt.synchronize_device() == 0
    assert len(notes) == 4


def test_threads_with_streams_of_their_own_do_not_disturb_each_other(acl):
    rounds = 50

    def work(byte):
        stream, event = ok(acl.rt.create_stream()), ok(acl.rt.create_event())
        device, pinned = ok(acl.rt.malloc(256, 0)), ok(acl.rt.malloc_host(512))
        for number in range(rounds):
            fill(pinned, bytes([byte, number]) * 128)
            ok(acl.rt.memcpy_async(device, 256, pinned, 256, H2D, stream))
            ok(acl.rt.memcpy_async(pinned + 256, 256, device, 256, D2H, stream))
            ok(acl.rt.record_event(event, stream))
            ok(acl.rt.synchronize_event(event))
            assert content(pinned + 256, 256) == bytes([byte, number]) * 128
        ok(acl.rt.free(device))
        ok(acl.rt.free_host(pinned))
        ok(acl.rt.destroy_event(event))
        ok(acl.rt.destroy_stream(stream))

    workers = [in_context(acl, work, byte) for byte in range(4)]
    for worker in workers:
        worker.result()
    report = ascend_simulator.report()
    assert (report.live, report.broken) == ([], {})
    assert report.calls["rt.memcpy_async"] == 4 * 2 * rounds
    assert sum(report.copied_bytes.values()) == 4 * 2 * rounds * 256


# -- failure --------------------------------------------------------------------------------------


def test_a_failure_is_reported_once_by_the_next_wait_and_the_first_counts(acl):
    stream, notes = ok(acl.rt.create_stream()), []
    fail(stream, 507011, "the first")
    fail(stream, 507015, "the second")
    note(stream, notes, "behind")
    assert acl.rt.synchronize_stream(stream) == 507011
    assert acl.get_recent_err_msg() == "the first"
    assert acl.rt.synchronize_stream(stream) == 0
    assert notes == ["behind"]  # ACL_CONTINUE_ON_FAILURE


def test_an_event_does_not_report_failures(acl):
    event = ok(acl.rt.create_event())
    fail(0, 507011)
    ok(acl.rt.record_event(event, 0))
    assert acl.rt.synchronize_event(event) == 0
    assert acl.rt.synchronize_stream(0) == 507011


def test_synchronize_device_reports_one_failure_after_all_streams_are_done(acl):
    streams, notes = [ok(acl.rt.create_stream()) for _ in range(2)], []
    for code, stream in zip((507011, 507015), streams, strict=True):
        fail(stream, code)
        note(stream, notes, code)
    assert acl.rt.synchronize_device() == 507011
    assert sorted(notes) == [507011, 507015]
    assert acl.rt.synchronize_device() == 507015
    assert acl.rt.synchronize_device() == 0


def test_stop_mode_ends_all_streams_of_the_context(acl):
    stream, other = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    ok(acl.rt.set_stream_failure_mode(stream, 1))
    ptr, notes = ok(acl.rt.malloc(64, 0)), []
    blocked = Blocked(stream)
    fail(stream, 507011)
    note(stream, notes, "behind")
    blocked.release()
    assert acl.rt.synchronize_stream(stream) == 507011
    assert notes == []
    assert acl.rt.memset_async(ptr, 64, 0, 64, stream) == 107023
    assert acl.rt.memset_async(ptr, 64, 0, 64, other) == 107023
    assert acl.rt.synchronize_stream(other) == 107023
    ok(acl.rt.create_context(0))
    ok(acl.rt.memset_async(ptr, 64, 0, 64, 0))
    ok(acl.rt.synchronize_stream(0))


def test_the_failure_mode_is_set_once_and_not_for_the_default_stream(acl):
    stream = ok(acl.rt.create_stream())
    assert acl.rt.set_stream_failure_mode(0, 1) == 100000
    assert acl.rt.set_stream_failure_mode(stream, 2) == 100000
    assert acl.rt.set_stream_failure_mode(stream, 0) == 0
    assert acl.rt.set_stream_failure_mode(stream, 1) == 107000


def test_an_exception_of_a_task_is_raised_by_a_wait(acl):
    def run():
        raise KeyError("not a device's failure")

    current().stream(0, "test").submit(Task(run, (), (), "defect"))
    with pytest.raises(KeyError, match="not a device"):
        acl.rt.synchronize_stream(0)
    assert acl.rt.synchronize_stream(0) == 0


# -- concurrent uses of memory --------------------------------------------------------------------


def test_an_event_orders_two_streams(acl):
    first, second = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    ptr, event = ok(acl.rt.malloc(64, 0)), ok(acl.rt.create_event())
    blocked = Blocked(first)
    ok(acl.rt.memset_async(ptr, 64, 1, 64, first))
    ok(acl.rt.record_event(event, first))
    ok(acl.rt.stream_wait_event(second, event))
    ok(acl.rt.memset_async(ptr, 64, 2, 64, second))
    assert acl.rt.synchronize_stream_with_timeout(second, 1) == 507046
    blocked.release()
    ok(acl.rt.synchronize_stream(second))
    assert content(ptr, 64) == bytes([2]) * 64
    ok(acl.rt.free(ptr))  # the wait for the second stream includes the first


def test_a_query_that_says_complete_orders_too(acl):
    ptr, event = ok(acl.rt.malloc(64, 0)), ok(acl.rt.create_event())
    ok(acl.rt.memset_async(ptr, 64, 1, 64, 0))
    ok(acl.rt.record_event(event, 0))
    while acl.rt.query_event_status(event) != (1, 0):
        pass
    ok(acl.rt.free(ptr))


def test_a_destroyed_stream_causes_no_conflicts(acl):
    stream, ptr = ok(acl.rt.create_stream()), ok(acl.rt.malloc(64, 0))
    ok(acl.rt.memset_async(ptr, 64, 1, 64, stream))
    ok(acl.rt.synchronize_stream(stream))
    ok(acl.rt.destroy_stream(stream))
    ok(acl.rt.memset_async(ptr, 64, 2, 64, 0))
    ok(acl.rt.synchronize_stream(0))
    ok(acl.rt.free(ptr))


# -- seeds ----------------------------------------------------------------------------------------


def order_of_two_streams(started, seed):
    acl, notes = started(seed=seed), []
    streams = [ok(acl.rt.create_stream()) for _ in range(2)]
    for word in "abcd":
        for name, stream in zip("12", streams, strict=True):
            note(stream, notes, f"{name}{word}")
    assert notes == []
    ok(acl.rt.synchronize_device())
    return notes


def test_with_a_seed_streams_interleave_reproducibly(started):
    orders = {seed: order_of_two_streams(started, seed) for seed in range(8)}
    assert orders == {seed: order_of_two_streams(started, seed) for seed in range(8)}
    assert len({tuple(order) for order in orders.values()}) > 1
    for order in orders.values():
        assert [word for word in order if word[0] == "1"] == ["1a", "1b", "1c", "1d"]


def test_with_a_seed_nothing_runs_before_the_host_waits(started):
    acl = started(seed=1)
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    fill(device, bytes(64))
    ok(acl.rt.memcpy_async(pinned, 64, device, 64, D2H, 0))
    assert content(pinned, 64) == b"\x7f" * 64
    ok(acl.rt.synchronize_stream(0))
    assert content(pinned, 64) == bytes(64)


def test_with_a_seed_polling_makes_progress(started):
    acl = started(seed=3)
    event, device = ok(acl.rt.create_event()), ok(acl.rt.malloc(64, 0))
    pinned = ok(acl.rt.malloc_host(64))
    ok(acl.rt.memcpy_async(device, 64, pinned, 64, H2D, 0))
    ok(acl.rt.record_event(event, 0))
    assert acl.rt.query_event_status(event) == (0, 0)
    assert acl.rt.query_event_status(event) == (1, 0)


def test_the_timeline_has_the_latest_copies_and_executions(started, tmp_path):
    acl = started(timeline=3)
    device, pinned = ok(acl.rt.malloc(256, 0)), ok(acl.rt.malloc_host(256))
    for pair in ((device, pinned, H2D), (pinned, device, D2H), (device, pinned, H2D)):
        ok(acl.rt.memcpy_async(pair[0], 256, pair[1], 256, pair[2], 0))
    loaded = Loaded(acl, static_om(tmp_path))
    loaded.write(0, np.zeros((2, 4), np.float32))
    ok(loaded.execute_async())
    ok(acl.rt.synchronize_stream(0))
    spans = ascend_simulator.report().timeline
    copies = ["ACL_MEMCPY_DEVICE_TO_HOST", "ACL_MEMCPY_HOST_TO_DEVICE"]
    assert [span.kind for span in spans] == [*copies, "execute"]
    assert len({span.stream for span in spans}) == 1
    times = [time for span in spans for time in (span.begin_ns, span.end_ns)]
    assert times == sorted(times)


def test_a_stream_can_be_queried(acl):
    stream = ok(acl.rt.create_stream())
    assert acl.rt.stream_query(stream) == (0, 0)
    blocked = Blocked(stream)
    assert acl.rt.stream_query(stream) == (1, 0)
    blocked.release()
    while acl.rt.stream_query(stream) == (1, 0):
        pass
    assert current().stream(stream, "test").is_idle
