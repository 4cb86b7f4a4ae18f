"""Start time and idle memory of both servers.

    python -m benchmarks.starts                           three minutes
    python -m benchmarks.starts --models 1 200 --servers reference

A start ends when the server reports that it is ready, with copies of a small model
(benchmarks/micro_repository/add_sub). Memory is the PSS of all of a server's processes a second
later. Servers take turns, and the table shows medians; the first start of each server is not
counted, because Python may compile its modules.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.instruments import print_machine_facts, print_table
from benchmarks.load import family, starter
from benchmarks.rows import MICRO

SETTLED_S = 1.0


class Turn(NamedTuple):
    """Figures of one start."""

    models: int
    server: str
    seconds: float
    mib: float


def measure(models: int, server: str) -> Turn:
    """Start a server and measure its memory."""
    with tempfile.TemporaryDirectory(prefix="starts-") as name:
        for number in range(models):
            shutil.copytree(MICRO / "add_sub", Path(name) / f"add_sub_{number}")
        began = time.perf_counter()
        with starter(server)(Path(name)) as running:
            seconds = time.perf_counter() - began
            time.sleep(SETTLED_S)
            pids = family(running.process.pid)
            return Turn(models, server, seconds, sum(map(_pss_kib, pids)) / 1024)


def _pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    print_machine_facts()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as in an installation
    for server in options.servers:
        measure(1, server)
    turns: dict[tuple[int, str], list[Turn]] = {}
    for _ in range(options.turns):
        for models in options.models:
            for server in options.servers:
                turns.setdefault((models, server), []).append(measure(models, server))
    medians = {
        point: [statistics.median(figures) for figures in list(zip(*each, strict=True))[2:]]
        for point, each in turns.items()
    }
    print(f"medians of {options.turns} turns; x: ratio to triton")
    rows = []
    for (models, server), (seconds, mib) in medians.items():
        real = medians.get((models, "triton"))
        ratios = [f"{real[0] / seconds:.1f}", f"{real[1] / mib:.1f}"] if real else ["", ""]
        rows.append([server, models, f"{seconds:.2f}", f"{mib:,.0f}", *ratios])
    print_table(("server", "models", "ready s", "MiB", "sooner x", "less x"), rows)
    if options.json:
        figures = [turn._asdict() for each in turns.values() for turn in each]
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.starts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--models", nargs="+", type=int, default=[1, 50], metavar="N", help="models (1 50)")
    servers = ["reference", "triton"]
    add("--servers", nargs="+", default=servers, metavar="SERVER", help="servers (both)")
    add("--turns", type=int, default=5, help="turns of each server (5)")
    add("--json", type=Path, metavar="FILE", help="write the figures of each turn")
    return parser.parse_args()


if __name__ == "__main__":
    main()
