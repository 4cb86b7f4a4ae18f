"""Resources that forked children give up. Each test forks this very process."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading

import pytest
from server.support.requests import PATIENCE_S

from reference_server.core import forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")


def in_child(look):
    """Return the result of `look()` in a forked child, or the child's exit code."""
    end, child_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(child_end, pickle.dumps(look()))
        os._exit(0)
    os.close(child_end)
    with os.fdopen(end, "rb") as file:
        result = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return pickle.loads(result) if result else code


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Restore the registrations of this process after the test."""
    monkeypatch.setattr(forks, "_handled", {})
    monkeypatch.setattr(forks, "_ports", set())
    monkeypatch.setattr(forks, "_descriptors", set())
    monkeypatch.setattr(forks, "_locks", [])
    monkeypatch.setattr(forks, "_callbacks", [])


@pytest.fixture
def handled():
    """Handlers for SIGTERM and SIGINT, and a wake-up descriptor for them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    read, write = socket.socketpair()
    write.setblocking(False)
    wakeup = signal.set_wakeup_fd(write.fileno())
    for number in before:
        signal.signal(number, lambda *_: None)
        forks.default_in_forks(number)
    yield read
    signal.set_wakeup_fd(wakeup)
    for number, handler in before.items():
        signal.signal(number, handler)
    read.close()
    write.close()


def test_a_handled_signal_ends_a_child_and_wakes_no_loop(handled):
    def signalled():
        os.kill(os.getpid(), signal.SIGTERM)
        return "went on"

    assert in_child(signalled) == -signal.SIGTERM
    handled.setblocking(False)
    with pytest.raises(BlockingIOError):
        handled.recv(1)


@pytest.mark.brute_force
def test_a_signal_sent_before_the_child_runs_ends_it(handled):
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_handler_that_was_set_later_stays_in_the_child(handled):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert in_child(lambda: signal.getsignal(signal.SIGTERM)) == signal.SIG_IGN


def test_a_child_forked_on_another_thread_has_default_handlers(handled):
    said = []
    look = lambda: signal.getsignal(signal.SIGTERM)  # noqa: E731
    thread = threading.Thread(target=lambda: said.append(in_child(look)))
    thread.start()
    thread.join()
    assert said == [signal.SIG_DFL]


def is_socket(end):
    try:
        end.getsockname()
    except OSError:
        return False
    return True


def test_a_child_has_neither_the_ports_nor_their_connections():
    with socket.create_server(("127.0.0.1", 0)) as port, socket.create_server(("", 0)) as other:
        client = socket.create_connection(port.getsockname())
        accepted, _ = port.accept()
        forks.close_port_in_forks(port.getsockname()[1])
        with client, accepted:
            ends = port, accepted, other, client
            # A socket that the model has opened stays, also a connection to the server.
            assert in_child(lambda: [is_socket(end) for end in ends]) == [False, False, True, True]
            assert all(map(is_socket, ends))


def test_a_child_does_not_have_registered_descriptors():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        forks.close_in_forks(ours.fileno())
        assert in_child(lambda: [is_socket(ours), is_socket(theirs)]) == [False, True]


@pytest.mark.brute_force
def test_a_fork_waits_for_a_lock_so_that_no_child_finds_it_held():
    lock = threading.Lock()
    forks.hold_for_forks(lock.acquire, lock.release)
    taken, stop = threading.Event(), threading.Event()

    def keep_taking():
        while not stop.is_set():
            with lock:
                taken.set()

    thread = threading.Thread(target=keep_taking)
    thread.start()
    taken.wait()
    try:
        assert all(in_child(lambda: lock.acquire(blocking=False)) for _ in range(20))
    finally:
        stop.set()
        thread.join()
    assert not lock.locked()


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (SystemExit(), 0),
        (SystemExit(7), 7),
        (SystemExit("why"), 1),
        (ValueError("why"), 1),
    ],
)
def test_a_child_ends_as_a_program_does(error, code):
    assert in_child(lambda: forks.end_fork(error)) == code


def test_living_children_are_recorded_by_owner(monkeypatch):
    monkeypatch.setattr(forks, "_children", forks._ForkedChildren())
    thread = threading.local()
    forks.record_children(lambda: getattr(thread, "owner", None))
    release, held = os.pipe()
    pids = {}
    for number in (1, 2, None):
        thread.owner = number
        pid = os.fork()
        if pid == 0:
            os.close(held)
            os.read(release, 1)
            os._exit(0)
        pids[number] = pid
    thread.owner = 1
    in_child(lambda: None)  # it has ended
    # A child writes its record when it starts to run.
    while not (forks.living_children(1) and forks.living_children(2)):
        pass
    assert [forks.living_children(number) for number in (1, 2)] == [[pids[1]], [pids[2]]]
    os.close(held)
    for pid in pids.values():
        os.waitpid(pid, 0)
    os.close(release)
    assert forks.living_children(1) == forks.living_children(2) == []


def test_a_program_does_not_join_excluded_children():
    program = """
import multiprocessing, os
from reference_server.core import forks

child = multiprocessing.get_context("fork").Process(target=os.read, args=(0, 1))
child.start()
forks.do_not_join([child.pid])
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as running:
        # The child waits for the end of this pipe, which comes when the program has ended.
        assert running.wait(PATIENCE_S) == 0


def test_a_program_terminates_excluded_daemons():
    program = """
import atexit, multiprocessing, os
from reference_server.core import forks

child = multiprocessing.get_context("fork").Process(target=os.read, args=(0, 1), daemon=True)
child.start()
forks.do_not_join([child.pid])
atexit._run_exitfuncs()
os._exit(7 if child.exitcode else 0)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as running:
        assert running.wait(PATIENCE_S) == 7


def test_callbacks_run_in_children_only():
    called = []
    forks.call_in_forks(lambda: called.append(os.getpid()))
    assert in_child(lambda: called == [os.getpid()])
    assert not called
