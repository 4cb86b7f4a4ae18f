"""The reference server and NVIDIA's tritonserver, measured by NVIDIA's perf_analyzer.

    python -m benchmarks.perf             all loads, about a quarter of an hour
    python -m benchmarks.perf --quick     a smoke test, about three minutes

Both servers serve the same folders: model_repository/ and a model that returns its input, which
shows the cost of the server itself. The servers run in turns, one at a time, with the same loads.
perf_analyzer runs on the same machine and uses a part of it in both cases.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.instruments import print_machine_facts
from tests.support.servers import Server, start_reference_server, start_tritonserver
from tools import oracle

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent

# perf_analyzer reports the mean of the last three windows, so it measures only three.
WINDOWS = 3
LONGEST_WINDOW_MS = 10_000
# Covers the first requests of a model, which are slow.
WARM_UP_MS = 500

SERVERS: dict[str, Callable[..., AbstractContextManager[Server]]] = {
    "reference": start_reference_server,
    "triton": start_tritonserver,
}


@dataclass(frozen=True)
class Workload:
    """A load on a model. `name` is the name of the model, with a suffix for other loads on it."""

    name: str
    about: str
    flags: tuple[str, ...]
    concurrencies: tuple[int, ...]
    quick_concurrencies: tuple[int, ...]
    protocol: str = "http"

    @property
    def model(self) -> str:
        return self.name.partition("/")[0]


SHARED_MEMORY = ("--shared-memory", "system", "--output-shared-memory-size", "1024")
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "text_pipeline",
            "texts of the project, one to eight in a request, through all three steps",
            ("--input-data", "benchmarks/data/text_pipeline.json"),
            (1, 4, 16),
            (1, 16),
        ),
        Workload(
            "text_pipeline_fused",
            "texts of the project, one to eight in a request, in one model",
            ("--input-data", "benchmarks/data/text_pipeline.json"),
            (1, 4, 16),
            (1, 16),
        ),
        Workload(
            "ge_classifier",
            "handwritten digits, 6 to 64 pixels high and wide",
            ("--input-data", "benchmarks/data/ge_classifier.json"),
            (1, 4, 16),
            (1, 16),
        ),
        Workload(
            "identity",
            "16 bytes in, the same 16 bytes out: the cost of the server itself",
            (),
            (1, 2, 4, 8, 16, 32),
            (1, 16),
        ),
        Workload(
            "identity/shared-memory",
            "16 bytes in shared memory",
            SHARED_MEMORY,
            (1, 8, 32),
            (1, 8),
        ),
        Workload(
            "identity/grpc",
            "16 bytes over gRPC",
            (),
            (1, 8, 32),
            (1, 8),
            "grpc",
        ),
        Workload(
            "identity/grpc-stream",
            "16 bytes over gRPC streams",
            ("--streaming",),
            (1, 8, 32),
            (1, 8),
            "grpc",
        ),
        Workload(
            "identity/grpc-shared-memory",
            "16 bytes in shared memory over gRPC",
            SHARED_MEMORY,
            (1, 8, 32),
            (1, 8),
            "grpc",
        ),
    )
}


@dataclass(frozen=True)
class Result:
    """perf_analyzer's figures at one point. Latencies are microseconds."""

    server: str
    model: str
    concurrency: int
    throughput: float
    p50: float
    p99: float


class PerfAnalyzerFailed(Exception):
    """perf_analyzer failed. The text has its command line and output."""


def main() -> None:
    """Run the command: print the table of each point and a summary."""
    options = parse_arguments()
    if not oracle.is_installed():
        raise SystemExit("perf_analyzer and tritonserver are not installed; run `make oracle`")
    print_machine_facts()
    print(f"oracle   {oracle.RECIPE['server']}, {oracle.RECIPE['perf_analyzer']}")
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        repository = Path(directory) / "repository"
        copy_models(repository, options.models)
        try:
            results = [
                result
                for _ in range(options.rounds)
                for server in options.servers
                for result in measure(server, repository, options)
            ]
        except PerfAnalyzerFailed as failure:
            raise SystemExit(str(failure)) from None
    print_summary(results, options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.perf",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The summary ends with a command that repeats one of its rows.",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=WORKLOADS,
        default=list(WORKLOADS),
        help="loads to run (default: all)",
    )
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=SERVERS,
        default=list(SERVERS),
        help="servers, in the order of their turns (default: reference, triton)",
    )
    parser.add_argument(
        "--concurrency",
        nargs="+",
        type=int,
        metavar="N",
        help="requests in flight (default: 1 4 16, and up to 32 for identity)",
    )
    parser.add_argument(
        "--window",
        type=int,
        metavar="MS",
        help=f"duration of each of the {WINDOWS} windows (default: 2000, quick: 1500)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help="turns of each server, for medians (default: 2)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer points, shorter windows, one turn: a test, not a measurement",
    )
    options = parser.parse_args()
    options.window = options.window or (1500 if options.quick else 2000)
    options.rounds = options.rounds or (1 if options.quick else 2)
    return options


