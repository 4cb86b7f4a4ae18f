"""Requests of different lengths: padded batches and ge_runtime on the same engine.

    python -m benchmarks.ragged                  three traces, about two minutes
    python -m benchmarks.ragged --batches 40     more batches, for meaningful percentiles
    python -m benchmarks.ragged --traces mix --set gears.tokens='16,64,256,512'

The sentence encoder of model_repository/ executes the same batches of requests, padded to the
maximum, padded to the longest request, and through ge_runtime; the ways take turns. All use the
same session options. The padded batches are built with torch (the `train` extra).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import traces
from benchmarks.instruments import (
    ROOT,
    Call,
    measure,
    open_runtime,
    peak_bytes,
    print_machine_facts,
    print_table,
    read_config,
    watch,
)
from ge_runtime.engines.base import Engine
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.planning.gear_optimizer import optimal_gears
from ge_runtime.planning.histogram import Histogram
from ge_runtime.planning.size_demand import SizeDemand, gears_value
from ge_runtime.runtime import Runtime
from triton_replay.comparing.latencies import percentile_of

ENCODER = ROOT / "model_repository" / "text_encoder"
MIB = 2**20

Infer = Callable[[list], list]
"""Computes the embeddings of a batch of token rows, [1, length] each."""


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    if not (ENCODER / "1" / "model.onnx").is_file():
        raise SystemExit("model_repository/text_encoder/1/model.onnx is missing; run `make models`")
    print_machine_facts()
    results = [row for trace in options.traces for row in measure_trace(trace, options)]
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    if options.plot:
        plot(results, options.plot)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ragged",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--traces",
        nargs="+",
        choices=traces.TOKEN_TRACES,
        default=list(traces.TOKEN_TRACES),
        help="distributions of row lengths (all three)",
    )
    parser.add_argument("--requests", type=int, default=32, help="requests per batch (32)")
    parser.add_argument("--batches", type=int, default=5, help="batches per trace (5)")
    parser.add_argument(
        "--max-batches",
        type=int,
        default=1,
        help="batches that are also padded to the maximum; 0: none (1)",
    )
    parser.add_argument("--seed", type=int, default=11, help="seed of lengths and tokens (11)")
    parser.add_argument("--gears", type=int, default=4, help="number of gears to derive (4)")
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="parameters of config.pbtxt for one more row of the table",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table")
    return parser.parse_args()


# -- measuring


def measure_trace(trace: str, options: argparse.Namespace) -> list[dict]:
    """Measure every way to batch on one trace, and print the table."""
    lengths = traces.token_lengths(trace, options.requests * options.batches, options.seed)
    batches = traces.batches(traces.token_rows(lengths, options.seed), options.requests)
    limit = {"limit.tokens": str(traces.LARGEST[trace])}
    gears, expected = derived_gears(trace, options)
    print(f"\n=== {trace}: {options.batches} batches of {options.requests} requests")
    print(f"{options.gears} gears from another sample: {gears}; share of padding {expected:.3f}")
    runtimes = {
        "ge_runtime": open_encoder(limit),
        f"ge_runtime, {options.gears} gears": open_encoder({**limit, "gears.tokens": gears}),
    }
    if options.set:
        parameters = dict(pair.split("=", 1) for pair in options.set)
        runtimes["ge_runtime, --set"] = open_encoder({**limit, **parameters})
    ways = padded_ways(traces.LARGEST[trace]) | {
        name: as_infer(runtime) for name, runtime in runtimes.items()
    }
    rows = compare(ways, batches, options)
    for runtime in runtimes.values():
        runtime.close()
    for row in rows:
        row["trace"] = trace
    print_rows(rows)
    return rows


def derived_gears(trace: str, options: argparse.Namespace) -> tuple[str, float]:
    """Return gears in the form of config.pbtxt, from a separate sample, and their padding."""
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
        embeddings = []
        for answer in runtime.infer([as_request(row) for row in rows]):
            if isinstance(answer, Exception):
                raise answer
            embeddings.append(answer["embedding"])
        return embeddings

    return infer


def as_request(row: np.ndarray) -> dict[str, np.ndarray]:
    return {"input_ids": row, "lengths": np.array([[row.shape[1]]], np.int32)}


def padded_ways(largest: int) -> dict[str, Infer]:
    """Return both ways to pad, on an engine with the runtime's options."""
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
    """Execute every batch in every way, in turns, so that other load affects all ways alike."""
    if not options.max_batches:
        ways = {name: infer for name, infer in ways.items() if "maximum" not in name}
    calls: dict[str, list[Call]] = {name: [] for name in ways}
    with watch("input_ids") as seen:
        expected = ways["pad to the longest"](batches[0])
        for name, infer in ways.items():
            if "maximum" not in name:  # too slow for a check
                # INT8 has an error of its own, and each component of a unit vector is below 1.
                allowed = 0.05 if "--set" in name and "int8=rows" in (options.set or ()) else 1e-4
                for answer, known in zip(infer(batches[0]), expected, strict=True):
                    np.testing.assert_allclose(answer, known, atol=allowed)
        for index, batch in enumerate(batches):
            for name, infer in ways.items():
                if "maximum" not in name or index < options.max_batches:
                    calls[name].append(measure(seen, partial(infer, batch)))
    rows = [
        summary(name, calls[name], batches[: len(calls[name])], memory_of(infer, batches[0]))
        for name, infer in ways.items()
    ]
    for row in rows:
        pairs = zip(calls["ge_runtime"], calls[row["way"]], strict=False)
        row["cpu_gain"] = statistics.median(one.cpu_seconds / own.cpu_seconds for one, own in pairs)
    return rows


