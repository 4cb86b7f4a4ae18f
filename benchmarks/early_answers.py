"""Early answers in NVIDIA's tritonserver: answers that leave with their execution, or all at once.

    python -m benchmarks.early_answers                     about three minutes
    python -m benchmarks.early_answers --traces mix --rounds 5 --seconds 10

The wait in the window is the time from the beginning of a request batch until an answer leaves, of
the mean request. It is measured twice:

1. The same request batches in this process, with early answers and without, in turns.
2. One server has model_repository/text_encoder twice, with `early_answers: true` and `false`, and
   the same cost of executions. Both get the same rows in the same order, in turns. The wait is
   here what the models' own metrics say, against all answers at the end of the same batches.
   First by clients that wait for their answer (which ask again the sooner they have it), then by
   requests that arrive by themselves, at a share of what the server answered before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from google.protobuf import text_format

from benchmarks import traces
from benchmarks.instruments import (
    open_runtime,
    percentile,
    print_machine_facts,
    print_table,
    read_config,
)
from benchmarks.ragged import as_request
from benchmarks.ragged_server import RAGGED, ROWS_SENT, Sent, as_sent, run_load
from ge_runtime.runtime import Runtime
from tests.support.servers import Server, start_tritonserver
from tools import oracle

WAYS = {"early": "true", "all at once": "false"}
"""Name of a way: its `early_answers`."""

COUNTED = ("answer_seconds", "early_seconds", "early_answers", "launches", "launch_seconds")
SETTLE_S = 0.6  # counts are exported a quarter of a second later


def main() -> None:
    options = parse_arguments()
    if not oracle.is_installed():
        raise SystemExit("tritonserver is not installed; run `make oracle`")
    print_machine_facts()
    waits = {trace: measure_windows(trace, options) for trace in options.traces}
    print_windows(waits)
    results: dict[str, dict[str, list[dict]]] = {}
    with (
        repository(options.cost) as folder,
        start_tritonserver(folder, allow_grpc=False) as server,
    ):
        for trace in options.traces:
            lengths = traces.token_lengths(trace, ROWS_SENT, options.seed)
            rows = traces.token_rows(lengths, options.seed)
            runs: dict[str, list[dict]] = {way: [] for way in WAYS}
            for turn in range(options.rounds):
                for way in list(WAYS) if turn % 2 == 0 else reversed(WAYS):
                    requests = [as_sent(model_of(way), row, 0) for row in rows]
                    runs[way].append(measure(server, model_of(way), requests, options))
            results[trace] = runs
            told = f"{options.clients} clients"
            print_results(f"{trace}: {told}", runs, options)
            whole = statistics.median(turn["requests_per_second"] for turn in runs["all at once"])
            rate = whole * options.load
            runs = {way: [] for way in WAYS}
            for turn in range(options.rounds):
                for way in list(WAYS) if turn % 2 == 0 else reversed(WAYS):
                    requests = [as_sent(model_of(way), row, 0) for row in rows]
                    own = arrivals(rate, options.seed + turn)
                    runs[way].append(measure(server, model_of(way), requests, options, own))
            results[f"{trace}, arriving"] = runs
            told = f"{rate:.0f} requests arrive a second, {options.load:g} of that"
            print_results(f"{trace}: {told}", runs, options)
    if options.json:
        options.json.write_text(json.dumps({"windows": waits, "server": results}, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.early_answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--traces", nargs="+", choices=traces.TOKEN_TRACES, default=["mix", "queries"]
    )
    parser.add_argument("--requests", type=int, default=32, help="in a batch, in process (32)")
    parser.add_argument("--batches", type=int, default=20, help="in process, of each trace (20)")
    parser.add_argument("--clients", type=int, default=32, help="requests in flight (32)")
    parser.add_argument("--seconds", type=float, default=6, help="measured, of each turn (6)")
    parser.add_argument("--warm-up", type=float, default=1, help="seconds before each (1)")
    parser.add_argument("--rounds", type=int, default=5, help="turns; the median counts (5)")
    parser.add_argument(
        "--load",
        type=float,
        default=0.8,
        help="of what is answered with clients, so much arrives by itself (0.8)",
    )
    parser.add_argument("--seed", type=int, default=11, help="of lengths and contents (11)")
    parser.add_argument(
        "--cost",
        default="launch_us=1700, element_ns=83000, element2_ns=60",
        help="of executions, the same for both (as calibrated on two cores)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    return parser.parse_args()


# ---------------------------------------------------------------------------------- in process


def measure_windows(trace: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Of each request batch the seconds it takes, and what its mean request waits."""
    lengths = traces.token_lengths(trace, options.requests * options.batches, options.seed)
    batches = traces.batches(traces.token_rows(lengths, options.seed), options.requests)
    runtime = open_runtime(RAGGED / "1", read_config(RAGGED), {"cost": options.cost})
    seen: dict[str, list[float]] = {"early": [], "early wait": [], "all at once": []}
    try:
        for turn, batch in enumerate(batches):
            requests = [as_request(row) for row in batch]
            for way in list(WAYS) if turn % 2 == 0 else reversed(WAYS):
                if way == "early":
                    seconds, wait = early_window(runtime, requests)
                    seen["early wait"].append(wait)
                else:
                    seconds = timed(lambda own=requests: runtime.infer(own))
                seen[way].append(seconds)
    finally:
        runtime.close()
    return seen


