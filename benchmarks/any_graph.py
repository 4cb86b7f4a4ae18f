"""Graphs of every kind on both servers: what batching by ge_runtime gains over not batching.

    python -m benchmarks.any_graph                                  half an hour
    python -m benchmarks.any_graph --models recogniser --servers reference --turns 1
    python -m benchmarks.any_graph --plot any_graph.png --json any_graph.json

Four ways to serve the same graph, which take turns:

1. alone: ge_runtime without `dynamic_batching`, so one request at a time;
2. longest: plain code that joins what the server hands over, padded to the longest of it;
3. maximum: the same, padded to the limits of config.pbtxt;
4. ge_runtime: the model of model_repository as it is.

Detector and recogniser have no mask: 2 and 3 give wrong answers there, and stand for cost alone.
The padding is what the models themselves count, from the metrics page.
Clients are closed loops in one process on the same machine; all ways get the same requests.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf import text_format

from benchmarks import traces
from benchmarks.instruments import (
    ROOT,
    percentile,
    print_machine_facts,
    print_table,
    read_config,
)
from benchmarks.ragged_server import Load, Sent, client, over
from tests.support.servers import Server, start_reference_server, start_tritonserver
from tools import oracle

MODELS = ROOT / "model_repository"
PLAIN = ROOT / "benchmarks" / "any_graph_repository" / "joined.py"
WAYS = ("alone", "longest", "maximum", "ge_runtime")
SERVERS = {"triton": start_tritonserver, "reference": start_reference_server}
REQUESTS = 400  # then from the first one again
SETTLE_S = 0.6  # counts are exported a quarter of a second later
STRIDE = 32

WIDTHS = traces.LogNormal(median=320, largest=1280, least=64)
SIDES = traces.LogNormal(median=288, largest=640, least=64)


@dataclass(frozen=True)
class Kind:
    """A model, what is sent to it and what is wanted of it."""

    model: str
    outputs: tuple[str, ...]
    draw: Callable[[np.random.Generator], Iterator[dict[str, np.ndarray]]]


def texts(rng: np.random.Generator) -> Iterator[dict[str, np.ndarray]]:
    for length in traces.draw_mix(rng, REQUESTS):
        ids = rng.integers(1, traces.VOCABULARY, (1, length))
        yield {"input_ids": ids, "lengths": np.array([[length]], np.int32)}


def lines(rng: np.random.Generator) -> Iterator[dict[str, np.ndarray]]:
    for width in in_strides(WIDTHS.draw(rng, REQUESTS)):
        yield {"line": rng.integers(0, 256, (1, 48, width, 3), np.uint8)}


def pages(rng: np.random.Generator) -> Iterator[dict[str, np.ndarray]]:
    for height, width in in_strides(SIDES.draw(rng, 2 * REQUESTS)).reshape(-1, 2):
        yield {"page": rng.integers(0, 256, (1, height, width, 3), np.uint8)}


def in_strides(sizes: np.ndarray) -> np.ndarray:
    return -(-sizes // STRIDE) * STRIDE


KINDS = {
    "encoder": Kind("text_encoder", ("embedding",), texts),
    "recogniser": Kind("ocr_recognition", ("character", "probability"), lines),
    "detector": Kind("ocr_detection", ("probability",), pages),
}


def main() -> None:
    options = parse_arguments()
    if "triton" in options.servers and not oracle.is_installed():
        raise SystemExit("tritonserver is not installed; run `make oracle`")
    print_machine_facts()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for name in options.models:
        kind = KINDS[name]
        requests = [as_sent(kind, tensors) for tensors in kind.draw(np.random.default_rng(11))]
        for server in options.servers:
            results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(options.turns):
                for way in WAYS:
                    with (
                        repository(kind, way) as folder,
                        SERVERS[server](folder) as running,
                    ):
                        results[way].append(asyncio.run(measure(running, requests, options)))
            figures[f"{name} on {server}"] = rows = summary(results)
            print_results(f"{name} on {server}, {options.turns} turn(s)", rows)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if options.plot:
        plot(figures, options.plot)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.any_graph",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--clients", type=int, default=16, help="requests in flight (16)")
    parser.add_argument("--seconds", type=float, default=8, help="measured, of each way (8)")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds before (3)")
    parser.add_argument("--turns", type=int, default=5, help="the median counts (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (needs matplotlib)")
    return parser.parse_args()


@contextmanager
def repository(kind: Kind, way: str) -> Iterator[Path]:
    """The model, served in this way, in a folder of its own."""
    source = MODELS / kind.model
    with tempfile.TemporaryDirectory(prefix="any-graph-") as directory:
        target = Path(directory) / kind.model
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".cache"))
        config = read_config(source)
        if way == "alone":
            config.ClearField("dynamic_batching")
        elif way != "ge_runtime":
            shutil.copy(PLAIN, target / "1" / "model.py")
            config.parameters["pad_to"].string_value = way
            kept = [output for output in config.output if output.name in kind.outputs]
            del config.output[:]
            config.output.extend(kept)
        (target / "config.pbtxt").write_text(text_format.MessageToString(config))
        yield Path(directory)


def as_sent(kind: Kind, tensors: dict[str, np.ndarray]) -> Sent:
    """A binary request; its useful elements are those of the first tensor."""
    types = {"int64": "INT64", "int32": "INT32", "uint8": "UINT8"}
    inputs = [
        {
            "name": name,
            "datatype": types[array.dtype.name],
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in tensors.items()
    ]
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in kind.outputs]
    header = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    body = header + b"".join(array.tobytes() for array in tensors.values())
    head = (
        f"POST /v2/models/{kind.model}/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return Sent(head.encode() + body, next(iter(tensors.values())).size)


async def measure(
    server: Server, requests: list[Sent], options: argparse.Namespace
) -> dict[str, float]:
    """Load the server; what clients saw, and what its processes took for it."""
    load, sent = Load(), itertools.cycle(requests)
    clients = [asyncio.create_task(client(server.http, sent, load)) for _ in range(options.clients)]
    try:
        await over(clients, options.warm_up)
        started, cpu = time.perf_counter(), cpu_seconds(server.process.pid)
        useful, executed = await asyncio.to_thread(elements_of, server)
        # A slow machine may need the time more than once for a first answer.
        while not load.seconds:
            load.counting = True
            await over(clients, options.seconds)
        load.counting, seconds = False, time.perf_counter() - started
        cpu = cpu_seconds(server.process.pid) - cpu
        await asyncio.sleep(SETTLE_S)  # clients go on meanwhile, with requests alike
        useful_after, executed_after = await asyncio.to_thread(elements_of, server)
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return {
        "items": len(load.seconds) / seconds,
        "cpu_ms": cpu / len(load.seconds) * 1e3,
        "p50_ms": percentile(load.seconds, 50) * 1e3,
        "p99_ms": percentile(load.seconds, 99) * 1e3,
        "padding": 1 - (useful_after - useful) / (executed_after - executed),
    }


def elements_of(server: Server) -> tuple[float, float]:
    """Useful and executed elements that the one model has counted so far."""
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    useful, executed = (
        sum(float(line.rpartition(" ")[2]) for line in lines if f"_{kind}_elements_total{{" in line)
        for kind in ("useful", "executed")
    )
    return useful, executed


def cpu_seconds(pid: int) -> float:
    """Of a process and of all that descend from it and live."""
    parents, seconds = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        seconds[process] = (int(fields[11]) + int(fields[12])) / 100
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(seconds.get(process, 0) for process in family)


def summary(results: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians over the turns; ratios to `alone` are of the same turn, with their spread."""
    rows = {}
    for way, turns in results.items():
        gains = sorted(
            turn["items"] / alone["items"]
            for turn, alone in zip(turns, results["alone"], strict=True)
        )
        rows[way] = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]} | {
            "gain": statistics.median(gains),
            "least_gain": gains[0],
            "most_gain": gains[-1],
        }
    return rows


