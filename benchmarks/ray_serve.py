"""What a request costs on Ray Serve, against one server of the same repository.

    python -m benchmarks.ray_serve                  under two minutes
    python -m benchmarks.ray_serve --requests 2000 --clients 1 8

A cluster of one node on this machine, with one replica of each model and one of the ingress. Both
are asked in turns, each client over a connection of its own, which stays open; the rounds' medians
are shown. `CPU` is the time of all processes of that side together, clients left out.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.bars import copy_add_sub
from benchmarks.closed_loop import cpu_us, family
from benchmarks.instruments import percentile, print_machine_facts, print_table
from benchmarks.service_server import as_sent
from tests.support.servers import ROOT, free_ports, start_reference_server

ROUNDS = 3
MODEL = "add_sub"
Body = tuple[bytes, dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ray_serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=500, help="of each client a round (500)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16], help="at once (1 16)")
    options = parser.parse_args()
    print_machine_facts()
    small = np.arange(16, dtype=np.float32).reshape(1, 16)
    large = np.zeros((1, 65536), dtype=np.float32)
    bodies = {
        "64 B": as_sent({"INPUT0": small, "INPUT1": small}),
        "256 KiB": as_sent({"INPUT0": large, "INPUT1": large}),
    }
    with tempfile.TemporaryDirectory(prefix="ray-serve-") as directory:
        repository = Path(directory)
        copy_add_sub(repository, in_process=True)
        config = repository / MODEL / "config.pbtxt"
        config.write_text(config.read_text().replace("dims: [ 16 ]", "dims: [ -1 ]"))
        with start_reference_server(repository) as one, on_ray(repository) as (port, roots):
            sides = {
                "one server": (one.http, [one.process.pid]),
                "Ray Serve": (f"127.0.0.1:{port}", roots),
            }
            rows = [
                row
                for name, body in bodies.items()
                for clients in options.clients
                for row in compared(sides, name, body, clients, options.requests)
            ]
    print_table(["body", "clients", "", "requests/s", "median", "99 %", "CPU/request"], rows)


@contextlib.contextmanager
def on_ray(repository: Path) -> Iterator[tuple[int, list[int]]]:
    """The port of the repository on Ray Serve, and the processes that all of Ray descend from."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the address is the loopback's
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "plugin"))),
    }
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    from reference_server.ray import Arguments, app

    others = set(family(os.getpid()))
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200_000_000,
        _node_ip_address="127.0.0.1",
    )
    try:
        (port,) = free_ports(1)
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
        serve.run(app(Arguments(model_repository=str(repository))))
        started = [pid for pid in family(os.getpid()) if pid not in others]
        below = {pid for parent in started for pid in family(parent)[1:]}
        yield port, [pid for pid in started if pid not in below]
    finally:
        serve.shutdown()
        ray.shutdown()


def compared(
    sides: Mapping[str, tuple[str, list[int]]], name: str, body: Body, clients: int, requests: int
) -> Iterator[list[object]]:
    """A row for each side, which are asked in turns."""
    found: dict[str, list[tuple[float, list[float], float]]] = {side: [] for side in sides}
    for _ in range(ROUNDS + 1):  # the first warms up
        for side, (address, roots) in sides.items():
            before = sum(map(cpu_us, roots))
            began = time.perf_counter()
            latencies = load(address, body, clients, requests)
            seconds = time.perf_counter() - began
            cpu = (sum(map(cpu_us, roots)) - before) / len(latencies)
            found[side].append((len(latencies) / seconds, latencies, cpu))
    for side, rounds in found.items():
        kept = rounds[1:]

        def median(values: Iterable[float]) -> float:
            return statistics.median(values)

        yield [
            name,
            clients,
            side,
            f"{median(rate for rate, _, _ in kept):,.0f}",
            *(
                f"{median(percentile(latencies, share) for _, latencies, _ in kept) * 1e3:.2f} ms"
                for share in (50, 99)
            ),
            f"{median(cpu for _, _, cpu in kept) / 1e3:.2f} ms",
        ]


def load(address: str, body: Body, clients: int, requests: int) -> list[float]:
    """The seconds that each of the requests took; fails with the first that is refused."""

    def ask_on(_: int) -> list[float]:
        found = []
        with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
            for _ in range(requests):
                began = time.perf_counter()
                connection.request("POST", f"/v2/models/{MODEL}/infer", *body)
                reply = connection.getresponse()
                answer = reply.read()
                found.append(time.perf_counter() - began)
                if reply.status != 200:
                    raise SystemExit(f"{address}: {reply.status} {answer[:200]!r}")
        return found

    with ThreadPoolExecutor(clients) as pool:
        return [seconds for each in pool.map(ask_on, range(clients)) for seconds in each]


if __name__ == "__main__":
    main()
