"""Closed loops of prepared requests, the servers that are asked, and what they compute meanwhile.

Who is answered asks again at once. The bytes are made before, and answers are only counted, so that
little of the machine is the client's.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
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

from benchmarks.clients import Client, connected
from benchmarks.instruments import ROOT
from tests.support import servers

#: How much longer than asked for a loop goes on that has no answer yet.
FIRST_ANSWER_S = 20.0
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


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
