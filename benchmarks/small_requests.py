"""What a small request costs: requests per second and CPU time, of both servers and of a sketch.

    python -m benchmarks.small_requests                          five turns of each, seven minutes
    python -m benchmarks.small_requests --turns 1 --seconds 1    a look, under a minute
    python -m benchmarks.small_requests --servers reference tree:../before

The model is `add_sub`: two FP32 inputs of [1, 16], as many outputs, `dynamic_batching {}`. The load
is a closed loop of prepared bytes in a process of its own, so that little of the machine is the
client's. CPU time is that of all the server's processes. Servers take turns; the tables show the
medians. `tree:PATH` is the reference server of another checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from hpack import Encoder
from tritonclient.grpc import service_pb2

from benchmarks.instruments import ROOT, percentile, print_machine_facts, print_table
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
    message,
    settings,
)

REPOSITORY = ROOT / "benchmarks" / "micro_repository"
VALUES = np.arange(16, dtype=np.float32)
WARM_UP_S = 0.5
STREAMS = 6  # of a connection, as perf_analyzer shares one
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


# -- what is sent


def http_request(*, binary: bool) -> bytes:
    """A request, with its tensors as binary data or as JSON."""
    inputs: list[dict[str, Any]] = [
        {"name": name, "datatype": "FP32", "shape": [1, 16]} for name in ("INPUT0", "INPUT1")
    ]
    for tensor in inputs:
        if binary:
            tensor["parameters"] = {"binary_data_size": VALUES.nbytes}
        else:
            tensor["data"] = VALUES.tolist()
    outputs = [
        {"name": name, "parameters": {"binary_data": binary}} for name in ("OUTPUT0", "OUTPUT1")
    ]
    text = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    body = text + VALUES.tobytes() * 2 if binary else text
    length = f"Inference-Header-Content-Length: {len(text)}\r\n" if binary else ""
    lines = f"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: localhost\r\n{length}"
    return f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def grpc_request() -> bytes:
    """A message of ModelInfer, with its prefix."""
    request = service_pb2.ModelInferRequest(model_name="add_sub")
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 16])
        request.raw_input_contents.append(VALUES.tobytes())
    return message(request.SerializeToString())


# -- the load: who is answered asks again at once


class HttpClient:
    """A connection with one request in flight."""

    def __init__(self, address: str, request: bytes) -> None:
        self.socket = connected(address)
        self._request = request
        self._size = self._lacks = 0  # all answers are as long as the first

    def ask(self) -> None:
        self._lacks = self._size
        self.socket.send(self._request)

    def answers(self) -> int:
        """How many answers what has come makes complete."""
        data = received(self.socket)
        if not self._size:
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the server answers {data[:200]!r}")
            head, _, _ = data.partition(b"\r\n\r\n")
            lines = dict(line.lower().split(b": ") for line in head.split(b"\r\n")[1:])
            self._size = self._lacks = len(head) + 4 + int(lines[b"content-length"])
        self._lacks -= len(data)
        return int(not self._lacks)


class GrpcClient:
    """A connection with some calls of ModelInfer in flight."""

    def __init__(self, address: str, request: bytes) -> None:
        self.socket = connected(address)
        encoder = Encoder()
        fields = head("/inference.GRPCInferenceService/ModelInfer")
        self._block = encoder.encode(fields)
        self._again = encoder.encode(fields)  # which refers to the first
        self._request = request
        self._stream = 1
        self._rest = b""
        self._unacknowledged = 0
        opening = PREFACE + settings(_4=2**30)
        self.socket.send(opening + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30)))

    def ask(self) -> None:
        parts = [
            frame(HEADERS, END_HEADERS, self._stream, self._block),
            frame(DATA, END_STREAM, self._stream, self._request),
        ]
        if self._unacknowledged > 1 << 20:
            parts.append(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged)))
            self._unacknowledged = 0
        self.socket.send(b"".join(parts))
        self._block = self._again
        self._stream += 2

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
        return sum(kind == HEADERS and flags & END_STREAM for kind, flags, _, _ in self.frames())


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


class Load(NamedTuple):
    """A way to ask; `streams` requests are in flight on each connection."""

    client: Callable[[str, bytes], Client]
    request: bytes
    streams: int = 1


LOADS = {
    "http": Load(HttpClient, http_request(binary=True)),
    "json": Load(HttpClient, http_request(binary=False)),
    "grpc": Load(GrpcClient, grpc_request(), STREAMS),
}


def ask_for(address: str, load: Load, in_flight: int, seconds: float) -> array[float]:
    """Keep so many requests in flight; the latencies in microseconds, in order of size."""
    clients = [load.client(address, load.request) for _ in range(-(-in_flight // load.streams))]
    epoll, by_number = select.epoll(), {client.socket.fileno(): client for client in clients}
    for number in by_number:
        epoll.register(number, select.EPOLLIN)
    asked: dict[Client, deque[float]] = {client: deque() for client in clients}
    latencies = array("d")
    for number in range(in_flight):
        client = clients[number % len(clients)]
        asked[client].append(time.perf_counter())
        client.ask()
    over = time.perf_counter() + seconds
    while (now := time.perf_counter()) < over:
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


def in_a_process(*arguments: Any) -> array[float]:
    """`ask_for` in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(ask_for, arguments)


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
    program = ("-c", f"import sys; sys.path[:0] = [{tree!r}, {tree + '/plugin'!r}]; {RUN}")
    with servers.start_reference_server(repository, program=program, **flags) as server:
        yield server


