"""Clean-up in forked child processes. Each test forks the test process."""

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
    """Return the result of `look()` in a forked child; its exit code if there is no result."""
    end, childs_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(childs_end, pickle.dumps(look()))
        os._exit(0)
    os.close(childs_end)
    with os.fdopen(end, "rb") as file:
        said = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return pickle.loads(said) if said else code


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Restore the registered clean-up after each test."""
    monkeypatch.setattr(forks, "_handled", {})
    monkeypatch.setattr(forks, "_ports", set())
    monkeypatch.setattr(forks, "_descriptors", set())
    monkeypatch.setattr(forks, "_locks", [])
    monkeypatch.setattr(forks, "_in_children", [])


@pytest.fixture
def handled():
    """Give SIGTERM and SIGINT handlers that write to a descriptor; return its other end."""
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


def test_a_signal_that_the_parent_handles_ends_the_child_and_wakes_no_loop(handled):
    def signalled():
        os.kill(os.getpid(), signal.SIGTERM)
        return "went on"

    assert in_child(signalled) == -signal.SIGTERM
    handled.setblocking(False)
    with pytest.raises(BlockingIOError):
        handled.recv(1)


def test_a_signal_before_the_child_runs_ends_it(handled):
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_child_has_the_default_handler_of_interrupts(handled):
    assert in_child(lambda: signal.getsignal(signal.SIGINT) is signal.default_int_handler)


def test_a_handler_set_later_is_inherited(handled):
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
        forks.listens(port.getsockname()[1])
        with client, accepted:
            ends = port, accepted, other, client
            # Descriptors that a model has opened stay open, even connections to the server.
            assert in_child(lambda: [is_socket(end) for end in ends]) == [False, False, True, True]
            assert all(map(is_socket, ends))


def test_a_connection_ends_while_a_child_runs():
    release, held = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as port:
        client = socket.create_connection(port.getsockname())
        accepted, _ = port.accept()
        forks.listens(port.getsockname()[1])
        pid = os.fork()
        if pid == 0:
            os.close(held)
            os.read(release, 1)
            os._exit(0)
        accepted.close()
        client.settimeout(30)
        assert client.recv(1) == b""
        client.close()
    os.close(held)
    os.waitpid(pid, 0)
    os.close(release)


def test_registered_descriptors_are_closed_in_a_child():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        forks.close_in_forks(ours.fileno())
        assert in_child(lambda: [is_socket(ours), is_socket(theirs)]) == [False, True]


def test_a_fork_waits_for_a_lock_so_that_no_child_inherits_it_locked():
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


def test_registered_calls_run_only_in_the_child():
    called = []
    forks.call_in_forks(lambda: called.append(os.getpid()))
    assert in_child(lambda: called == [os.getpid()])
    assert not called


def test_a_child_has_another_generation():
    before = forks.generation
    assert in_child(lambda: forks.generation) == before + 1
    assert forks.generation == before


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


def test_running_children_are_counted_by_owner(monkeypatch):
    monkeypatch.setattr(forks, "_pipe", ())
    monkeypatch.setattr(forks, "_current_owner", lambda: None)
    owner = threading.local()
    forks.count_children_by(lambda: getattr(owner, "number", None))
    release, held = os.pipe()
    pids = {}
    for number in (1, 2, None):
        owner.number = number
        pid = os.fork()
        if pid == 0:
            os.close(held)
            os.read(release, 1)
            os._exit(0)
        pids[number] = pid
    owner.number = 1
    in_child(lambda: None)  # it has ended
    # A child reports itself after it has started.
    while not (forks.children_of(1) and forks.children_of(2)):
        pass
    assert [forks.children_of(number) for number in (1, 2)] == [[pids[1]], [pids[2]]]
    os.close(held)
    for pid in pids.values():
        os.waitpid(pid, 0)
    os.close(release)
    assert forks.children_of(1) == forks.children_of(2) == []


def test_a_program_does_not_wait_for_detached_children():
    program = """
import multiprocessing, os
from reference_server.core import forks

child = multiprocessing.get_context("fork").Process(target=os.read, args=(0, 1))
child.start()
forks.detach([child.pid])
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as running:
        # The child waits for the end of this pipe, which is closed after the program has ended.
        assert running.wait(PATIENCE_S) == 0


def test_a_program_ends_detached_daemons():
    program = """
import atexit, multiprocessing, os
from reference_server.core import forks

child = multiprocessing.get_context("fork").Process(target=os.read, args=(0, 1), daemon=True)
child.start()
forks.detach([child.pid])
atexit._run_exitfuncs()
os._exit(7 if child.exitcode else 0)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as running:
        assert running.wait(PATIENCE_S) == 7
