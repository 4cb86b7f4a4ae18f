"""Closed loops of prepared requests, the servers that are asked, and what they compute meanwhile.

Who is answered asks again at once. The bytes are made before, and answers are only counted, so that
little of the machine is the client's.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import select
import socket
import struct
import subprocess
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpack import Encoder

from benchmarks.instruments import ROOT
from tests.support import servers
from tests.support.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    WINDOW_UPDATE,
    frame,
    head,
    settings,
)

#: How much longer than asked for a loop goes on that has no answer yet.
FIRST_ANSWER_S = 20.0
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


# -- the clients


class HttpClient:
    """A connection with one request in flight, out of some that take turns."""

    events = select.EPOLLIN

    def __init__(self, address: str, requests: Sequence[bytes]) -> None:
        self.socket = connected(address)
        self._requests = itertools.cycle(requests)
        self._received = 0
        self._size = 0  # of the answer, once that is known

    def ask(self) -> None:
        """Send the next request."""
        self._received = self._size = 0
        self.socket.sendall(next(self._requests))

    def answers(self) -> int:
        """How many answers what has come makes complete."""
        data = received(self.socket)
        if not self._size:  # a head comes whole: it is short
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the server answers {data[:500]!r}")
            head, _, _ = data.partition(b"\r\n\r\n")
            length = head.lower().partition(b"\ncontent-length: ")[2].partition(b"\r")[0]
            self._size = len(head) + 4 + int(length)
        self._received += len(data)
        return int(self._received == self._size)


class GrpcClient:
    """A connection with some calls of ModelInfer in flight."""

    events = select.EPOLLIN
    method = "ModelInfer"

    def __init__(self, address: str, requests: Sequence[bytes]) -> None:
        self.socket = connected(address)
        encoder = Encoder()
        fields = head(f"/inference.GRPCInferenceService/{self.method}")
        self._block = encoder.encode(fields)
        self._again = encoder.encode(fields)  # which refers to the first
        self._requests = itertools.cycle(requests)
        self._stream = 1
        self._rest = b""
        self._unacknowledged = 0
        opening = PREFACE + settings(_4=2**30, _5=2**22)  # frames as gRPC's own library has them
        self.socket.send(opening + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30)))

    def ask(self) -> None:
        """Send the next request, which is small: it waits for no flow control."""
        self.send(next(self._requests))

    def send(self, request: bytes) -> None:
        """Send a message in a call of its own."""
        parts = [
            frame(HEADERS, END_HEADERS, self._stream, self._block),
            frame(DATA, END_STREAM, self._stream, request),
            *self._acknowledged(),
        ]
        self.socket.sendall(b"".join(parts))
        self._block = self._again
        self._stream += 2

    def _acknowledged(self) -> Iterator[bytes]:
        if self._unacknowledged > 1 << 20:
            yield frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged))
            self._unacknowledged = 0

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """What has come: the kind, the flags, the stream and the payload of each frame."""
        data = self._rest + received(self.socket)
        position = 0
        while len(data) - position >= FRAME_HEAD.size:
            high, low, kind, flags, stream = FRAME_HEAD.unpack_from(data, position)
            size = high << 8 | low
            if len(data) - position < FRAME_HEAD.size + size:
                break
            position += FRAME_HEAD.size + size
            self._unacknowledged += size if kind == DATA else 0
            yield kind, flags, stream, data[position - size : position]
        self._rest = data[position:]

    def answers(self) -> int:
        """How many calls what has come makes complete."""
        return sum(kind == HEADERS and flags & END_STREAM for kind, flags, _, _ in self.frames())


class StreamClient(GrpcClient):
    """A connection with one call of ModelStreamInfer, and some requests in flight on that."""

    method = "ModelStreamInfer"
    #: Messages that are the answer to one request.
    responses = 1

    def __init__(self, address: str, requests: Sequence[bytes]) -> None:
        super().__init__(address, requests)
        self._opening = [frame(HEADERS, END_HEADERS, 1, self._block)]
        self._data = b""
        self._messages = 0

    def send(self, request: bytes) -> None:
        """Send a message on the stream."""
        parts = [*self._opening, frame(DATA, 0, 1, request), *self._acknowledged()]
        self.socket.sendall(b"".join(parts))
        self._opening = []

    def answers(self) -> int:
        """How many answers what has come makes complete."""
        self._data += b"".join(payload for kind, *_, payload in self.frames() if kind == DATA)
        position = 0
        while len(self._data) - position >= MESSAGE_HEAD.size:
            _, size = MESSAGE_HEAD.unpack_from(self._data, position)
            if len(self._data) - position < MESSAGE_HEAD.size + size:
                break
            position += MESSAGE_HEAD.size + size
            self._messages += 1
        self._data = self._data[position:]
        answers, self._messages = divmod(self._messages, self.responses)
        return answers


class DecoupledClient(StreamClient):
    """The same with a model that answers a hundred times."""

    responses = 100


MESSAGE_HEAD = struct.Struct(">BI")
Client = HttpClient | GrpcClient
FRAME_HEAD = struct.Struct(">HBBBI")


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def received(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 17)
    if not data:
        raise SystemExit("the server has closed a connection")
    return data


# -- the loop


def ask_for(
    address: str,
    kind: Callable[[str, Sequence[bytes]], Client],
    requests: Sequence[bytes],
    streams: int,
    in_flight: int,
    seconds: float,
) -> array[float]:
    """Keep so many requests in flight, `streams` to a connection; the latencies in us, in order."""
    clients = [kind(address, requests) for _ in range(-(-in_flight // streams))]
    epoll, by_number = select.epoll(), {client.socket.fileno(): client for client in clients}
    for number, client in by_number.items():
        epoll.register(number, client.events)
    asked: dict[Client, deque[float]] = {client: deque() for client in clients}
    latencies = array("d")
    for number in range(in_flight):
        client = clients[number % len(clients)]
        asked[client].append(time.perf_counter())
        client.ask()
    over = time.perf_counter() + seconds
    while (now := time.perf_counter()) < over or (not latencies and now < over + FIRST_ANSWER_S):
        for number, _ in epoll.poll(1):
            client = by_number[number]
            for _ in range(client.answers()):
                now = time.perf_counter()
                latencies.append((now - asked[client].popleft()) * 1e6)
                asked[client].append(now)
                client.ask()
    for client in clients:
        client.socket.close()
    return array("d", sorted(latencies))


Run = Callable[..., "array[float]"]


@contextlib.contextmanager
def client_process() -> Iterator[Run]:
    """What calls a loop with its arguments in a process of its own, which is the same each time."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield lambda loop, *arguments: pool.apply(loop, arguments)


