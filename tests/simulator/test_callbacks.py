"""Callbacks: functions that a stream runs between its tasks, on the subscribed thread."""

import ctypes
import threading

import numpy as np
import pytest
from simulator.support.driving import D2H, H2D, Blocked, ok
from simulator.support.models import breaks

from ascend_simulator import SimulatorWarning, report

NO_BLOCK, BLOCK = 0, 1


class Server:
    """A thread that processes callbacks until it is stopped, as programs have it."""

    def __init__(self, acl):
        self.acl = acl
        self.codes = []
        self._stop = False
        context = ok(acl.rt.get_context())
        self.id = ok(acl.util.start_thread(self._serve, [context, 20]))

    def _serve(self, arguments):
        context, timeout = arguments
        assert self.acl.rt.set_context(context) == 0
        while not self._stop:
            self.codes.append(self.acl.rt.process_report(timeout))

    def stop(self):
        self._stop = True
        assert self.acl.util.stop_thread(self.id) == 0


@pytest.fixture(params=[None, 1], ids=["threads", "seed"])
def served(request, started):
    """acl, a subscribed stream, and its server."""
    acl = started(seed=request.param)
    stream = ok(acl.rt.create_stream())
    server = Server(acl)
    assert acl.rt.subscribe_report(server.id, stream) == 0
    yield acl, stream, server
    if server.id in acl_threads():
        server.stop()


def acl_threads():
    return {thread.ident for thread in threading.enumerate() if thread.name == "acl helper"}


def test_a_callback_runs_in_order_on_the_subscribed_thread(served):
    acl, stream, server = served
    ran = []
    for number in range(3):
        arguments = [number, "x"]
        assert (
            acl.rt.launch_callback(
                lambda given: ran.append((threading.get_ident(), given)), arguments, BLOCK, stream
            )
            == 0
        )
    assert acl.rt.synchronize_stream(stream) == 0
    assert ran == [(server.id, [number, "x"]) for number in range(3)]
    assert acl.rt.unsubscribe_report(server.id, stream) == 0
    server.stop()
    assert set(server.codes) <= {0, 107012, 507012}
    assert server.codes.count(0) == 3