def copy_models(repository: Path, models: list[str]) -> None:
    """Copy the models to one repository: the real server writes to its repository."""
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.pt2")
    shutil.copytree(HERE / "micro_repository", repository, ignore=ignored)
    if any(WORKLOADS[name].model != "identity" for name in models):
        subprocess.run([sys.executable, "-m", "model_factory", "build"], cwd=ROOT, check=True)
        shutil.copytree(ROOT / "model_repository", repository, ignore=ignored, dirs_exist_ok=True)


def measure(name: str, repository: Path, options: argparse.Namespace) -> Iterator[Result]:
    """Start a server and measure every point on it."""
    with SERVERS[name](repository, allow_metrics=False) as server:
        for workload in (WORKLOADS[model] for model in options.models):
            points = workload.quick_concurrencies if options.quick else workload.concurrencies
            points = options.concurrency or points
            print(f"\n=== {name}: {workload.name} ({workload.about})", flush=True)
            warm_up(workload, server, max(points))
            for concurrency in points:
                row = measure_point(workload, server, concurrency, options.window)
                throughput = float(row["Inferences/Second"])
                p50, p99 = float(row["p50 latency"]), float(row["p99 latency"])
                yield Result(name, workload.name, concurrency, throughput, p50, p99)


def warm_up(workload: Workload, server: Server, concurrency: int) -> None:
    """Send requests without measuring them.

    The load has a duration, because with `--request-count` perf_analyzer sometimes hangs if the
    server is fast.
    """
    how = ("-p", str(WARM_UP_MS), "-r", str(WINDOWS), "-s", "999")
    with contextlib.suppress(PerfAnalyzerFailed):  # a window without a response
        run_perf_analyzer(*target(workload, server, concurrency), *how)


def measure_point(
    workload: Workload, server: Server, concurrency: int, window: int
) -> dict[str, str]:
    """Measure one point and print its table. Double a window that is too short for requests."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.csv"
        how = ("-p", str(window), "-r", str(WINDOWS), "-s", "999", "-f", str(report))
        try:
            output = run_perf_analyzer(*target(workload, server, concurrency), *how)
        except PerfAnalyzerFailed as failure:
            # On a busy machine a window may have no response, or all windows too few.
            too_short = "larger time window" in str(failure) or "stable measure" in str(failure)
            if not too_short or window > LONGEST_WINDOW_MS:
                raise
            print(f"too few responses within {window} ms; the window is doubled", flush=True)
            return measure_point(workload, server, concurrency, 2 * window)
        start = output.index("Request concurrency")
        table = output[start : output.index("Inferences/Second vs.", start)]
        print(table.rstrip(), flush=True)
        (row,) = csv.DictReader(report.read_text().splitlines())
        return row


def target(workload: Workload, server: Server, concurrency: int) -> list[str]:
    """Return perf_analyzer's arguments for the model, the server and the concurrency."""
    address = server.grpc if workload.protocol == "grpc" else server.http
    return [
        *("-m", workload.model, "-u", address, "-i", workload.protocol, *workload.flags),
        *("--concurrency-range", str(concurrency)),
    ]


def run_perf_analyzer(*arguments: str) -> str:
    """Run perf_analyzer and return its output."""
    program = [sys.executable, str(ROOT / "tools" / "oracle.py"), "perf", *arguments]
    finished = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise PerfAnalyzerFailed(f"{' '.join(program)}\n{finished.stdout}{finished.stderr}")
    return finished.stdout


def print_summary(results: list[Result], options: argparse.Namespace) -> None:
    """Print a row for each point: the median of the rounds for each server, and their ratio."""
    turns = "one turn" if options.rounds == 1 else f"the median of {options.rounds} turns"
    print(f"\n=== summary: {turns}, {WINDOWS} windows of {options.window} ms for each point")
    both = len(options.servers) == len(SERVERS)
    headings = [f"{name:>10} p50 ms p99 ms" for name in options.servers]
    print("  ".join([f"{'model':27} {'conc.':>5}", *headings, *(["ratio"] if both else [])]))
    for model, concurrency in dict.fromkeys((r.model, r.concurrency) for r in results):
        cells, throughput = [f"{model:27} {concurrency:5}"], {}
        for name in options.servers:
            point = (name, model, concurrency)
            rows = [r for r in results if (r.server, r.model, r.concurrency) == point]
            throughput[name] = statistics.median(row.throughput for row in rows)
            p50 = statistics.median(row.p50 for row in rows) / 1000
            p99 = statistics.median(row.p99 for row in rows) / 1000
            cells.append(f"{throughput[name]:8.0f}/s {p50:6.2f} {p99:6.2f}")
        if both:
            cells.append(f"{throughput['reference'] / throughput['triton']:4.2f}x")
        print("  ".join(cells))
    if both:
        print("\nratio: requests per second of the reference server to those of tritonserver")
    repeat, first = "python -m benchmarks.perf", results[0]
    print(f"\nrepeat all:  {repeat} {' '.join(sys.argv[1:])}".rstrip())
    print(
        f"repeat one:  {repeat} --models {first.model} --concurrency {first.concurrency} "
        f"--window {options.window} --rounds {options.rounds}"
    )


if __name__ == "__main__":
    main()