def early_window(runtime: Runtime, requests: list) -> tuple[float, float]:
    """Seconds of the batch, and of its mean request until its answer left."""
    left: list[float] = []
    started = time.perf_counter()
    runtime.infer(requests, leave=lambda place, answer: left.append(time.perf_counter() - started))
    seconds = time.perf_counter() - started
    return seconds, (sum(left) + seconds * (len(requests) - len(left))) / len(requests)


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def print_windows(waits: dict[str, dict[str, list[float]]]) -> None:
    print("\n=== the same request batches in this process")
    print_table(
        ["trace", "batches", "ms, all at once", "ms, early", "of it", "wait in window"],
        [
            [
                trace,
                len(seen["early"]),
                f"{statistics.fmean(seen['all at once']) * 1e3:.0f}",
                f"{statistics.fmean(seen['early']) * 1e3:.0f}",
                f"{ratio(seen['early'], seen['all at once']):.3f}x",
                f"{ratio(seen['early wait'], seen['all at once']):.3f}x",
            ]
            for trace, seen in waits.items()
        ],
    )
    print("of it, wait: medians of the batches, each against all answers at once")


def ratio(of: list[float], to: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


# --------------------------------------------------------------------------------- on a server


def model_of(way: str) -> str:
    return f"{RAGGED.name}_{way.replace(' ', '_')}"


@contextmanager
def repository(cost: str) -> Iterator[Path]:
    """The model once for each way: the real server writes into what it serves."""
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.onnx", "*.pt2")
    with tempfile.TemporaryDirectory(prefix="early-") as directory:
        for way, early in WAYS.items():
            target = Path(directory) / model_of(way)
            shutil.copytree(RAGGED, target, ignore=ignored)
            (target / "1" / "model.onnx").symlink_to(RAGGED / "1" / "model.onnx")
            config = read_config(RAGGED)
            config.name = target.name
            config.parameters["early_answers"].string_value = early
            config.parameters["cost"].string_value = cost
            (target / "config.pbtxt").write_text(text_format.MessageToString(config))
        yield Path(directory)


def arrivals(rate: float, seed: int) -> Iterator[float]:
    """Moments of a Poisson process, from now on."""
    rng, moment = np.random.default_rng(seed), time.perf_counter()
    while True:
        moment += rng.exponential(1 / rate)
        yield moment


def measure(
    server: Server,
    model: str,
    requests: list[Sent],
    options: argparse.Namespace,
    own: Iterator[float] | None = None,
) -> dict:
    counted = counts_of(server, model)
    load, before, after, seconds = asyncio.run(run_load(server.http, model, requests, options, own))
    moved = {name: value - counted[name] for name, value in counts_of(server, model).items()}
    answers = after["inference_count"] - before["inference_count"]
    whole = moved["answer_seconds"] + moved["early_seconds"]
    return {
        "requests_per_second": len(load.seconds) / seconds,
        "useful_tokens_per_second": load.tokens / seconds,
        "mean_batch": answers / (after["execution_count"] - before["execution_count"]),
        "p50_ms": percentile(load.seconds, 50) * 1e3,
        "mean_ms": statistics.fmean(load.seconds) * 1e3,
        "p99_ms": percentile(load.seconds, 99) * 1e3,
        "wait_in_window": moved["answer_seconds"] / whole,
        "early_answers": moved["early_answers"],
    }


def counts_of(server: Server, model: str) -> dict[str, float]:
    """The model's own counters, once they stand still."""
    time.sleep(SETTLE_S)
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    found = dict.fromkeys(COUNTED, 0.0)
    for name in COUNTED:
        start = f"ge_runtime_{name}_total{{"
        for line in lines:
            if line.startswith(start) and f'model="{model}"' in line:
                found[name] += float(line.rpartition(" ")[2])
    return found


def print_results(title: str, runs: dict[str, list[dict]], options: argparse.Namespace) -> None:
    print(f"\n=== {title}, {options.seconds:g} s a turn, medians of {options.rounds} turns")
    medians = {
        way: {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for way, turns in runs.items()
    }
    base = medians["all at once"]
    headings = ["way", "requests/s", "lowest", "highest", "of all at once", "mean batch"]
    print_table(
        [*headings, "wait in window", "mean ms", "p50 ms", "of it", "p99 ms"],
        [
            [
                way,
                f"{row['requests_per_second']:.1f}",
                f"{min(turn['requests_per_second'] for turn in runs[way]):.1f}",
                f"{max(turn['requests_per_second'] for turn in runs[way]):.1f}",
                f"{row['requests_per_second'] / base['requests_per_second']:.3f}x",
                f"{row['mean_batch']:.1f}",
                f"{row['wait_in_window']:.3f}x",
                f"{row['mean_ms']:.0f}",
                f"{row['p50_ms']:.0f}",
                f"{row['p50_ms'] / base['p50_ms']:.2f}x",
                f"{row['p99_ms']:.0f}",
            ]
            for way, row in medians.items()
        ],
    )


if __name__ == "__main__":
    main()