def test_a_blocking_callback_reads_what_the_next_task_writes(served):
    """Every slot of a small pool is reused before its callback has run."""
    acl, stream, _ = served
    device = ok(acl.rt.malloc(64, 0))
    pinned = [ok(acl.rt.malloc_host(64)) for _ in range(4)]
    arrays = [ptr_array(ptr) for ptr in pinned]
    seen = []

    def read(_):
        out = np.zeros(64, np.uint8)
        assert acl.rt.memcpy(out.ctypes.data, 64, device, 64, D2H) == 0
        seen.append(out[0])

    for number in range(4):
        arrays[number][:] = number
        assert acl.rt.memcpy_async(device, 64, pinned[number], 64, H2D, stream) == 0
        assert acl.rt.launch_callback(read, None, BLOCK, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    assert seen == [0, 1, 2, 3]
    assert report().broken == {}


def test_a_nonblocking_callback_races_with_the_next_task(started):
    acl = started(mode="report", seed=1)
    stream = ok(acl.rt.create_stream())
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    out = np.zeros(64, np.uint8)
    server = Server(acl)
    assert acl.rt.subscribe_report(server.id, stream) == 0
    ran = threading.Event()

    def read(_):
        assert acl.rt.memcpy(out.ctypes.data, 64, device, 64, D2H) == 0
        ran.set()

    assert acl.rt.launch_callback(read, None, NO_BLOCK, stream) == 0
    assert acl.rt.memcpy_async(device, 64, pinned, 64, H2D, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    assert ran.wait(30)
    server.stop()
    # The order of the two is random; the race is found in either order.
    assert set(report().broken) <= {"memory.busy"}


def ptr_array(ptr):
    return np.ctypeslib.as_array((ctypes.c_uint8 * 64).from_address(ptr))


def test_a_nonblocking_callback_does_not_stop_the_stream(started):
    acl = started()
    stream = ok(acl.rt.create_stream())
    gate, ran = threading.Event(), threading.Event()

    def wait(_):
        assert gate.wait(30)
        ran.set()

    server = Server(acl)
    assert acl.rt.subscribe_report(server.id, stream) == 0
    assert acl.rt.launch_callback(wait, None, NO_BLOCK, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    assert not ran.is_set()
    gate.set()
    assert ran.wait(30)
    server.stop()


def test_return_codes_without_a_subscription(acl):
    stream, other = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    assert acl.rt.process_report(10) == 107012
    assert acl.rt.launch_callback(print, None, BLOCK, stream) == 107015
    assert acl.rt.unsubscribe_report(5, stream) == 107012
    here = threading.get_ident()
    assert acl.rt.subscribe_report(here, stream) == 0
    assert acl.rt.subscribe_report(here + 1, stream) == 107011
    assert acl.rt.subscribe_report(here, other) == 0  # one thread may serve several streams
    assert acl.rt.unsubscribe_report(here + 1, stream) == 107012
    assert acl.rt.process_report(1) == 507012
    assert acl.rt.unsubscribe_report(here, stream) == acl.rt.unsubscribe_report(here, other) == 0
    assert acl.rt.process_report(1) == 107012


@pytest.mark.parametrize("timeout", [0, -2])
def test_a_limit_is_positive_or_minus_one(acl, timeout):
    assert acl.rt.process_report(timeout) == 100000


def test_invalid_callbacks_are_refused(acl):
    with pytest.raises(TypeError, match="callable"):
        acl.rt.launch_callback(5, None, BLOCK, 0)
    for block_type in (-1, 2):
        assert acl.rt.launch_callback(print, None, block_type, 0) == 100000


def test_a_thread_serves_one_device(started):
    acl = started(devices=2)
    assert acl.rt.subscribe_report(5, 0) == 0
    ok(acl.rt.set_device(1))
    assert acl.rt.subscribe_report(5, 0) == 107012


def test_any_thread_serves_by_its_system_thread_id(acl):
    """For programs that start the thread themselves, and for the default stream."""
    ran = []
    assert acl.rt.subscribe_report(threading.get_ident(), 0) == 0
    assert acl.rt.launch_callback(ran.append, "here", NO_BLOCK, 0) == 0
    assert acl.rt.process_report(-1) == 0
    assert ran == ["here"]


def test_with_a_seed_a_thread_that_waits_for_callbacks_runs_the_streams(started):
    acl = started(seed=1)
    ran = []
    assert acl.rt.subscribe_report(threading.get_ident(), 0) == 0
    assert acl.rt.launch_callback(ran.append, "here", BLOCK, 0) == 0
    assert acl.rt.process_report(1) == 0
    assert ran == ["here"]
    assert acl.rt.synchronize_stream(0) == 0


def test_an_exception_of_a_callback_only_warns(started):
    acl = started(mode="report")
    stream, server = ok(acl.rt.create_stream()), Server(acl)
    assert acl.rt.subscribe_report(server.id, stream) == 0
    for _ in range(2):
        assert acl.rt.launch_callback(lambda given: given.nothing, 1, BLOCK, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    assert report().broken == {"callback.raised": 2}
    (finding,) = report().findings
    assert "AttributeError" in finding.text
    assert finding.origin.call == "acl.rt.launch_callback"
    server.stop()


def test_a_violation_in_a_callback_is_raised_by_the_next_wait(served):
    acl, stream, _ = served
    assert acl.rt.launch_callback(acl.rt.free, 0x1234_0000, BLOCK, stream) == 0
    with breaks("memory.bad-free"):
        acl.rt.synchronize_stream(stream)
    assert acl.rt.synchronize_stream(stream) == 0


@pytest.mark.brute_force
@pytest.mark.parametrize("mode", ["strict", "report"])
def test_callbacks_of_an_ended_thread_do_not_hang(started, mode):
    acl = started(mode=mode)
    server = Server(acl)
    assert acl.rt.subscribe_report(server.id, 0) == 0
    server.stop()
    assert acl.rt.launch_callback(print, None, BLOCK, 0) == 0
    if mode == "strict":
        with breaks("callback.not-served"):
            acl.rt.synchronize_stream(0)
    assert acl.rt.synchronize_stream(0) == 0  # the callbacks are dropped
    assert report().broken == {"callback.not-served": 1}


@pytest.mark.parametrize("device_wide", [False, True])
def test_a_callback_does_not_wait_for_itself(served, device_wide):
    acl, stream, _ = served

    def wait(_):
        acl.rt.synchronize_device() if device_wide else acl.rt.synchronize_stream(stream)

    assert acl.rt.launch_callback(wait, None, BLOCK, stream) == 0
    with breaks("callback.waits-for-itself"):
        acl.rt.synchronize_stream(stream)


def test_a_stream_that_is_unsubscribed_has_no_callbacks_left(started):
    acl = started(mode="lenient")
    blocked = Blocked()
    ran = []
    assert acl.rt.subscribe_report(threading.get_ident(), 0) == 0
    assert acl.rt.launch_callback(ran.append, 1, BLOCK, 0) == 0
    with pytest.warns(SimulatorWarning, match="callback.unsubscribed-pending"):
        assert acl.rt.unsubscribe_report(threading.get_ident(), 0) == 0
    blocked.release()
    assert acl.rt.synchronize_stream(0) == 0  # the callback is lost and does not block
    assert ran == []


def test_stop_thread_raises_the_exception_of_the_threads_function(acl):
    thread = ok(acl.util.start_thread(lambda _: 1 / 0, []))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        acl.util.stop_thread(thread)
    assert acl.util.stop_thread(thread) == 100000
