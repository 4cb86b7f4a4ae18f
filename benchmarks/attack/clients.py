"""Clients that are slow, disconnect or truncate their shared memory; failures of the machine."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from contract.wire import ConnectionEnded, read_reply

from benchmarks.attack import Defect
from benchmarks.attack.ground import Ground, connect
from benchmarks.attack.watching import family

_SLOW = 60
"""Concurrent slow clients."""
_DRIP_S = 0.05
_STALLED = 500
_REGION_BYTES = 1 << 20
_RESET = struct.pack("ii", 1, 0)


def inference(model: str, tensor: Mapping[str, object], body: bytes = b"") -> bytes:
    """Return an inference request over HTTP with one input and its binary data."""
    header = json.dumps({"inputs": [tensor]}).encode()
    return (
        b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
        b"Inference-Header-Content-Length: %d\r\n\r\n%b%b"
        % (model.encode(), len(header) + len(body), len(header), header, body)
    )


def binary_input(floats: int) -> dict[str, object]:
    """Describe an input of FP32 elements that are sent as binary data."""
    size = {"binary_data_size": 4 * floats}
    return {"name": "INPUT", "datatype": "FP32", "shape": [floats], "parameters": size}


def slow_writers(ground: Ground) -> str:
    """Requests that are sent one byte at a time."""
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
    request = inference("identity_0", tensor)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(ground.server.http)) for _ in range(_SLOW)]
        sent = 0
        for _ in ground.over():
            for client in slow:
                client.sendall(request[sent % len(request) :][:1])
            sent += 1
            time.sleep(_DRIP_S)
    return f"{_SLOW} clients, {sent} bytes each"


def bodies_stalled(ground: Ground) -> str:
    """Requests whose body does not begin, or stops after its first byte."""
    head = inference("wide", binary_input(1 << 20), b"").partition(b"\r\n\r\n")[0]
    head = head.replace(b"Content-Length: ", b"Content-Length: 4000", 1) + b"\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for number in range(_STALLED):
            stack.enter_context(connect(ground.server.http)).sendall(head + b"{" * (number % 2))
        time.sleep(ground.seconds)
    return f"{_STALLED} clients"


def slow_readers(ground: Ground) -> str:
    """Several pipelined responses of 1 MiB that are read 1 KiB at a time."""
    floats = 1 << 18
    request = inference("wide", binary_input(floats), bytes(4 * floats))
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(ground.server.http)) for _ in range(_SLOW // 4)]
        for client in slow:
            client.settimeout(_DRIP_S)
        for _ in ground.over():
            for client in slow:
                with contextlib.suppress(OSError):
                    client.sendall(request)
                with contextlib.suppress(OSError):
                    client.recv(1024)
    return f"{len(slow)} clients"


def leaving(ground: Ground) -> str:
    """Requests whose client closes or resets the connection before the response."""
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
    request = inference("identity_0", tensor)
    count = 0
    for _ in ground.over():
        with connect(ground.server.http) as client:
            if count % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.sendall(request * (1 + count % 3))
            count += 1
    return f"{count:,} clients"


def memory_cut(ground: Ground) -> str:
    """Shared memory that is truncated to nothing and extended again while requests use it."""
    key = f"attack-{uuid.uuid4().hex}"
    path = Path("/dev/shm") / key
    path.write_bytes(bytes(_REGION_BYTES))
    stop = threading.Event()

    def cut() -> None:
        with path.open("r+b") as shared:
            while not stop.is_set():
                os.ftruncate(shared.fileno(), 0)
                os.ftruncate(shared.fileno(), _REGION_BYTES)
                time.sleep(ground.dice.random() * 0.002)

    tensor = {
        "name": "INPUT",
        "datatype": "FP32",
        "shape": [_REGION_BYTES // 4],
        "parameters": {"shared_memory_region": key, "shared_memory_byte_size": _REGION_BYTES},
    }
    cutter = threading.Thread(target=cut, daemon=True)
    answers = errors = 0
    try:
        base = f"/v2/systemsharedmemory/region/{key}"
        body = json.dumps({"key": f"/{key}", "offset": 0, "byte_size": _REGION_BYTES}).encode()
        head = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
        with connect(ground.server.http) as client, client.makefile("rb") as stream:
            client.sendall(head.format(f"{base}/register", len(body)).encode() + body)
            registered = read_reply(stream)
            if registered.status != 200:
                return f"registration rejected with {registered.status}"
            cutter.start()
            for _ in ground.over():
                client.sendall(inference("wide", tensor))
                if read_reply(stream).status == 200:
                    answers += 1
                else:
                    errors += 1
            client.sendall(head.format(f"{base}/unregister", 0).encode())
            read_reply(stream)
    except (OSError, ConnectionEnded):
        return f"connection closed after {answers + errors:,} requests"
    finally:
        stop.set()
        if cutter.ident is not None:
            cutter.join()
        path.unlink(missing_ok=True)
    return f"{answers:,} responses, {errors:,} errors"


# -- failures of the machine: processes die or stop, descriptors or memory run out

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
    """Return the fields of /proc/PID/stat from the state on. Raise OSError if it is missing."""
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
