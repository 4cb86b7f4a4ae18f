"""Closed loops of prepared requests, the servers under test, and the CPU time they use.

The requests are bytes prepared in advance, and responses are only counted, so that the client uses
little of the machine. `triton_replay.loading` generates the load.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.instruments import ROOT
from tests.support import servers
from triton_replay.addresses import parse_address
from triton_replay.loading.loop import Loop
from triton_replay.wire.grpc_connection import GrpcConnection
from triton_replay.wire.grpc_messages import SERVICE
from triton_replay.wire.http_connection import HttpConnection
from triton_replay.wire.sockets import Connection, Resolved, resolve

FIRST_RESPONSE_S = 20.0
"""Time until the first response, if none arrives during the load."""
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


# -- the client


@dataclass(frozen=True)
class Http:
    """HTTP with one request in flight per connection."""

    def connect(self, server: Resolved, loop: Loop) -> Connection:
        return HttpConnection(server, loop.poll, loop.by_number)


@dataclass(frozen=True)
class Grpc:
    """gRPC with several calls in flight per connection.

    Args:
        calls: Concurrent calls per connection.
        streaming: Whether the calls are ModelStreamInfer, with one request in flight each.
        many: Whether a request may have any number of responses, of which the last is marked.
    """

    calls: int = 1
    streaming: bool = False
    many: bool = False

    def connect(self, server: Resolved, loop: Loop) -> Connection:
        method = "ModelStreamInfer" if self.streaming else "ModelInfer"
        return GrpcConnection(
            server,
            loop.poll,
            loop.by_number,
            f"{SERVICE}/{method}",
            (),
            self.calls,
            streaming=self.streaming,
            many=self.many,
        )


Client = Http | Grpc
HTTP = Http()


def closed_loop(
    address: str, client: Client, requests: Sequence[bytes], in_flight: int, seconds: float
) -> array[float]:
    """Keep `in_flight` requests in flight; return the sorted latencies in microseconds."""
    server, turn = resolve(parse_address(address, "server"), "server"), itertools.cycle(requests)
    loop = Loop(
        partial(client.connect, server),
        lambda slot: next(turn),
        lambda slot: None,
        timeout=FIRST_RESPONSE_S,
    )
    try:
        loop.keep(in_flight)
        end = time.perf_counter_ns() + round(seconds * 1e9)
        loop.run(end)
        if not loop.record.ends:
            loop.run(end + round(FIRST_RESPONSE_S * 1e9), ends=1)
    finally:
        loop.close()
    record = loop.record
    if record.failed:
        raise SystemExit(f"{address}: request failed: {next(iter(record.failed.values()))}")
    pairs = zip(record.starts, record.ends, strict=True)
    return array("d", sorted((end - start) / 1e3 for start, end in pairs))


Run = Callable[..., "array[float]"]


@contextlib.contextmanager
def client_process() -> Iterator[Run]:
    """Yield a function that calls its argument in a client process, the same for all calls."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield lambda loop, *arguments: pool.apply(loop, arguments)


def connect(address: str) -> socket.socket:
    """Open a blocking TCP connection."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


# -- the servers


@contextlib.contextmanager
def sketch(repository: Path, **_: object) -> Iterator[Any]:
    """Start `benchmarks.sketch_server`, the lower bound of the comparison."""
    (port,) = servers.free_ports(1)
    command = [sys.executable, "-m", "benchmarks.sketch_server", str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    address = f"127.0.0.1:{port}"
    try:
        while True:
            with contextlib.suppress(OSError):
                connect(address).close()
                break
            time.sleep(0.05)
        yield SimpleNamespace(process=process, http=address)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def of_tree(tree: str, repository: Path, **flags: servers.Flag) -> Iterator[servers.Server]:
    """Start the reference server of another checkout."""
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
    """Return the function that starts the server with this name; `tree:PATH` is a checkout."""
    kind, _, tree = name.partition(":")
    return partial(of_tree, str(Path(tree).resolve())) if kind == "tree" else STARTERS[name]


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    processes = [pid]
    for each in processes:  # the list grows during the loop
        for task in Path(f"/proc/{each}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                processes += map(int, (task / "children").read_text().split())
    return processes


def cpu_us(pid: int) -> float:
    """Return the CPU time of a process and its descendants, in microseconds."""
    ticks = 0
    for each in family(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * TICK_US
