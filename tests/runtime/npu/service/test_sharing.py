"""The queue of a device that the test blocks: waiting, deadlines and cancellation."""

import contextlib
import math
import os
import re
import threading

import numpy as np
import pytest
from runtime.support.services import held_service
from runtime.support.threads import Beside
from support.waiting import until

from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import Cancelled, EngineFault, EngineLost, Expired, OutOfMemory
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.protocol import Timeouts
from ge_runtime.testing import ManualClock

pytestmark = pytest.mark.brute_force


@pytest.fixture
def held(services):
    with held_service(services.path) as (backend, server):
        yield backend, server


@pytest.fixture
def artifact(tmp_path):
    path = tmp_path / "model.om"
    path.write_bytes(b"compiled")
    return Artifact(path, "om", "")


@pytest.fixture
def opened(artifact):
    """A function: an engine of a new client, whose backend is `opened.backends[engine]`."""
    with contextlib.ExitStack() as stack:

        def open_engine(name="client", **options):
            backend = ServiceBackend("held", name, **options)
            stack.callback(backend.close)
            engine = backend.open([artifact], threads=1, outputs=["y"])
            open_engine.backends[engine] = backend
            return engine

        open_engine.backends = {}
        yield open_engine


def run(engine, value):
    x = np.array([value], np.float32)
    return engine.run({"x": x}, {"y": np.empty(1, np.float32)})["y"][0]


def fill(device, engines):
    """Have as many executions under way as the device takes at a time."""
    running = [Beside(run, engine, float(number)) for number, engine in enumerate(engines)]
    device.until_begun(len(engines))
    return running


def test_executions_wait_for_their_turn_and_all_are_answered(held, opened):
    device, server = held
    engines = [opened(f"client {number}") for number in range(5)]
    running = [Beside(run, engine, float(number)) for number, engine in enumerate(engines)]
    until(lambda: server.state.scheduler.stats().waiting == 3, "the queue")
    device.until_begun(2)
    assert len(device.begun) == 2
    device.let_go()
    assert [one.result() for one in running] == [0.0, 2.0, 4.0, 6.0, 8.0]
    stats = server.state.scheduler.stats()
    assert (stats.begun, stats.waited, stats.running, stats.waiting) == (5, 3, 0, 0)


def test_execution_whose_deadline_passes_while_it_waits_is_expired(services, opened):
    clock = ManualClock()
    with held_service(services.path, clock=clock) as (device, _):
        first, second, late = (opened(name) for name in ("first", "second", "late"))
        running = fill(device, [first, second])
        with late.waiting(lambda: 5.0, lambda: False):
            waiting = Beside(run, late, 9.0)
            clock.until_waiting(1)
            clock.advance(5.0)
            with pytest.raises(Expired):
                waiting.result()
        device.let_go()
        assert [one.result() for one in running] == [0.0, 2.0]
        assert 9.0 not in device.begun
        assert run(late, 3.0) == 6.0
        opened.backends[late].close()
        opened.backends[first].close()
        opened.backends[second].close()


def test_an_execution_is_cancelled_while_it_waits(held, opened):
    device, server = held
    first, second, third = (opened(name) for name in ("first", "second", "third"))
    running = fill(device, [first, second])
    gone = threading.Event()
    with third.waiting(lambda: 1000.0, gone.is_set):
        waiting = Beside(run, third, 9.0)
        until(lambda: server.state.scheduler.stats().waiting == 1, "the wait")
        gone.set()
        with pytest.raises(Cancelled):
            waiting.result()
    device.let_go()
    assert [one.result() for one in running] == [0.0, 2.0]
    assert device.begun == [0.0, 1.0] or device.begun == [1.0, 0.0]


def test_client_that_leaves_while_it_waits_is_dropped_from_the_queue(held, opened, artifact):
    device, server = held
    running = fill(device, [opened("first"), opened("second")])
    backend = ServiceBackend("held", "leaver", timeouts=Timeouts(retry_s=60.0))
    engine = backend.open([artifact], threads=1, outputs=["y"])
    waiting = Beside(run, engine, 9.0)
    until(lambda: server.state.scheduler.stats().waiting == 1, "the wait")
    closing = Beside(backend.close)
    with pytest.raises(EngineLost):
        waiting.result()
    closing.result()
    until(lambda: server.state.scheduler.stats().waiting == 0, "its end")
    device.let_go()
    assert [one.result() for one in running] == [0.0, 2.0]
    assert 9.0 not in device.begun
    until(lambda: len(server.state.clients()) == 2, "its things to come back")


@pytest.mark.parametrize("fault", [EngineFault("node 7 failed"), OutOfMemory("no 12 bytes left")])
def test_faults_of_the_engine_arrive_with_class_and_text(held, opened, fault):
    device, _ = held
    device.let_go()
    engine = opened()
    device.raises = fault
    with pytest.raises(type(fault)) as raised:
        run(engine, 1.0)
    assert str(raised.value) == str(fault)
    device.raises = None
    assert run(engine, 2.0) == 4.0


