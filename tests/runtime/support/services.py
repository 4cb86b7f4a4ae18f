"""Device services: real processes, and one in this process that the test controls."""

import contextlib
import fcntl
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ge_runtime.clock import SystemClock
from ge_runtime.devices import HostDevice
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.npu.service import connection
from ge_runtime.npu.service.channel import PeerGone
from ge_runtime.npu.service.connection import NoService, connect, request
from ge_runtime.npu.service.launcher import RuntimeFolder, file_name
from ge_runtime.npu.service.protocol import VERSION, Timeouts
from ge_runtime.npu.service.server import Server
from ge_runtime.specs import DType
from support.waiting import until

TESTS = Path(__file__).resolve().parents[2]
TIMEOUT_S = 30

QUICK = Timeouts(probe_s=0.01, retry_s=0.01, most_retry_s=0.1)
"""Timeouts of clients that check their service often and reconnect soon."""


def stop(pid):
    """Stop a process, as if it hung; returns when none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    until(lambda: {state_of(task) for task in tasks.iterdir()} <= {"T", ""}, "its stop")


def state_of(task):
    """Return the kernel's letter for the state of a thread; empty if it has ended."""
    try:
        return (task / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for_end(pid):
    """Wait until a process has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], TIMEOUT_S)[0], f"process {pid} has not ended"
    finally:
        os.close(process)


def descriptors_of(pid):
    """Return the number of open descriptors of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def patience():
    """Return a check that limits the time of a conversation."""
    end = time.monotonic() + TIMEOUT_S

    def check():
        if time.monotonic() > end:
            raise TimeoutError

    return check


@contextlib.contextmanager
def nobody_starts_another():
    """Simulate another process that has the lock but never listens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "start", lambda *_: False)
        yield


class Services:
    """The services whose files are in one folder; ended at the end of `with`."""

    def __init__(self, path):
        self.path = Path(path)

    def connect(self, device="cpu"):
        """Return a connection before its first message. Raises NoService."""
        with RuntimeFolder.open(self.path) as folder:
            return connect(device, folder, patience())[0]

    def greet(self, device="cpu", **hello):
        """Return a connection, and the answer of the service to its first message."""
        channel = self.connect(device)
        try:
            return channel, request(channel, {"version": VERSION, **hello}, patience())
        except BaseException:
            channel.close()
            raise

    def pid(self, device="cpu"):
        """Return the service's process id, or None without a service."""
        try:
            with RuntimeFolder.open(self.path) as folder:
                channel, pid = connect(device, folder, patience())
        except NoService:
            return None
        channel.close()
        return pid

    def stats(self, device="cpu"):
        channel, stats = self.greet(device, role="observer")
        channel.close()
        return stats

    def is_locked(self, device="cpu"):
        """Return whether a process holds the device."""
        with (self.path / f"{device}.lock").open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def kill(self, *runtimes, device="cpu"):
        """Kill the service; return when these have noticed, before another one can start."""
        pid = self.pid(device)
        with nobody_starts_another():
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)
            until(lambda: not any(runtime.is_ready() for runtime in runtimes), "the notice")
        return pid

    @contextlib.contextmanager
    def killed(self, device="cpu"):
        """Kill the service, and prevent the start of another one for the duration of `with`."""
        pid = self.pid(device)
        path = self.path / f"{file_name(device)}.lock"
        with path.with_suffix(".held").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            Path(lock.name).replace(
                path
            )  # the file that others will lock; the service has the previous one
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)
            yield

    def names(self):
        return {entry.name for entry in self.path.iterdir()}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.path.is_dir():
            return
        for socket in self.path.glob("*.sock"):
            with contextlib.suppress(PeerGone):
                if (pid := self.pid(socket.stem)) not in (None, os.getpid()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
                        os.kill(pid, signal.SIGTERM)
                    wait_for_end(pid)


class ClientProcess:
    """A process of `service_client`; killed with its forks at the end of `with`."""

    def __init__(self, artifact, *, forks=False):
        """forks: it forks a sleeping process, and prints that process's view of the service."""
        paths = os.pathsep.join(str(TESTS / part) for part in (".", "../plugin", "../simulator"))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "runtime.support.service_client",
                str(artifact),
                *["fork"] * forks,
            ],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._forked = []

    def service(self):
        """Return the service's process id, once this client executes there."""
        return int(self._process.stdout.readline())

    def fork(self):
        """Return the id of the forked process."""
        self._forked.append(int(self._process.stdout.readline()))
        return self._forked[-1]

    def said(self):
        """Return the next printed line."""
        return self._process.stdout.readline().decode().rstrip("\n")

    def leave(self):
        """Let the process end normally; return its exit code."""
        self._process.stdin.close()
        return self._process.wait(TIMEOUT_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        for pid in self._forked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            stream.close()


# ------------------------------------------------------------------- a service in this process


class HeldEngine:
    """Computes y = 2 * x when the test allows it. See `engines.base.Engine`."""

    signature = Signature(
        (GraphTensor("x", DType.FP32, (None,)),), (GraphTensor("y", DType.FP32, (None,)),)
    )
    shapes = None
    lost = False

    def __init__(self, backend):
        self._backend = backend

    def bind(self, largest, memory):
        pass

    def run(self, inputs, outputs):
        self._backend.begun.append(float(inputs["x"][0]))
        with self._backend.changed:
            self._backend.changed.notify_all()
        assert self._backend.ends.acquire(timeout=TIMEOUT_S), "the test holds it for ever"
        if self._backend.gate.is_set():
            self._backend.ends.release()
        if self._backend.raises is not None:
            raise self._backend.raises
        np.multiply(inputs["x"], 2, out=outputs["y"])
        return dict(outputs)

    def weights_bytes(self):
        return 1000

    def device_io_bytes(self):
        return 0

    def intermediates(self, shapes):
        return None

    def close(self):
        self._backend.closed += 1


class HeldBackend:
    """A device on which nothing ends before `let_go`, but for as many as `ends` is released."""

    kind = "npu"  # each client has its own engine there
    name = "held"
    hardware = "held by the test"

    def __init__(self):
        self.memory = HostDevice("held")
        self.memories = (self.memory,)
        self.gate = threading.Event()
        self.ends = threading.Semaphore(0)
        self.changed = threading.Condition()
        self.begun = []
        self.registered = []
        self.closed = 0
        self.raises = None

    def open(self, artifacts, *, threads, outputs):
        return HeldEngine(self)

    def register(self, memory):
        self.registered.append(memory.nbytes)

    def unregister(self, memory):
        self.registered.remove(memory.nbytes)

    def freeze(self):
        pass

    def close(self):
        pass

    def let_go(self):
        self.gate.set()
        self.ends.release()

    def until_begun(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, TIMEOUT_S)


@contextlib.contextmanager
def held_service(path, *, device="held", clock=None, timeouts=None, backend=None):
    """Return a service in this process, for one execution at a time: HeldBackend and server.

    Without `timeouts` it does not end while it has no clients: preparing a model for the first
    client may take longer than the default grace time, and the client would start a process.
    """
    backend = backend or HeldBackend()
    with RuntimeFolder.open(path) as folder:
        server = Server(
            device,
            folder,
            clock=clock or SystemClock(),
            timeouts=timeouts or Timeouts(grace_s=math.inf),
            open_backend=lambda _: backend,
            cores=1,
        )
        thread = threading.Thread(target=lambda: (server.run(), server.close()))
        thread.start()
        try:
            yield backend, server
        finally:
            if isinstance(backend, HeldBackend):
                backend.let_go()
            server.end("the test is over")
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), f"the service did not end within {TIMEOUT_S} s"
