"""Requests per second, CPU time and latencies of both servers and of a sketch: `make perf`.

    python -m benchmarks.bars                       five turns of everything, half an hour
    python -m benchmarks.bars --quick               one short turn, under three minutes
    python -m benchmarks.bars --rows http grpc --turns 3 --seconds 1.5
    python -m benchmarks.bars --servers reference tree:../before
    python -m benchmarks.bars --json turns.json --plot bars.png

Each row is a closed loop of prepared requests from a client process (`benchmarks.rows`). Servers
take turns. The table shows medians, ratios to tritonserver, and in parentheses the bars, i.e. least
ratios. CPU time is the sum over all processes of a server. `sketch` is a minimal server in Python
(`benchmarks.sketch_server`), `tree:PATH` the server of another checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.instruments import print_machine_facts, print_table
from benchmarks.load import Run, client_process, closed_loop, cpu_us, starter
from benchmarks.rows import ROWS, fill, regions
from triton_replay.comparing.latencies import percentile_of

WARM_UP_S = 0.5


class Turn(NamedTuple):
    """Figures of one turn of one server at one concurrency. Times are microseconds."""

    row: str
    in_flight: int
    server: str
    per_second: float
    cpu: float
    p50: float
    p99: float


Point = tuple[str, int, str]


def measure(name: str, run: Run, options: argparse.Namespace) -> Iterator[Turn]:
    """Measure one turn of one server, over all its rows."""
    for repository in ("micro", "process", "pipelines"):
        rows = {
            key: ROWS[key]
            for key in options.rows
            if ROWS[key].repository == repository
            and (name != "sketch" or ROWS[key].has_sketch)
            and not (options.quick and ROWS[key].least_s)
        }
        if not rows:
            continue
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bars-")))
            # tritonserver runs all Python models in processes.
            fill(folder, repository, in_process=name != "triton")
            server = stack.enter_context(starter(name)(folder, allow_metrics=False))
            for key, row in rows.items():
                count = max(row.in_flight) if row.regions else 0
                with regions(server.http, count, row.regions):
                    yield from _points(name, server, run, key, options)


def _points(
    name: str, server: Any, run: Run, key: str, options: argparse.Namespace
) -> Iterator[Turn]:
    row = ROWS[key]
    address = server.grpc if row.is_grpc else server.http
    load = (closed_loop, address, row.client, row.requests())
    seconds = max(options.seconds, row.least_s)
    in_flight = [count for count in row.in_flight if not options.quick or count != 1]
    run(*load, max(in_flight), min(WARM_UP_S, options.seconds))
    for count in in_flight:
        before = cpu_us(server.process.pid)
        latencies = run(*load, count, seconds)
        answered = len(latencies)
        if not answered:
            raise SystemExit(f"{key}: no response from {name} within {seconds:g} s")
        yield Turn(
            key,
            count,
            name,
            answered / seconds,
            (cpu_us(server.process.pid) - before) / answered,
            percentile_of(latencies, 50),
            percentile_of(latencies, 99),
        )


# -- the command


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    print_machine_facts()
    turns: list[Turn] = []
    began = time.monotonic()
    with client_process() as run:
        for turn in range(options.turns):
            for name in options.servers:
                print(f"turn {turn + 1} of {options.turns}: {name}", file=sys.stderr)
                turns += measure(name, run, options)
    medians = medians_of(turns)
    shown = [line(turn, medians, turns) for turn in medians.values()]
    about = f"medians of {options.turns} turns of {options.seconds:g} s"
    print(f"{about}, {time.monotonic() - began:.0f} s in all; x: ratio to triton, and its bar")
    print_table(HEADINGS, shown)
    if options.json:
        options.json.write_text(json.dumps([each._asdict() for each in turns], indent=1) + "\n")
    if options.plot:
        plot(medians, options.plot)


COLORS = {"sketch": "tab:gray", "reference": "tab:blue", "triton": "tab:orange"}
"""Colors of the servers in all plots."""
HEADINGS = (
    "row",
    "in flight",
    "server",
    "req/s",
    "spread",
    "CPU us",
    "p50 us",
    "p99 us",
    "req/s x",
    "CPU x",
)


def medians_of(turns: Sequence[Turn]) -> dict[Point, Turn]:
    """Return the medians of each row, concurrency and server, in the order of the rows."""
    groups: dict[Point, list[Turn]] = {}
    for each in sorted(turns, key=lambda each: (list(ROWS).index(each.row), each.in_flight)):
        groups.setdefault(each[:3], []).append(each)
    return {
        key: Turn(*key, *map(statistics.median, zip(*(each[3:] for each in group), strict=True)))
        for key, group in groups.items()
    }


def line(each: Turn, medians: dict[Point, Turn], turns: Sequence[Turn]) -> list[object]:
    """Return a line of the table; `spread` is half the range of the turns over the median."""
    rates = [turn.per_second for turn in turns if turn[:3] == each[:3]]
    spread = (max(rates) - min(rates)) / 2 / each.per_second
    real = medians.get((each.row, each.in_flight, "triton"))
    ratios = ["", ""]
    if real is not None:
        ratios = [f"{each.per_second / real.per_second:.2f}", f"{real.cpu / each.cpu:.2f}"]
        if each.server == "reference":
            row = ROWS[each.row]
            bars = row.bars[row.in_flight.index(each.in_flight)]
            ratios = [f"{ratio} ({bar:g})" for ratio, bar in zip(ratios, bars, strict=True)]
    figures = [f"{figure:,.0f}" for figure in (each.cpu, each.p50, each.p99)]
    return [
        each.row,
        each.in_flight,
        each.server,
        f"{each.per_second:,.0f}",
        f"{spread:.0%}",
        *figures,
        *ratios,
    ]


def plot(medians: dict[Point, Turn], file: Path) -> None:
    """Draw requests per second and CPU time over the concurrency. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [
        key for key in dict.fromkeys(point[0] for point in medians) if len(_curve(medians, key)) > 1
    ]
    figure, axes = pyplot.subplots(2, len(rows), figsize=(4 * len(rows), 7), squeeze=False)
    for column, key in enumerate(rows):
        for server in dict.fromkeys(point[2] for point in medians if point[0] == key):
            points = [turn for turn in medians.values() if (turn.row, turn.server) == (key, server)]
            counts = [turn.in_flight for turn in points]
            color = COLORS.get(server)
            for place, figures in enumerate(
                ([turn.per_second for turn in points], [turn.cpu for turn in points])
            ):
                axes[place][column].plot(counts, figures, "o-", color=color, label=server)
        axes[0][column].set_title(ROWS[key].about, fontsize=9)
        for place, name in ((0, "requests per second"), (1, "CPU time per request, us")):
            axes[place][column].set_xscale("log", base=2)
            axes[place][column].set_xticks(ROWS[key].in_flight, map(str, ROWS[key].in_flight))
            axes[place][column].set_ylim(bottom=0)
            axes[place][column].set_xlabel("requests in flight")
            axes[place][column].set_ylabel(name)
            axes[place][column].grid(alpha=0.3)
        axes[0][column].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    print(f"drawn: {file}")


def _curve(medians: dict[Point, Turn], key: str) -> set[int]:
    return {turn.in_flight for turn in medians.values() if turn.row == key}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bars",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    servers = ["sketch", "reference", "triton"]
    add = parser.add_argument
    add("--servers", nargs="+", default=servers, metavar="SERVER", help="servers (all three)")
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help="loads (all)")
    add("--seconds", type=float, default=2.0, help="duration of each point (2)")
    add("--turns", type=int, default=5, help="turns of each server (5)")
    add("--quick", action="store_true", help="one turn of 0.5 s, without concurrency 1")
    add("--json", type=Path, metavar="FILE", help="write the figures of each turn")
    add("--plot", type=Path, metavar="FILE", help="draw the figures (needs matplotlib)")
    options = parser.parse_args()
    if options.quick:
        options.turns, options.seconds = 1, 0.5
    return options


if __name__ == "__main__":
    main()