def test_defect_of_the_engine_is_a_fault_with_its_class(held, opened, caplog):
    device, _ = held
    device.let_go()
    engine = opened()
    device.raises = ZeroDivisionError("by zero")
    with pytest.raises(Exception, match=r"^ZeroDivisionError: by zero$"):
        run(engine, 1.0)
    (failed,) = (line for line in caplog.messages if "failed" in line)
    assert failed.startswith(f"an execution for client (pid {os.getpid()}) of ")


def test_service_that_ends_answers_what_is_under_way_and_begins_nothing_more(services, opened):
    with held_service(services.path) as (device, server):
        engines = [
            opened(f"client {number}", timeouts=Timeouts(retry_s=60.0)) for number in range(3)
        ]
        running = fill(device, engines[:2])
        waiting = Beside(run, engines[2], 9.0)
        until(lambda: server.state.scheduler.stats().waiting == 1, "the wait")
        server.end("SIGTERM", patience_s=3600.0)
        with pytest.raises(EngineLost, match="the device service ends"):
            waiting.result()
        device.let_go()
        assert [one.result() for one in running] == [0.0, 2.0]
        for engine in engines:
            until(lambda engine=engine: engine.lost, "the notice")
            opened.backends[engine].close()
    assert 9.0 not in device.begun


def test_backend_that_takes_long_to_open_is_no_service_without_clients(services):
    clock = ManualClock()
    timeouts = Timeouts(grace_s=10.0)
    with held_service(services.path, clock=clock, timeouts=timeouts) as (device, server):
        opening, go_on = threading.Event(), threading.Event()

        def slow(_):
            opening.set()
            assert go_on.wait(30)
            return device

        server.state._open_backend = slow
        coming = Beside(ServiceBackend, "held", "client")
        assert opening.wait(30)
        clock.advance(1000.0)
        services.greet("held", role="observer")[0].close()  # it has looked at its clock since
        go_on.set()
        coming.result().close()


def test_lost_device_ends_the_service_so_that_the_next_one_opens_it_again(services, opened):
    with held_service(services.path) as (device, _):
        device.let_go()
        engine = opened(timeouts=Timeouts(retry_s=60.0))
        device.raises = EngineLost("507899: the card does not answer")
        with pytest.raises(EngineLost, match="507899"):
            run(engine, 1.0)
        until(lambda: engine.lost, "the end of the service")
        assert services.pid("held") is None
        opened.backends[engine].close()


def test_execution_that_never_ends_ends_the_service(services, opened):
    clock = ManualClock()
    with held_service(services.path, clock=clock) as (device, server):
        engine = opened(timeouts=Timeouts(retry_s=60.0))
        hanging = Beside(run, engine, 1.0)
        device.until_begun(1)
        clock.advance(server._timeouts.run_s + 1)
        with pytest.raises(EngineLost):
            hanging.result()
        who = rf"client \(pid {os.getpid()}\) of .*/model\.om"
        until(lambda: server._ending is not None, "its end")
        assert re.search(f"an execution for {who} has been running for 300 s", server._ending)
        device.let_go()
        opened.backends[engine].close()


def test_arenas_are_registered_with_the_backend_until_the_client_leaves(held, opened):
    device, server = held
    device.let_go()
    engine = opened()
    backend = opened.backends[engine]
    buffer = backend.memory.allocate("inputs", 10_000)
    assert device.registered == [12_288]
    buffer.free()
    assert device.registered == []
    backend.memory.allocate("inputs", 5000)
    backend.memory.allocate("answers", 5000)
    assert run(engine, 1.0) == 2.0
    backend.close()
    until(lambda: (device.registered, device.closed) == ([], 1), "what it had")
    assert len(server.state.clients()) == 0


def test_memory_that_the_device_cannot_unregister_blocks_nothing_else(held, opened, caplog):
    device, server = held
    backend = opened.backends[opened()]
    let_go = device.unregister

    def unregister(memory):
        if memory.nbytes == 8192:
            raise OutOfMemory("it is still in use")
        let_go(memory)

    device.unregister = unregister
    for nbytes in (8000, 12_000, 16_000):
        backend.memory.allocate("inputs", nbytes)
    backend.close()
    until(lambda: (device.registered, device.closed) == ([8192], 1), "the rest")
    until(lambda: len(server.state.clients()) == 0, "its leave")
    assert f"client (pid {os.getpid()}): arena 1 was not released" in caplog.messages


def test_the_error_of_a_backend_that_cannot_be_opened_is_reported(services, monkeypatch, artifact):
    with held_service(services.path) as (_, server):

        def broken(_):
            raise OutOfMemory("the card has 3 bytes")

        server.state._open_backend = broken
        with pytest.raises(OutOfMemory, match="the card has 3 bytes"):
            ServiceBackend("held", "client")


def test_idle_service_ends_by_its_clock(services):
    clock = ManualClock()
    with held_service(services.path, clock=clock, timeouts=Timeouts(grace_s=100.0)) as (_, server):
        backend = ServiceBackend("held", "client")
        clock.advance(1000.0)
        assert not backend.lost
        backend.close()
        until(lambda: server._idle.ends_at < math.inf, "its leave")
        clock.advance(99.0)
        channel, _ = services.greet("held", role="observer")  # an observer is not a client
        assert services.pid("held") is not None
        clock.advance(1.0)
        until(lambda: services.pid("held") is None, "its end")
        channel.close()