def print_results(title: str, rows: dict[str, dict[str, float]]) -> None:
    print(f"\n=== {title}")
    print_table(
        ["way", "items/s", "of alone", "CPU ms/item", "padding", "p50 ms", "p99 ms"],
        [
            [
                way,
                f"{row['items']:.1f}",
                f"{row['gain']:.2f}x ({row['least_gain']:.2f} to {row['most_gain']:.2f})",
                f"{row['cpu_ms']:.1f}",
                f"{row['padding']:.2f}",
                f"{row['p50_ms']:.0f}",
                f"{row['p99_ms']:.0f}",
            ]
            for way, row in rows.items()
        ],
    )


def plot(figures: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    """Draw what each way gains over no batching, with its spread, and CPU time of medians.

    Needs matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (gains, costs) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for offset, way in enumerate(WAYS[1:]):
        rows = [models[way] for models in figures.values()]
        places = np.arange(len(figures)) + offset * 0.27
        middles = np.array([row["gain"] for row in rows])
        spread = np.array([(row["least_gain"], row["most_gain"]) for row in rows]).T
        errors = np.abs(spread - middles)
        gains.bar(places, middles, 0.27, align="edge", label=way, yerr=errors, capsize=2)
        alone = np.array([models["alone"]["cpu_ms"] for models in figures.values()])
        costs.bar(places, [row["cpu_ms"] for row in rows] / alone, 0.27, align="edge")
    costs.set_yscale("log")
    titles = ("items/s, of one at a time", "CPU time per item, of one at a time")
    names = [name.replace(" on ", "\n") for name in figures]
    for panel, title in zip((gains, costs), titles, strict=True):
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_xticks(np.arange(len(figures)) + 0.4, names)
        panel.set_title(title)
    gains.legend()
    figure.savefig(path, dpi=110)
    print(f"\n{path} written")


if __name__ == "__main__":
    main()
