"""What a forked copy of the process does not have. Each test forks this very process."""

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


def in_copy(look):
    """What `look()` returns in a forked copy; the copy's exit code stands for what it does not."""
    end, copys_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(copys_end, pickle.dumps(look()))
        os._exit(0)
    os.close(copys_end)
    with os.fdopen(end, "rb") as file:
        said = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return pickle.loads(said) if said else code


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """What a test says of this process holds for the test alone."""
    monkeypatch.setattr(forks, "_handled", {})
    monkeypatch.setattr(forks, "_ports", set())
    monkeypatch.setattr(forks, "_descriptors", set())
    monkeypatch.setattr(forks, "_locks", [])
    monkeypatch.setattr(forks, "_in_copies", [])


@pytest.fixture
def handled():
    """SIGTERM and SIGINT have handlers, and a descriptor is woken by them."""
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


def test_a_copy_is_ended_by_a_signal_that_its_parent_handles_and_nobody_is_woken(handled):
    def signalled():
        os.kill(os.getpid(), signal.SIGTERM)
        return "went on"

    assert in_copy(signalled) == -signal.SIGTERM
    handled.setblocking(False)
    with pytest.raises(BlockingIOError):
        handled.recv(1)


def test_a_signal_that_comes_before_the_copy_runs_ends_it(handled):
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_copy_is_interrupted_as_any_program(handled):
    assert in_copy(lambda: signal.getsignal(signal.SIGINT) is signal.default_int_handler)


def test_a_handler_that_came_later_is_the_copys_too(handled):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert in_copy(lambda: signal.getsignal(signal.SIGTERM)) == signal.SIG_IGN


def test_a_copy_made_on_another_thread_has_default_handlers(handled):
    said = []
    look = lambda: signal.getsignal(signal.SIGTERM)  # noqa: E731
    thread = threading.Thread(target=lambda: said.append(in_copy(look)))
    thread.start()
    thread.join()
    assert said == [signal.SIG_DFL]


def is_socket(end):
    try:
        end.getsockname()
    except OSError:
        return False
    return True


def test_a_copy_has_neither_the_ports_nor_their_connections():
    with socket.create_server(("127.0.0.1", 0)) as port, socket.create_server(("", 0)) as other:
        client = socket.create_connection(port.getsockname())
        accepted, _ = port.accept()
        forks.listens(port.getsockname()[1])
        with client, accepted:
            ends = port, accepted, other, client
            # What a model has opened itself it keeps, a connection to the server included.
            assert in_copy(lambda: [is_socket(end) for end in ends]) == [False, False, True, True]
            assert all(map(is_socket, ends))


def test_a_connection_ends_although_a_copy_goes_on():
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


def test_a_copy_does_not_have_descriptors_that_it_must_not_have():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        forks.close_in_forks(ours.fileno())
        assert in_copy(lambda: [is_socket(ours), is_socket(theirs)]) == [False, True]


def test_a_fork_waits_for_a_lock_so_that_no_copy_finds_it_held():
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
        assert all(in_copy(lambda: lock.acquire(blocking=False)) for _ in range(20))
    finally:
        stop.set()
        thread.join()
    assert not lock.locked()


def test_what_copies_are_to_call_is_called_there_alone():
    called = []
    forks.call_in_forks(lambda: called.append(os.getpid()))
    assert in_copy(lambda: called == [os.getpid()])
    assert not called


def test_a_copy_is_of_another_generation():
    before = forks.generation
    assert in_copy(lambda: forks.generation) == before + 1
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
def test_a_copy_ends_as_a_program_does(error, code):
    assert in_copy(lambda: forks.end_fork(error)) == code


def test_children_that_live_are_counted_for_the_one_that_forked_them(monkeypatch):
    monkeypatch.setattr(forks, "_pipe", ())
    monkeypatch.setattr(forks, "_whose", lambda: None)
    mother = threading.local()
    forks.tell_apart(lambda: getattr(mother, "number", None))
    release, held = os.pipe()
    pids = {}
    for number in (1, 2, None):
        mother.number = number
        pid = os.fork()
        if pid == 0:
            os.close(held)
            os.read(release, 1)
            os._exit(0)
        pids[number] = pid
    mother.number = 1
    in_copy(lambda: None)  # it has ended
    # A child says that it is there when it has begun to run.
    while not (forks.children_of(1) and forks.children_of(2)):
        pass
    assert [forks.children_of(number) for number in (1, 2)] == [[pids[1]], [pids[2]]]
    os.close(held)
    for pid in pids.values():
        os.waitpid(pid, 0)
    os.close(release)
    assert forks.children_of(1) == forks.children_of(2) == []


def test_a_program_ends_without_the_children_that_it_lets_go():
    program = """
import multiprocessing, os
from reference_server.core import forks

child = multiprocessing.get_context("fork").Process(target=os.read, args=(0, 1))
child.start()
forks.let_go([child.pid])
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as running:
        # The child waits for the end of this pipe, which comes when the program has ended.
        assert running.wait(PATIENCE_S) == 0


def test_a_program_ends_its_daemons_though_it_lets_them_go():
    program = """
import atexit, multiprocessing, os
from reference_server.core import forks

child = multiprocessing.get_context("fork").Process(target=os.read, args=(0, 1), daemon=True)
child.start()
forks.let_go([child.pid])
atexit._run_exitfuncs()
os._exit(7 if child.exitcode else 0)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as running:
        assert running.wait(PATIENCE_S) == 7
