"""Failures of the machine: processes die or stop, descriptors or memory run out."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.attack.clients import binary_input, inference
from benchmarks.attack.defects import Defect
from benchmarks.attack.ground import Ground, connect
from benchmarks.attack.watching import family

_PAUSE_S = 0.5
_EXIT_S = 15.0


def model_processes_killed(ground: Ground) -> str:
    """SIGKILL for random model processes of the server, one after another."""
    killed = 0
    for _ in ground.over():
        others = family(ground.server.process.pid)[1:]
        if not others:
            return "no model processes"
        with contextlib.suppress(ProcessLookupError):
            os.kill(ground.dice.choice(others), signal.SIGKILL)
            killed += 1
        time.sleep(_PAUSE_S)
    return f"{killed} killed"


def model_processes_stopped(ground: Ground) -> str:
    """SIGSTOP for each model process of the server, for half a second."""
    return _stopped(ground, slice(1, None))


def server_stopped(ground: Ground) -> str:
    """SIGSTOP for the server's main process, for half a second, repeatedly."""
    return _stopped(ground, slice(0, 1))


def _stopped(ground: Ground, which: slice) -> str:
    count = 0
    for _ in ground.over():
        for pid in family(ground.server.process.pid)[which]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(_PAUSE_S)
                os.kill(pid, signal.SIGCONT)
                count += 1
        if not count:
            return "no model processes"
    return f"{count} times"


def server_killed(ground: Ground) -> str:
    """SIGKILL for the server. Raise Defect if its model processes do not exit by themselves."""
    pids = family(ground.server.process.pid)[1:]
    ground.server.process.kill()
    ground.server.process.wait()
    end = time.monotonic() + _EXIT_S
    while left := [pid for pid in pids if _lives(pid)]:
        if time.monotonic() > end:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise Defect(f"{len(left)} of {len(pids)} processes still run without their server")
        time.sleep(0.05)
    return f"{len(pids)} processes exited"


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on. Raise OSError without a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _lives(pid: int) -> bool:
    """Return whether the process runs, and is not a zombie."""
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def _limited(pid: int, what: int, to: int) -> Iterator[None]:
    """Lower a resource limit of the process until the block ends."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (to, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, before)


def descriptors_exhausted(ground: Ground) -> str:
    """More connections than the server has descriptors for, and then the usual limit again."""
    pid = ground.server.process.pid
    room = 8
    used = max(int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()) + 1
    started, spent = time.monotonic(), _cpu_seconds(pid)
    with contextlib.ExitStack() as stack, _limited(pid, resource.RLIMIT_NOFILE, used + room):
        for _ in range(4 * room):
            stack.enter_context(connect(ground.server.http))
        time.sleep(ground.seconds)
        busy = (_cpu_seconds(pid) - spent) / (time.monotonic() - started)
    with connect(ground.server.http) as client:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        if not client.recv(1 << 16).startswith(b"HTTP/1.1 200"):
            raise Defect("health check fails although descriptors are available again")
    return f"{4 * room} clients for {room} descriptors, {busy:.0%} of a core"


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time that the process has used."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_exhausted(ground: Ground) -> str:
    """Requests of 64 MiB for a server whose address space may grow by 64 MiB at most."""
    pid = ground.server.process.pid
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (1 << 26)
    floats = 1 << 24
    request = inference("wide", binary_input(floats), bytes(4 * floats))
    answered = refused = 0
    with _limited(pid, resource.RLIMIT_AS, most):
        for _ in ground.over():
            received = b""
            with contextlib.suppress(OSError), connect(ground.server.http) as client:
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                received = client.recv(1 << 16)
            succeeded = received.startswith(b"HTTP/1.1 200")
            answered, refused = answered + succeeded, refused + (not succeeded)
            time.sleep(0.05)
    return f"{answered} succeeded, {refused} failed"
