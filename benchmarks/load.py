"""Measure `triton-replay load` beside NVIDIA's perf_analyzer: what a request costs the client.

    python -m benchmarks.load                     both servers, about ten minutes
    python -m benchmarks.load --servers reference --rounds 1 --seconds 1

Both ask the same server, in turns, in a closed loop. While one runs, its CPU time and the server's
count of requests are read twice: starting up costs nothing, and a busy machine hardly matters.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.closed_loop import cpu_us
from benchmarks.instruments import ROOT, print_machine_facts
from benchmarks.perf import SERVERS, copy_models
from tests.support.servers import Server

TOOLS = {
    "perf_analyzer": (sys.executable, str(ROOT / "tools" / "oracle.py"), "perf"),
    "load": (sys.executable, "-m", "triton_replay", "load"),
}
WAYS = {
    "HTTP": ("-i", "http"),
    "gRPC": ("-i", "grpc"),
    "gRPC, streams": ("-i", "grpc", "--streaming"),
}
CONCURRENCIES = (1, 8, 32)
MODEL = "identity"


def main() -> None:
    """Measure, and print a row for each way and number of requests in flight."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each tool (default: 3)")
    parser.add_argument("--seconds", type=float, default=3, help="of one turn (default: 3)")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    options = parser.parse_args()
    print_machine_facts()
    with tempfile.TemporaryDirectory(prefix="load-") as directory:
        repository = Path(directory) / "repository"
        copy_models(repository, [MODEL])
        for name in options.servers:
            with SERVERS[name](repository, allow_metrics=False) as server:
                print_rows(name, server, options)


def print_rows(name: str, server: Server, options: argparse.Namespace) -> None:
    """A row for each way and number of requests in flight: the median of the turns."""
    print(f"\n=== {name}: us of CPU time of the client, requests per second and core, per second")
    print(f"{'way':14} {'in flight':>9}  " + "  ".join(f"{tool:>24}" for tool in TOOLS))
    for way, flags in WAYS.items():
        for concurrency in CONCURRENCIES:
            turns: dict[str, list[tuple[float, float]]] = {tool: [] for tool in TOOLS}
            for _ in range(options.rounds):
                for tool in TOOLS:
                    turns[tool].append(turn(server, tool, flags, concurrency, options.seconds))
            cells = []
            for found in turns.values():
                cost = statistics.median(cost for cost, _ in found)
                rate = statistics.median(rate for _, rate in found)
                cells.append(f"{cost:6.1f} {1e6 / cost:8.0f} {rate:8.0f}")
            print(f"{way:14} {concurrency:9}  " + "  ".join(cells), flush=True)


def turn(
    server: Server, tool: str, flags: tuple[str, ...], concurrency: int, seconds: float
) -> tuple[float, float]:
    """CPU time of the client for a request in microseconds, and requests per second."""
    address = server.grpc if "grpc" in flags else server.http
    asynchronous = ("--async",) if "--streaming" in flags else ()  # perf_analyzer needs it
    words = ("-m", MODEL, "-u", address, *flags, *asynchronous)
    endless = ("-p", "600000", "--concurrency-range", str(concurrency))
    with running(*TOOLS[tool], *words, *endless) as client:
        before = count(server)
        while count(server) < before + 100:  # until it has started
            if client.poll() is not None:
                raise SystemExit(f"{tool} has ended by itself: {client.args}")
            time.sleep(0.05)
        time.sleep(0.3)
        began, cpu, first = time.perf_counter(), cpu_us(client.pid), count(server)
        time.sleep(seconds)
        cpu, requests = cpu_us(client.pid) - cpu, count(server) - first
        took = time.perf_counter() - began
    return cpu / requests, requests / took


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A client that runs until the block ends."""
    quiet = subprocess.DEVNULL
    environment = {"PYTHONPATH": str(ROOT / "replay"), "PATH": "/usr/bin:/bin"}
    client = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=quiet, stderr=quiet)
    try:
        yield client
    finally:
        client.kill()
        client.wait()


def count(server: Server) -> int:
    """Requests that the server has answered so far."""
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port))
    try:
        connection.request("GET", f"/v2/models/{MODEL}/stats")
        (stats,) = json.loads(connection.getresponse().read())["model_stats"]
    finally:
        connection.close()
    return int(stats["inference_count"])


if __name__ == "__main__":
    main()