# -- the servers


@contextlib.contextmanager
def sketch(repository: Path, **_: object) -> Iterator[Any]:
    """The floor: `benchmarks.sketch_server`."""
    (port,) = servers.free_ports(1)
    command = [sys.executable, "-m", "benchmarks.sketch_server", str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    address = f"127.0.0.1:{port}"
    try:
        while True:
            with contextlib.suppress(OSError):
                connected(address).close()
                break
            time.sleep(0.05)
        yield SimpleNamespace(process=process, http=address)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def of_tree(tree: str, repository: Path, **flags: servers.Flag) -> Iterator[servers.Server]:
    """The reference server of another checkout."""
    paths = [tree, f"{tree}/plugin"]
    program = ("-c", f"import runpy, sys; sys.path[:0] = {paths!r}; {RUN}")
    with servers.start_reference_server(repository, program=program, **flags) as server:
        yield server


RUN = "runpy.run_module('reference_server', run_name='__main__')"
STARTERS: dict[str, Callable[..., Any]] = {
    "sketch": sketch,
    "reference": servers.start_reference_server,
    "triton": servers.start_tritonserver,
}


def starter(name: str) -> Callable[..., Any]:
    """What starts the server of that name."""
    kind, _, tree = name.partition(":")
    return partial(of_tree, str(Path(tree).resolve())) if kind == "tree" else STARTERS[name]


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    processes = [pid]
    for each in processes:  # which grows on the way
        for task in Path(f"/proc/{each}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                processes += map(int, (task / "children").read_text().split())
    return processes


def cpu_us(pid: int) -> float:
    """What a process and its descendants have computed so far."""
    ticks = 0
    for each in family(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * TICK_US
