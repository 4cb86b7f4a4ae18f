"""What machines do to servers: processes die or stand still, descriptors or memory run out."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bystanders import connected
from campaign.clients import binary_input, inference
from campaign.defects import Defect
from campaign.ground import Ground
from campaign.watching import family

_STILL_S = 0.5
_GONE_S = 15.0


def model_processes_killed(ground: Ground) -> str:
    """SIGKILL to each process of the server but the first, one after another."""
    killed = 0
    for _ in ground.over():
        others = family(ground.server.process.pid)[1:]
        if not others:
            return "has none"
        with contextlib.suppress(ProcessLookupError):
            os.kill(ground.dice.choice(others), signal.SIGKILL)
            killed += 1
        time.sleep(_STILL_S)
    return f"{killed} killed"


def model_processes_stopped(ground: Ground) -> str:
    """SIGSTOP to each process of the server but the first, for half a second."""
    return _stopped(ground, slice(1, None))


def server_stopped(ground: Ground) -> str:
    """SIGSTOP to the server, for half a second and again."""
    return _stopped(ground, slice(0, 1))


def _stopped(ground: Ground, which: slice) -> str:
    count = 0
    for _ in ground.over():
        for pid in family(ground.server.process.pid)[which]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(_STILL_S)
                os.kill(pid, signal.SIGCONT)
                count += 1
        if not count:
            return "has none"
    return f"{count} times"


def server_killed(ground: Ground) -> str:
    """SIGKILL to the server: its processes end by themselves. Raises Defect if they do not."""
    pids = family(ground.server.process.pid)[1:]
    ground.server.process.kill()
    ground.server.process.wait()
    end = time.monotonic() + _GONE_S
    while left := [pid for pid in pids if _lives(pid)]:
        if time.monotonic() > end:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise Defect(f"{len(left)} of {len(pids)} processes live on without their server")
        time.sleep(0.05)
    return f"{len(pids)} processes ended"


def _stat(pid: int) -> list[str]:
    """What Linux says of the process, from its state on. Raises OSError if it is gone."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _lives(pid: int) -> bool:
    """Whether the process is there, and not only its exit code."""
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def _limited(pid: int, what: int, to: int) -> Iterator[None]:
    """Have the process live with less until the block is left."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (to, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, before)


def descriptors_exhausted(ground: Ground) -> str:
    """More connections than the server has descriptors for; and then as many as before."""
    pid = ground.server.process.pid
    room = 8
    used = max(int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()) + 1
    started, spent = time.monotonic(), _cpu_seconds(pid)
    with contextlib.ExitStack() as stack, _limited(pid, resource.RLIMIT_NOFILE, used + room):
        for _ in range(4 * room):
            stack.enter_context(connected(ground.server.http))
        time.sleep(ground.seconds)
        busy = (_cpu_seconds(pid) - spent) / (time.monotonic() - started)
    with connected(ground.server.http) as client:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        if not client.recv(1 << 16).startswith(b"HTTP/1.1 200"):
            raise Defect("not live when there are descriptors again")
    return f"{4 * room} clients for {room} descriptors, {busy:.0%} of a core"


def _cpu_seconds(pid: int) -> float:
    """The processor time that the process has had."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_exhausted(ground: Ground) -> str:
    """Requests of 64 MiB to a server that may have 64 MiB more than it has."""
    pid = ground.server.process.pid
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (1 << 26)
    floats = 1 << 24
    request = inference("wide", binary_input(floats), bytes(4 * floats))
    answered = refused = 0
    with _limited(pid, resource.RLIMIT_AS, most):
        for _ in ground.over():
            said = b""
            with contextlib.suppress(OSError), connected(ground.server.http) as client:
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                said = client.recv(1 << 16)
            answered += said.startswith(b"HTTP/1.1 200")
            refused += not said.startswith(b"HTTP/1.1 200")
            time.sleep(0.05)
    return f"{answered} answered, {refused} refused"
