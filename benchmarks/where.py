"""Where the CPU time of a small request goes: by thread, and by the room of the code.

    pip install py-spy
    python -m benchmarks.where                                     half a minute
    python -m benchmarks.where --front grpc --in-flight 32 --top 20
    python -m benchmarks.where --front json-1000                   any small row of benchmarks.bars
    python -m benchmarks.where --servers tree:../before reference

py-spy looks at the server's stacks from outside, 500 times a second, while a closed loop asks a
small model. Each sample of a thread that runs counts for the module of its innermost Python
frame, so that what Python's C code and the system do for it is its own: a write to a socket is the
connection's. The samples are scaled to the CPU time that the system counted, so the table adds up.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bars import MICRO, ROWS
from benchmarks.closed_loop import Run, ask_for, client_process, cpu_us, starter
from benchmarks.instruments import print_machine_facts, print_table

RATE_HZ = 500
#: By what a frame's file has in its path: the rooms of docs/architecture.md, and who is outside.
ROOMS = {
    "reference_server/frontends/http": "HTTP",
    "reference_server/frontends/grpc": "gRPC",
    "reference_server/frontends": "event loop",
    "reference_server/codecs": "codecs",
    "reference_server/gateway": "gateway",
    "reference_server/repository": "repository",
    "reference_server/scheduling": "schedulers",
    "reference_server/backends": "host and model API",
    "reference_server/observability": "statistics",
    "reference_server": "core",
    "/1/model.py": "the model",
    "triton_python_backend_utils": "host and model API",
    "numpy": "the model",
    "threading.py": "schedulers",
    "asyncio": "event loop",
    "uvloop": "event loop",
}


FRONTS = [
    name
    for name, row in ROWS.items()
    if row.repository == "micro" and row.kind is not None and not row.regions
]


class Profile(NamedTuple):
    """What was seen of one server: CPU time of a request in us, and samples by what they are of."""

    cpu: float
    per_second: float
    rooms: Counter[tuple[str, str]]  # by thread and room
    functions: Counter[str]

    def us(self, samples: int) -> float:
        """The CPU time of a request that so many samples stand for."""
        return self.cpu * samples / max(1, self.rooms.total())


def record(server: str, options: argparse.Namespace, run: Run) -> Profile:
    """Look at a server under load."""
    row = ROWS[options.front]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="where-")))
        shutil.copytree(MICRO, folder, dirs_exist_ok=True)
        running = stack.enter_context(starter(server)(folder, allow_metrics=False))
        address = running.grpc if row.is_grpc else running.http
        load = (ask_for, address, row.kind, row.requests(), row.streams, options.in_flight)
        run(*load, 0.5)
        before = cpu_us(running.process.pid)
        answered = len(run(*load, options.seconds))  # before anybody looks, which costs
        cpu = (cpu_us(running.process.pid) - before) / answered
        stacks = folder / "stacks"
        command = ["py-spy", "record", "--threads", "--full-filenames", "--format=raw"]
        command += [f"--pid={running.process.pid}", f"--rate={RATE_HZ}", f"--output={stacks}"]
        try:
            spy = subprocess.Popen(
                [*command, f"--duration={options.seconds:.0f}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise SystemExit("py-spy is not here: pip install py-spy") from None
        run(*load, options.seconds + 1)
        if spy.wait():
            raise SystemExit("py-spy saw nothing: may this user trace processes?")
        return Profile(cpu, answered / options.seconds, *counted(stacks.read_text()))


def counted(stacks: str) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Samples by thread and room, and by function; a line is like `main (a.py:1);f (b.py:2) 7`."""
    rooms: Counter[tuple[str, str]] = Counter()
    functions: Counter[str] = Counter()
    for line in stacks.splitlines():
        frames, _, number = line.rpartition(" ")
        thread, *calls = frames.split(";")
        leaf = calls[-1]
        if "concurrent/futures" in leaf:  # an idle thread of a pool, taken for a busy one
            continue
        rooms["event loop" if "MainThread" in thread else "instance", room(leaf)] += int(number)
        functions[shown(leaf)] += int(number)
    return rooms, functions


def room(frame: str) -> str:
    """Whose code a frame is in, by its path."""
    return next((name for part, name in ROOMS.items() if part in frame), "event loop")


def shown(frame: str) -> str:
    """`function (file.py)`, without the folders that lead to the package, and without the line."""
    function, _, place = frame.partition(" (")
    path = place.rpartition(":")[0] or place
    for root in ("reference_server/", "site-packages/", "lib/", "/1/"):
        path = path.rpartition(root)[2]
    return f"{function} ({path})"


def main() -> None:
    """Look at each server, and print a table."""
    options = parse_arguments()
    print_machine_facts()
    with client_process() as run:
        profiles = {server: record(server, options, run) for server in options.servers}
    print(f"{options.front}, {options.in_flight} in flight: CPU us of a request")
    table(profiles, lambda profile: profile.rooms, None)
    total = ["all", "", *(f"{profile.cpu:.1f}" for profile in profiles.values())]
    rate = ["requests/s", "", *(f"{profile.per_second:,.0f}" for profile in profiles.values())]
    print_table(["", "", *profiles], [total, rate])
    if options.top:
        print(f"\nthe {options.top} functions that take most")
        table(profiles, lambda profile: profile.functions, options.top)


def table(
    profiles: Mapping[str, Profile], of: Callable[[Profile], Counter[Any]], most: int | None
) -> None:
    """A line for each key, those first that the last server spends most in."""
    counters = [of(profile) for profile in profiles.values()]
    keys = list(dict.fromkeys(key for each in counters[::-1] for key, _ in each.most_common(most)))
    rows = []
    for key in keys:
        us = [
            f"{profile.us(each[key]):.1f}"
            for profile, each in zip(profiles.values(), counters, strict=True)
        ]
        rows.append([*(key if isinstance(key, tuple) else [key]), *us])
    headings = ["thread", "room"] if isinstance(keys[0], tuple) else ["function"]
    print_table([*headings, *profiles], rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.where",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--servers", nargs="+", default=["reference"], metavar="SERVER")
    parser.add_argument("--front", choices=FRONTS, default="http")
    parser.add_argument("--in-flight", type=int, default=8, help="requests (8)")
    parser.add_argument("--seconds", type=float, default=8.0, help="that are looked at (8)")
    parser.add_argument("--top", type=int, default=0, help="functions to name (0)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
