"""`ge-runtime top`: the device services of this user, their models and clients, as a live table."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ge_runtime.cli.arguments import new_command
from ge_runtime.memory.table import aligned, in_units
from ge_runtime.service.paths import RuntimeFolder
from ge_runtime.service.watching import look

if TYPE_CHECKING:
    from ge_runtime.cli.arguments import Subparsers

Stats: TypeAlias = Mapping[str, Any]
"""What a service tells: see `service.stats.describe`."""

NONE: Final = 1
"""The exit code of --once and --json where there is no service."""

_DESCRIPTION: Final = """\
Show the device services of this user: who executes on which device, and what it takes.

A device service is the process that owns a device for models with `placement: service`. Shown are
  - of each service: its process, the executions under way and waiting, its memory;
  - of each model in it: its weights, which are there once for all its clients, and its executions;
  - of each client, an instance of a model in another process: its memory, its share of the time
    since the last look, and how long it has waited for its turns.

Nothing is started, and looking keeps no service from ending.
"""

_EPILOG: Final = """\
examples:
  ge-runtime top
  ge-runtime top --once
  ge-runtime top --json | jq '.[].clients[] | {name, executions, wait_s}'

Exit codes: 0 done, 1 there is no service (with --once or --json), 2 arguments or input that cannot
be used.
"""

_CLEAR: Final = "\x1b[H\x1b[2J"
"""Cursor home, then the whole screen: understood by every terminal there is."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `top` to the commands."""
    parser = new_command(
        subparsers,
        "top",
        help_="show what the device services do",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add = parser.add_argument
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="print the table once, and end")
    form.add_argument("--json", action="store_true", help="print all figures once, as JSON")
    add("--interval", type=_seconds, default=1.0, metavar="S", help="between two looks (1)")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    with RuntimeFolder.open() as folder:
        if given.json:
            services = look(folder)
            print(json.dumps(services, indent=2))
            return 0 if services else NONE
        if given.once:
            services = look(folder)
            print("\n".join(table(services, {}, folder.path)))
            return 0 if services else NONE
        _live(folder, given.interval)
        return 0


def _live(folder: RuntimeFolder, interval_s: float) -> None:
    before: dict[str, Stats] = {}
    try:
        while True:
            services = look(folder)
            lines = table(services, before, folder.path)
            sys.stdout.write(_CLEAR + "\n".join(lines) + "\n")
            sys.stdout.flush()
            before = {one["device"]: one for one in services}
            time.sleep(interval_s)
    except KeyboardInterrupt:
        return


def table(services: Sequence[Stats], before: Mapping[str, Stats], path: Path) -> list[str]:
    """All services for people, line by line.

    before: what each device's service told the last time: shares are of the time since then, or
    since the service's start. path: where services were looked for.
    """
    if not services:
        return [f"no device service in {path}: models with placement: service start one"]
    lines: list[str] = []
    for stats in services:
        if lines:
            lines.append("")
        if "fault" in stats:
            lines.append(f"{stats['device']}: {stats['fault']}")
            continue
        earlier = before.get(stats["device"], {})
        same = earlier.get("pid") == stats["pid"]
        lines += _service(stats)
        lines += ["", *_models(stats), "", *_clients(stats, earlier if same else {})]
    return lines


def _service(stats: Stats) -> list[str]:
    turns, memory, place = stats["turns"], stats["memory"], stats["place"] or {}
    waited = turns["wait_s"] / turns["waited"] if turns["waited"] else 0.0
    allocated = sum(memory["allocated"].values())
    return [
        f"{stats['device']} ({place.get('hardware', 'not opened')}), pid {stats['pid']}, "
        f"up {_duration(stats['up_s'])}",
        f"  executions  {turns['begun']:,} begun, {turns['running']} under way, "
        f"{turns['waiting']} waiting; {turns['capacity'] - turns['free']} of {turns['capacity']} "
        "units in use",
        f"  waits       {turns['waited']:,}, mean {waited * 1e3:.1f} ms, longest "
        f"{turns['longest_wait_s'] * 1e3:.1f} ms; {turns['expired']} expired, "
        f"{turns['cancelled']} cancelled",
        f"  memory      {_size(memory['weights'])} of weights, {_size(memory['arenas'])} of "
        f"clients' arenas, {_size(allocated)} allocated, {_size(memory['resident'])} resident",
    ]


def _models(stats: Stats) -> list[str]:
    header = ("model", "engine", "content", "weights", "clients", "executions", "faults", "mean ms")
    rows = [
        (
            _model_name(model["artifacts"]),
            model["engine"],
            model["content"],
            _size(model["weights"]),
            str(model["clients"]),
            f"{model['executions']:,}",
            str(model["faults"]),
            f"{model['busy_s'] / max(1, model['executions']) * 1e3:.2f}",
        )
        for model in stats["models"]
    ]
    return _indented([header, *rows], "<<<>>>>>")


def _clients(stats: Stats, before: Stats) -> list[str]:
    header = (
        "client", "pid", "process", "arenas", "executions", "faults", "waiting", "waited ms",
        "weight", "share",
    )  # fmt: skip
    earlier = {(one["name"], one["pid"]): one["busy_s"] for one in before.get("clients", ())}
    busy = [one["busy_s"] - earlier.get((one["name"], one["pid"]), 0.0) for one in stats["clients"]]
    whole = sum(busy)
    rows = [
        (
            client["name"],
            str(client["pid"]),
            client["process"],
            _size(client["arenas"]),
            f"{client['executions']:,}",
            str(client["faults"]),
            str(client["waiting"]),
            f"{client['wait_s'] * 1e3:,.0f}",
            f"{client['weight']:g}",
            f"{own / whole:.0%}" if whole else "-",
        )
        for client, own in zip(stats["clients"], busy, strict=True)
    ]
    return _indented([header, *rows], "<><>>>>>>>")


def _indented(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    return [f"  {line}" for line in aligned(rows, sides)]


def _model_name(artifacts: Sequence[str]) -> str:
    """The model's folder, version and files, e.g. text_encoder/1/model.onnx."""
    first, *others = (Path(path) for path in artifacts)
    name = "/".join(first.parts[-3:])
    return name + "".join(f" {path.name}" for path in others)


def _size(nbytes: int) -> str:
    return in_units(nbytes) or f"{nbytes} B"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _seconds(text: str) -> float:
    """An argument above 0. Raises ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected seconds above 0")
    return seconds
