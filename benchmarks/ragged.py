"""Requests of unequal lengths: the plain approach and ge_runtime, in one run on the same engine.

    python -m benchmarks.ragged                  all parts, about two minutes
    python -m benchmarks.ragged --batches 40     the same with percentiles that mean something
    python -m benchmarks.ragged --parts tokens --traces mix --set gears.tokens='16,64,256,512'

Parts: `tokens` runs the sentence encoder of model_repository/ on batches of requests, each batched
in several ways that take turns; `python` is what the runtime itself takes for a batch; `images`
holds the copies that it makes against memcpy; `bump` lets a bump allocator run out of memory.
All ways to batch use the same session options, so that they differ in nothing else. The plain
approach is written with torch (the `train` extra).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks import copies, traces
from benchmarks.instruments import (
    ONE_EXECUTION,
    ROOT,
    Call,
    measure,
    open_runtime,
    peak_bytes,
    percentile,
    print_machine_facts,
    print_table,
    read_config,
    watch,
)
from benchmarks.naive import BumpAllocator, Naive, batches_until_exhausted
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.planning.gear_optimizer import optimal_gears
from ge_runtime.planning.histogram import Histogram
from ge_runtime.planning.size_demand import SizeDemand, gears_value
from ge_runtime.runtime import Runtime

ENCODER = ROOT / "model_repository" / "text_encoder"
MIB = 2**20

Infer = Callable[[list], list]
"""A batch of token rows, [1, length] each, to their embeddings."""


def main() -> None:
    options = parse_arguments()
    if not (ENCODER / "1" / "model.onnx").is_file():
        raise SystemExit("model_repository/text_encoder/1/model.onnx is missing; run `make models`")
    print_machine_facts()
    results = {part: PARTS[part](options) for part in options.parts}
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    if options.plot:
        plot(results["tokens"], options.plot)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ragged",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--traces",
        nargs="+",
        choices=traces.TOKEN_TRACES,
        default=list(traces.TOKEN_TRACES),
        help="lengths of token rows (default: all three)",
    )
    parser.add_argument("--requests", type=int, default=32, help="in a batch (32)")
    parser.add_argument("--batches", type=int, default=5, help="of each trace (5)")
    parser.add_argument(
        "--max-batches",
        type=int,
        default=1,
        help="of them, padded to the maximum as well; 0: none (1)",
    )
    parser.add_argument("--seed", type=int, default=11, help="of lengths and contents (11)")
    parser.add_argument("--gears", type=int, default=4, help="how many to derive (4)")
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="parameters of config.pbtxt for one more row of the table",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the tokens' table")
    options = parser.parse_args()
    if options.plot and "tokens" not in options.parts:
        parser.error("--plot needs the part `tokens`")
    return options


# -------------------------------------------------------------------------------------- tokens


def tokens(options: argparse.Namespace) -> list[dict]:
    """Every trace batched in every way; returns the rows of the table."""
    results = []
    for trace in options.traces:
        lengths = traces.token_lengths(trace, options.requests * options.batches, options.seed)
        batches = traces.batches(traces.token_rows(lengths, options.seed), options.requests)
        limit = {"limit.tokens": str(traces.LARGEST[trace])}
        gears, expected = derived_gears(trace, options)
        print(f"\n=== {trace}: {options.batches} batches of {options.requests} requests")
        print(f"{options.gears} gears of another such trace: {gears}; {expected:.3f} of it padding")
        runtimes = {
            "ge_runtime": open_encoder(limit),
            f"ge_runtime, {options.gears} gears": open_encoder({**limit, "gears.tokens": gears}),
        }
        if options.set:
            given = dict(pair.split("=", 1) for pair in options.set)
            runtimes["ge_runtime, as set"] = open_encoder({**limit, **given})
        ways = plain_ways(traces.LARGEST[trace]) | {
            name: as_infer(runtime) for name, runtime in runtimes.items()
        }
        rows = compare(ways, batches, options)
        for runtime in runtimes.values():
            runtime.close()
        for row in rows:
            row["trace"] = trace
        print_tokens(rows)
        results += rows
    return results


def derived_gears(trace: str, options: argparse.Namespace) -> tuple[str, float]:
    """Gears as config.pbtxt writes them, from lengths that are not measured, and their padding."""
    histogram = Histogram(["tokens"])
    for length in traces.token_lengths(trace, 20_000, options.seed + 1).tolist():
        histogram.add((length,))
    demand = SizeDemand.of(histogram, limits={"tokens": traces.LARGEST[trace]})
    gears = optimal_gears(demand, options.gears)
    return gears_value(gears), demand.waste(gears)


def open_encoder(parameters: Mapping[str, str]) -> Runtime:
    return open_runtime(ENCODER / "1", read_config(ENCODER), parameters)


def as_infer(runtime: Runtime) -> Infer:
    def infer(rows: list) -> list:
        answers = runtime.infer([as_request(row) for row in rows])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [answer["embedding"] for answer in answers]

    return infer


def as_request(row: np.ndarray) -> dict[str, np.ndarray]:
    return {"input_ids": row, "lengths": np.array([[row.shape[1]]], np.int32)}


def plain_ways(largest: int) -> dict[str, Infer]:
    """The plain approach, in its two forms, on an engine opened as the runtime opens its own."""
    runtime = open_encoder({})
    threads = runtime.config.intra_op_threads
    runtime.close()
    engine = OnnxEngine.open(ENCODER / "1" / "model.onnx", threads)
    allocator = BumpAllocator(64 * MIB)
    return {
        "pad to the maximum": Naive(engine, largest, allocator).infer,
        "pad to the longest": Naive(engine, None, allocator).infer,
    }


def compare(ways: Mapping[str, Infer], batches: list, options: argparse.Namespace) -> list[dict]:
    """Every way on every batch, in turns, so that what else the machine does hits all alike."""
    if not options.max_batches:
        ways = {name: infer for name, infer in ways.items() if "maximum" not in name}
    calls: dict[str, list[Call]] = {name: [] for name in ways}
    with watch("input_ids") as seen:
        expected = ways["pad to the longest"](batches[0])
        for name, infer in ways.items():
            if "maximum" not in name:  # which would take a while, for a batch of one size
                for answer, known in zip(infer(batches[0]), expected, strict=True):
                    np.testing.assert_allclose(answer, known, atol=1e-4)
        for index, batch in enumerate(batches):
            for name, infer in ways.items():
                if "maximum" not in name or index < options.max_batches:
                    calls[name].append(measure(seen, lambda i=infer, w=batch: i(w)))
    return [
        summary(name, calls[name], batches[: len(calls[name])], memory_of(infer, batches[0]))
        for name, infer in ways.items()
    ]


def memory_of(infer: Infer, batch: list) -> int:
    """The most bytes that one batch holds, apart from what was there before it."""
    naive = getattr(infer, "__self__", None)
    before = naive.allocated_bytes if naive else 0
    return peak_bytes(lambda: infer(batch)) + (naive.allocated_bytes - before if naive else 0)


def summary(name: str, calls: list[Call], batches: list, peak: int) -> dict:
    useful = sum(row.size for batch in batches for row in batch)
    seconds = sum(call.seconds for call in calls)
    executions = sum(call.executions for call in calls)
    own = [(call.seconds - call.engine_seconds) / call.executions for call in calls]
    times = [call.seconds for call in calls]
    return {
        "way": name,
        "batches": len(calls),
        "useful_per_second": useful / seconds,
        "padding_share": 1 - useful / sum(call.elements for call in calls),
        "executions_per_batch": executions / len(calls),
        "p50_ms": percentile(times, 50) * 1e3,
        "p99_ms": percentile(times, 99) * 1e3,
        "own_us_per_execution": statistics.median(own) * 1e6,
        "peak_bytes": peak,
        "page_faults_per_batch": statistics.median(call.page_faults for call in calls),
    }


def print_tokens(rows: list[dict]) -> None:
    longest = next(row for row in rows if row["way"] == "pad to the longest")
    headings = ["way", "batches", "useful tokens/s", "of longest", "padding", "executions"]
    headings += ["p50 ms", "p99 ms", "own us", "peak KiB", "faults"]
    print_table(
        headings,
        [
            [
                row["way"],
                row["batches"],
                f"{row['useful_per_second']:,.0f}",
                f"{row['useful_per_second'] / longest['useful_per_second']:.2f}x",
                f"{row['padding_share']:.3f}",
                f"{row['executions_per_batch']:.1f}",
                f"{row['p50_ms']:.1f}",
                f"{row['p99_ms']:.1f}",
                f"{row['own_us_per_execution']:.0f}",
                f"{row['peak_bytes'] / 1024:,.0f}",
                f"{row['page_faults_per_batch']:.0f}",
            ]
            for row in rows
        ],
    )
    print(
        "executions and page faults: of a batch; own: time of an execution outside the engine; "
        "peak: bytes of NumPy, Python and torch that a batch allocates, its answers among them"
    )


# -------------------------------------------------------------------------------------- python


def python(options: argparse.Namespace) -> list[dict]:
    """What the runtime takes for a batch of queries when the graph takes nothing."""
    print(f"\n=== python: batches of {options.requests} queries, the graph not executed")
    lengths = traces.token_lengths("queries", options.requests * 200, options.seed)
    batches = traces.batches(traces.token_rows(lengths, options.seed), options.requests)
    requests = [[as_request(row) for row in batch] for batch in batches]
    results = []
    for way, parameters in (("in one execution", ONE_EXECUTION), ("as planned", {})):
        runtime = open_encoder({"limit.tokens": str(traces.QUERIES.largest), **parameters})
        with watch("input_ids", execute=False) as seen:
            calls = [
                measure(seen, lambda w=batch, r=runtime: r.infer(w))
                for _ in range(5)
                for batch in requests
            ]
        runtime.close()
        results.append(
            {
                "way": way,
                "executions_per_batch": seen.executions / len(calls),
                "batch_us": statistics.median(call.seconds for call in calls) * 1e6,
                "execution_us": statistics.median(call.seconds / call.executions for call in calls)
                * 1e6,
            }
        )
    print_table(
        ["batches", "executions", "us a batch", "us an execution"],
        [
            [
                row["way"],
                f"{row['executions_per_batch']:.1f}",
                f"{row['batch_us']:.0f}",
                f"{row['execution_us']:.0f}",
            ]
            for row in results
        ],
    )
    return results


# ---------------------------------------------------------------------------------------- bump


def bump(options: argparse.Namespace) -> dict:
    """How long a bump allocator lives when batches overlap, as they do on two streams."""
    lengths = traces.token_lengths("mix", options.requests * 2000, options.seed)
    sizes = [2 * 8 * len(w) * max(w) for w in traces.batches(lengths.tolist(), options.requests)]
    capacity = 100 * max(sizes)
    print("\n=== bump: a bump allocator a hundred times as large as the largest batch needs it")
    results = {}
    for in_flight in (1, 2):
        count = batches_until_exhausted(capacity, sizes, in_flight)
        end = f"outlives {len(sizes)} batches" if count is None else f"is full after {count}"
        print(f"{in_flight} batch(es) of the mix in flight: it {end}")
        results[in_flight] = count
    return results


def images(options: argparse.Namespace) -> list[dict]:
    return copies.compare_with_memcpy(options.seed)


PARTS = {"tokens": tokens, "python": python, "images": images, "bump": bump}


def plot(rows: list[dict], path: Path) -> None:
    """Draw useful tokens a second and padding of each way, by trace. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["trace"] for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    titles = {"useful_per_second": "useful tokens/s", "padding_share": "share of padding"}
    for panel, (key, title) in zip(axes, titles.items(), strict=True):
        for offset, way in enumerate(ways):
            values = [row[key] for row in rows if row["way"] == way]
            places = np.arange(len(names)) + offset * 0.8 / len(ways)
            panel.bar(places, values, 0.8 / len(ways), align="edge", label=way)
        panel.set_xticks(np.arange(len(names)) + 0.4, names)
        panel.set_title(title)
    axes[0].legend()
    figure.savefig(path, dpi=150)
    print(f"\n{path} written")


if __name__ == "__main__":
    main()
