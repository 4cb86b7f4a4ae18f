"""What answers to the bit cost: the sentence encoder and the recogniser of text lines.

    python -m benchmarks.reproducible                       some minutes
    python -m benchmarks.reproducible --models encoder --turns 2

Windows of requests are answered by the model as it is, by the model with gears, and by models of
`reproducible: true` with 1, 2, 4 and 8 rows in each execution; and one by one.
The ways take turns with each window. A request alone is what it takes when nobody else is there.
Requests of the recogniser are as wide as its gears: nothing is padded along its width.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from benchmarks import traces
from benchmarks.instruments import (
    ROOT,
    open_runtime,
    print_machine_facts,
    print_table,
    read_config,
)
from ge_runtime.runtime import Runtime

MODELS = ROOT / "model_repository"
ROWS = (1, 2, 4, 8)
STRIDE = 64

TEXTS = traces.LogNormal(median=32, largest=256, least=3)
WIDTHS = traces.LogNormal(median=256, largest=640, least=64)

Request = dict[str, np.ndarray]
Infer = Callable[[list[Request]], list]


def texts(count: int, rng: np.random.Generator) -> Iterator[Request]:
    for length in TEXTS.draw(rng, count):
        ids = rng.integers(1, traces.VOCABULARY, (1, length))
        yield {"input_ids": ids, "lengths": np.array([[length]], np.int32)}


def lines(count: int, rng: np.random.Generator) -> Iterator[Request]:
    for width in -(-WIDTHS.draw(rng, count) // STRIDE) * STRIDE:
        yield {"line": rng.integers(0, 256, (1, 48, width, 3), np.uint8)}


@dataclass(frozen=True)
class Kind:
    """A model, its gears and what is sent to it."""

    model: str
    draw: Callable[[int, np.random.Generator], Iterator[Request]]
    parameters: Mapping[str, str]
    derived: tuple[str, ...] = ()


KINDS = {
    "encoder": Kind(
        "text_encoder",
        texts,
        {
            "limit.tokens": "256",
            "range.input_ids": "0..30521",
            "gears.tokens": "16, 32, 64, 128, 256",
        },
    ),
    "recogniser": Kind(
        "ocr_recognition",
        lines,
        {
            "limit.width": "640",
            "gears.width": ", ".join(map(str, range(STRIDE, 641, STRIDE))),
        },
        ("text", "score"),
    ),
}


def main() -> None:
    options = parse_arguments()
    print_machine_facts()
    for name in options.models:
        compare(name, KINDS[name], options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproducible",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--turns", type=int, default=3, help="the median counts (3)")
    parser.add_argument("--windows", type=int, default=3, help="of each turn (3)")
    parser.add_argument("--requests", type=int, default=16, help="in a window (16)")
    return parser.parse_args()


def compare(name: str, kind: Kind, options: argparse.Namespace) -> None:
    """Prints the table of one model."""
    count = options.requests * options.windows
    print(f"\n=== {name}: {options.turns} turns of {options.windows} windows")
    with ExitStack() as opened:
        runtimes = opened_ways(kind, opened)
        plain = runtimes["as it is"]

        def one_by_one(window: list[Request]) -> list:
            return [answer for request in window for answer in plain.infer([request])]

        ways: dict[str, Infer] = {"one by one": one_by_one}
        ways |= {way: runtime.infer for way, runtime in runtimes.items()}
        rates: dict[str, list[float]] = {way: [] for way in ways}
        cpu: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(options.turns):
            requests = list(kind.draw(count, np.random.default_rng(turn)))
            windows = traces.batches(requests, options.requests)
            taken = timed(ways, windows)
            for way, (wall_s, cpu_s) in taken.items():
                rates[way].append(count / wall_s)
                cpu[way].append(cpu_s / count)
        requests = list(kind.draw(count, np.random.default_rng(options.turns)))
        rows = []
        base = statistics.median(rates["as it is"])
        for way in ways:
            runtime = runtimes.get(way, plain)
            alone_ms = [1e3 * clocked(runtime.infer, [request])[1] for request in requests]
            rate = statistics.median(rates[way])
            others = differing(ways[way], runtime, requests, options.requests)
            rows.append(
                [
                    way,
                    f"{rate:,.1f}",
                    f"{min(rates[way]):,.1f} to {max(rates[way]):,.1f}",
                    f"{rate / base:.2f}x",
                    f"{1e3 * statistics.median(cpu[way]):.1f}",
                    f"{statistics.median(alone_ms):.1f}",
                    f"{others} of {count}",
                ]
            )
        print_table(
            ["", "requests/s", "spread", "", "CPU ms each", "alone, ms", "other bits"], rows
        )


def opened_ways(kind: Kind, opened: ExitStack) -> dict[str, Runtime]:
    """The model in all ways; what the load checks of reproducible ones say is printed."""
    source = MODELS / kind.model
    free = {key: text for key, text in kind.parameters.items() if not key.startswith("gears.")}
    given = {"as it is": free, "with gears": kind.parameters}
    for rows in ROWS:
        fixed = {"reproducible": "true", "gears.batch": str(rows)}
        given[f"reproducible, {rows} row(s)"] = {**kind.parameters, **fixed}
    ways = {}
    for way, parameters in given.items():
        own = {**parameters, "cost_cache": "off"}
        runtime = open_runtime(source / "1", read_config(source), own, derived=kind.derived)
        opened.callback(runtime.close)
        checked = next(line for line in runtime.report if "load check" in line)
        print(f"{way}: {checked.partition(': ')[2]}")
        ways[way] = runtime
    return ways


def timed(
    ways: Mapping[str, Infer], windows: Sequence[list[Request]]
) -> dict[str, tuple[float, float]]:
    """Seconds of the wall clock and of CPU time, of each way for all windows."""
    taken = dict.fromkeys(ways, (0.0, 0.0))
    order = list(ways)
    for window in windows:
        order = order[1:] + order[:1]
        for way in order:
            cpu_s = time.process_time()
            _, wall_s = clocked(ways[way], window)
            cpu_s = time.process_time() - cpu_s
            taken[way] = (taken[way][0] + wall_s, taken[way][1] + cpu_s)
    return taken


def clocked(infer: Infer, window: list[Request]) -> tuple[list, float]:
    start = time.perf_counter()
    answers = infer(window)
    seconds = time.perf_counter() - start
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers, seconds


def differing(infer: Infer, runtime: Runtime, requests: list[Request], window: int) -> int:
    """How many answers have other bits in company than alone."""
    count = 0
    for batch in traces.batches(requests, window):
        for request, answer in zip(batch, infer(batch), strict=True):
            (alone,) = runtime.infer([request])
            count += any(alone[name].tobytes() != answer[name].tobytes() for name in alone)
    return count


if __name__ == "__main__":
    main()