RUN = "from reference_server.cli import main; sys.exit(main())"
STARTERS: dict[str, Callable[..., Any]] = {
    "sketch": sketch,
    "reference": servers.start_reference_server,
    "triton": servers.start_tritonserver,
}


def starter(name: str) -> Callable[..., Any]:
    """What starts the server of that name."""
    kind, _, tree = name.partition(":")
    return partial(of_tree, str(Path(tree).resolve())) if kind == "tree" else STARTERS[name]


def cpu_us(pid: int) -> float:
    """What a process and its descendants have computed so far."""
    processes = [pid]
    for each in processes:  # which grows on the way
        for task in Path(f"/proc/{each}/task").iterdir():
            processes += map(int, (task / "children").read_text().split())
    ticks = 0
    for each in processes:
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * TICK_US


# -- the command


class Result(NamedTuple):
    """One turn at one point; times in microseconds."""

    load: str
    in_flight: int
    server: str
    per_second: float
    cpu: float
    p50: float
    p99: float


def measure(name: str, options: argparse.Namespace) -> Iterator[Result]:
    """One turn of one server."""
    with starter(name)(REPOSITORY, allow_metrics=False) as server:
        for load in options.loads:
            address = server.grpc if load == "grpc" and name != "sketch" else server.http
            if name == "sketch" and load != "http":
                continue
            in_a_process(address, LOADS[load], max(options.in_flight), WARM_UP_S)
            for in_flight in options.in_flight:
                before = cpu_us(server.process.pid)
                latencies = in_a_process(address, LOADS[load], in_flight, options.seconds)
                count = len(latencies)
                yield Result(
                    *(load, in_flight, name, count / options.seconds),
                    (cpu_us(server.process.pid) - before) / count,
                    *(percentile(latencies, share) for share in (50, 99)),
                )


def main() -> None:
    """Measure, and print a table for each load."""
    options = parse_arguments()
    print_machine_facts()
    results: list[Result] = []
    for turn in range(options.turns):
        for name in options.servers:
            print(f"turn {turn + 1} of {options.turns}: {name}", file=sys.stderr)
            results += measure(name, options)
    medians = {
        key: Result(*key, *map(statistics.median, zip(*(each[3:] for each in group), strict=True)))
        for key, group in grouped(results).items()
    }
    for load in options.loads:
        print(f"\n=== {load}: medians of {options.turns} turns of {options.seconds:g} s")
        print_table(
            HEADINGS, [row(each, medians) for each in medians.values() if each.load == load]
        )
    if options.json:
        options.json.write_text(json.dumps([each._asdict() for each in results], indent=1) + "\n")


HEADINGS = ("in flight", "server", "req/s", "CPU us", "p50 us", "p99 us", "req/s x", "CPU x")


def grouped(results: list[Result]) -> dict[tuple[str, int, str], list[Result]]:
    """The turns of each point, in the order of the table."""
    groups: dict[tuple[str, int, str], list[Result]] = {}
    for each in sorted(results, key=lambda each: each.in_flight):
        groups.setdefault(each[:3], []).append(each)
    return groups


def row(each: Result, medians: dict[tuple[str, int, str], Result]) -> list[object]:
    """A line of the table; the ratios say how many times better than tritonserver."""
    real = medians.get((each.load, each.in_flight, "triton"))
    ratios = ("", "") if real is None else (each.per_second / real.per_second, real.cpu / each.cpu)
    shown = [f"{ratio:.2f}" if ratio else "" for ratio in ratios]
    figures = [f"{figure:,.0f}" for figure in (each.per_second, each.cpu, each.p50, each.p99)]
    return [each.in_flight, each.server, *figures, *shown]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.small_requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--servers", nargs="+", default=list(STARTERS), metavar="SERVER")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--in-flight", nargs="+", type=int, default=[1, 8, 32], metavar="N")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each point (2)")
    parser.add_argument("--turns", type=int, default=5, help="of each server (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each turn's figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
