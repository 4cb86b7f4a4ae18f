"""Cost of a request for growing numbers of models, shared memory regions and connections.

    python -m benchmarks.scaling                                        five minutes
    python -m benchmarks.scaling --curves models --servers reference --turns 1
    python -m benchmarks.scaling --json scaling.json --plot scaling.png

The loads are closed loops of small requests over HTTP, which use the models, regions or connections
in turn. Servers take turns, and the table shows medians; CPU time is that of all of a server's
processes. tritonserver is not measured with a thousand models, because it has a process for each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.bars import COLORS, WARM_UP_S
from benchmarks.instruments import print_machine_facts, print_table
from benchmarks.load import HTTP, Run, client_process, closed_loop, connect, cpu_us, starter
from benchmarks.rows import MICRO, SUMMANDS, http, http_in_regions, regions
from triton_replay.comparing.latencies import percentile_of

IN_FLIGHT = 8
ELEMENTS = 1_000  # FP32 in a region, and as many for the answer


class Turn(NamedTuple):
    """Figures of one turn of one server at one point. Times are microseconds."""

    curve: str
    count: int
    server: str
    per_second: float
    cpu: float
    p50: float
    p99: float


@dataclass(frozen=True)
class Curve:
    """A load with a growing number of something.

    Args:
        about: Description.
        counts: The numbers to measure.
        requests: Creates the requests for a number.
        models: Number of models.
        in_flight: Requests in flight.
        idle: Additional idle connections.
        regions: Number of shared memory regions.
        most: Largest number to measure with tritonserver.
    """

    about: str
    counts: tuple[int, ...]
    requests: Callable[[int], list[bytes]]
    models: Callable[[int], int] = lambda count: 1
    in_flight: Callable[[int], int] = lambda count: IN_FLIGHT
    idle: Callable[[int], int] = lambda count: 0
    regions: Callable[[int], int] = lambda count: 0
    most: int = 1_000


def add_sub(count: int) -> list[bytes]:
    """Return a request for each of `count` models."""
    return [http(f"add_sub_{number}", SUMMANDS)[0] for number in range(count)]


CURVES = {
    "models": Curve(
        "models, used in turn", (1, 10, 100, 1_000), add_sub, models=lambda count: count, most=100
    ),
    "regions": Curve(
        "regions, used in turn",
        (1, 10, 100, 1_000),
        lambda count: http_in_regions(ELEMENTS, count),
        regions=lambda count: count,
    ),
    "busy": Curve(
        "connections with a request in flight each",
        (1, 8, 64, 256, 512),
        lambda count: add_sub(1),
        in_flight=lambda count: count,
    ),
    "idle": Curve(
        "idle connections in addition to eight",
        (0, 64, 512),
        lambda count: add_sub(1),
        idle=lambda count: count,
    ),
}


def measure(key: str, count: int, server: str, run: Run, seconds: float) -> Turn:
    """Measure one turn of one server at one point."""
    curve = CURVES[key]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scaling-")))
        shutil.copytree(MICRO / "echo", folder / "echo")
        for number in range(curve.models(count)):
            shutil.copytree(MICRO / "add_sub", folder / f"add_sub_{number}")
        running = stack.enter_context(starter(server)(folder, allow_metrics=False))
        stack.enter_context(regions(running.http, curve.regions(count), 4 * ELEMENTS))
        for _ in range(curve.idle(count)):
            stack.enter_context(connect(running.http))
        load = (HTTP, curve.requests(count), curve.in_flight(count))
        run(closed_loop, running.http, *load, max(WARM_UP_S, seconds / 2))
        before = cpu_us(running.process.pid)
        latencies = run(closed_loop, running.http, *load, seconds)
        cpu = (cpu_us(running.process.pid) - before) / len(latencies)
        shares = (percentile_of(latencies, share) for share in (50, 99))
        return Turn(key, count, server, len(latencies) / seconds, cpu, *shares)


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    print_machine_facts()
    turns: dict[tuple[str, int, str], list[Turn]] = {}
    with client_process() as run:
        for number in range(options.turns):
            for key in options.curves:
                print(f"turn {number + 1} of {options.turns}: {key}", file=sys.stderr)
                for count in CURVES[key].counts:
                    for server in options.servers:
                        if server != "triton" or count <= CURVES[key].most:
                            turn = measure(key, count, server, run, options.seconds)
                            turns.setdefault(turn[:3], []).append(turn)
    medians = [
        Turn(*point, *map(statistics.median, zip(*(turn[3:] for turn in each), strict=True)))
        for point, each in turns.items()
    ]
    print(f"medians of {options.turns} turns of {options.seconds:g} s")
    for key in options.curves:
        print(f"\n{CURVES[key].about}")
        headings = ("server", "count", "req/s", "CPU us", "p50 us", "p99 us")
        of_curve = sorted((turn for turn in medians if turn.curve == key), key=lambda t: t.server)
        print_table(
            headings,
            [
                [turn.server, turn.count, *(f"{figure:,.0f}" for figure in turn[3:])]
                for turn in of_curve
            ],
        )
    if options.json:
        figures = [turn._asdict() for each in turns.values() for turn in each]
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.plot:
        plot(medians, options.plot)


def plot(medians: list[Turn], file: Path) -> None:
    """Draw CPU time over the numbers of each curve. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    keys = list(dict.fromkeys(turn.curve for turn in medians))
    figure, axes = pyplot.subplots(1, len(keys), figsize=(4 * len(keys), 3.4), squeeze=False)
    for place, key in zip(axes[0], keys, strict=True):
        for server in dict.fromkeys(turn.server for turn in medians if turn.curve == key):
            points = [turn for turn in medians if (turn.curve, turn.server) == (key, server)]
            counts = [turn.count for turn in points]
            cpu = [turn.cpu for turn in points]
            place.plot(counts, cpu, "o-", color=COLORS.get(server), label=server)
        place.set_xscale("symlog")
        place.set_xlabel(CURVES[key].about)
        place.set_ylabel("CPU time per request, us")
        place.set_ylim(bottom=0)
        place.grid(alpha=0.3)
        place.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    print(f"drawn: {file}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--curves", nargs="+", choices=CURVES, default=list(CURVES), help="loads (all)")
    servers = ["reference", "triton"]
    add("--servers", nargs="+", default=servers, metavar="SERVER", help="servers (both)")
    add("--seconds", type=float, default=2.0, help="duration of each point (2)")
    add("--turns", type=int, default=3, help="turns of each server (3)")
    add("--json", type=Path, metavar="FILE", help="write the figures of each turn")
    add("--plot", type=Path, metavar="FILE", help="draw the figures (needs matplotlib)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