def memory_of(infer: Infer, batch: list) -> int:
    """Return the peak of bytes that one batch allocates."""
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
        "p50_ms": percentile_of(times, 50) * 1e3,
        "p99_ms": percentile_of(times, 99) * 1e3,
        "own_us_per_execution": statistics.median(own) * 1e6,
        "peak_bytes": peak,
        "page_faults_per_batch": statistics.median(call.page_faults for call in calls),
    }


def print_rows(rows: list[dict]) -> None:
    longest = next(row for row in rows if row["way"] == "pad to the longest")
    headings = ["way", "batches", "useful tokens/s", "of longest", "padding", "executions"]
    headings += ["per CPU s", "p50 ms", "p99 ms", "own us", "peak KiB", "faults"]
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
                f"{row['cpu_gain']:.2f}x",
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
        "per CPU s: work per CPU second, relative to ge_runtime, median of batches; "
        "executions, faults: per batch; own us: time of an execution outside the engine; "
        "peak: bytes that a batch allocates in NumPy, Python and torch, results included"
    )


def plot(rows: list[dict], path: Path) -> None:
    """Draw useful tokens per second and padding of each way, by trace. Needs matplotlib."""
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


# -- the padded batches

WIDTH = 384
"""Size of an embedding."""


class OutOfMemory(Exception):
    """The block is used up; memory is reused only after all pieces are free."""


class BumpAllocator:
    """Allocates from a fixed block, front to back, and restarts when all pieces are free."""

    def __init__(self, nbytes: int) -> None:
        self._block = torch.empty(nbytes, dtype=torch.uint8)
        self._end = self._in_use = 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        nbytes = -(-math.prod(shape) * dtype.itemsize // 64) * 64
        if self._end + nbytes > len(self._block):
            raise OutOfMemory
        piece = self._block[self._end : self._end + math.prod(shape) * dtype.itemsize]
        self._end += nbytes
        self._in_use += 1
        return piece.view(dtype).view(shape)

    def free(self) -> None:
        self._in_use -= 1
        if not self._in_use:
            self._end = 0


class Naive:
    """Executes each batch of token rows in one padded execution of an encoder.

    Args:
        engine: The encoder.
        pad_to: Length of every row; None for the longest row of the batch.
        allocator: Memory of the batch.
    """

    def __init__(self, engine: Engine, pad_to: int | None, allocator: BumpAllocator) -> None:
        self._engine = engine
        self._pad_to = pad_to
        self._allocator = allocator
        self.allocated_bytes = 0

    def infer(self, rows: list[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        """Return an embedding [1, WIDTH] for each row [1, length]."""
        length = self._pad_to or max(row.shape[1] for row in rows)
        padded, masks = [], []
        for row in rows:
            beyond = (0, length - row.shape[1])
            tokens = torch.from_numpy(row)
            padded.append(self._counted(torch.nn.functional.pad(tokens, beyond)))
            mask = self._counted(torch.ones_like(tokens))
            masks.append(self._counted(torch.nn.functional.pad(mask, beyond)))
        shape = (len(rows), length)
        ids = torch.cat(padded, out=self._allocator.allocate(shape, torch.int64))
        mask = torch.cat(masks, out=self._allocator.allocate(shape, torch.int64))
        embeddings = self._allocator.allocate((len(rows), WIDTH), torch.float32)
        self._engine.run(
            {"input_ids": ids.numpy(), "attention_mask": mask.numpy()},
            {"embedding": embeddings.numpy()},
        )
        answers = [self._counted(embeddings[i : i + 1].clone()).numpy() for i in range(len(rows))]
        for _ in range(3):
            self._allocator.free()
        return answers

    def _counted(self, tensor: torch.Tensor) -> torch.Tensor:
        self.allocated_bytes += tensor.nbytes
        return tensor


if __name__ == "__main__":
    main()
