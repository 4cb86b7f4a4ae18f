"""`ge-runtime top`: a live table of this user's device services, their models and clients."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from ge_runtime.cli.command import EXIT_NO, Command, number
from ge_runtime.errors import RuntimeFault, ServiceFault, shown
from ge_runtime.memory.plan import aligned_columns, in_binary_units
from ge_runtime.npu.service.channel import PeerGone
from ge_runtime.npu.service.connection import NoService, connect, request
from ge_runtime.npu.service.launcher import RuntimeFolder
from ge_runtime.npu.service.protocol import VERSION

Stats: TypeAlias = Mapping[str, Any]
"""Statistics of a service, see `service.state.ServiceState.stats`."""

_DESCRIPTION: Final = """\
Show the device services of this user, with their models and clients.

A device service is the process that owns a device for models with `placement: service`. The table
contains
  - for each service: its process, running and waiting executions, and memory;
  - for each model: its weights, which all clients share, and its executions;
  - for each client, which is a model instance in another process: its memory, its share of the
    execution time since the last update, and its waiting time.

The command starts no service and keeps no service alive.
"""

_EPILOG: Final = """\
examples:
  ge-runtime top
  ge-runtime top --once
  ge-runtime top --json | jq '.[].clients[] | {name, executions, wait_s}'

Exit codes: 0 success, 1 no service was found (with --once or --json), 2 invalid arguments or input.
"""

_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
"""Escape sequences that overwrite the screen; a screen that is cleared first would flicker."""

_MODEL_COLUMNS: Final = {
    "model": "<", "engine": "<", "content": "<", "weights": ">", "clients": ">",
    "executions": ">", "faults": ">", "mean ms": ">",
}  # fmt: skip
_CLIENT_COLUMNS: Final = {
    "client": "<", "pid": ">", "process": "<", "arenas": ">", "executions": ">", "faults": ">",
    "waiting": ">", "waited ms": ">", "weight": ">", "share": ">",
}  # fmt: skip
_MAX_INTERVAL_S: Final = 86_400.0
_ANSWER_TIMEOUT_S: Final = 5.0

_OPTIONAL_COLUMNS: Final = (
    "content",
    "process",
    "engine",
    "weight",
    "arenas",
    "clients",
    "waited ms",
)
"""Columns that a narrow terminal omits, in this order."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--once", action="store_true", help="print the table once")
    add("--json", action="store_true", help="print all statistics once, as JSON")
    add(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="seconds between updates (default: 1)",
    )


def _run(given: argparse.Namespace) -> int:
    with RuntimeFolder.open() as folder:
        if not given.json and not given.once:
            _live(folder, given.interval)
            return 0
        services = read_services(folder)
        if given.json:
            print(json.dumps(services, indent=2))
        else:
            print("\n".join(table(services, {}, folder.path, _size_of_terminal()[0])))
        return 0 if services else EXIT_NO


COMMAND: Final = Command(
    name="top",
    help="show the device services and their load",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def read_services(folder: RuntimeFolder) -> list[dict[str, Any]]:
    """Return the statistics of each service, without starting a service or keeping it alive.

    A service that does not answer within some seconds has only `device` and `fault`. A service that
    ends during the call is omitted.
    """
    services: list[dict[str, Any]] = []
    for device in folder.devices():
        with suppress(NoService, PeerGone):
            try:
                services.append(_stats(device, folder))
            except RuntimeFault as fault:
                services.append({"device": device, "fault": str(fault)})
    return services


def _stats(device: str, folder: RuntimeFolder) -> dict[str, Any]:
    until = time.monotonic() + _ANSWER_TIMEOUT_S

    def check_deadline() -> None:
        if time.monotonic() > until:
            raise ServiceFault(f"no answer within {_ANSWER_TIMEOUT_S:g} s")

    channel, _ = connect(device, folder, check_deadline)
    try:
        return request(channel, {"role": "observer", "version": VERSION}, check_deadline)
    finally:
        channel.close()


def _live(folder: RuntimeFolder, interval_s: float) -> None:
    before: dict[str, Stats] = {}
    try:
        while True:
            services = read_services(folder)
            columns, rows = _size_of_terminal()
            lines = table(services, before, folder.path, columns)
            if sys.stdout.isatty():
                _fill_screen(lines, columns, rows)
            else:  # a file or a pipe
                print("\n".join([*lines, ""]), flush=True)
            before = {one["device"]: one for one in services}
            time.sleep(interval_s)
    except KeyboardInterrupt:
        return


def _fill_screen(lines: list[str], columns: int, rows: int) -> None:
    if len(lines) >= rows:
        hidden = len(lines) - rows + 2
        lines[-hidden:] = [f"... {hidden} more lines: see --once"]
    screen = "".join(f"{line[:columns]}{_END_OF_LINE}\n" for line in lines)
    sys.stdout.write(_HOME + screen + _BELOW)
    sys.stdout.flush()


def _size_of_terminal() -> tuple[int, int]:
    """Return columns and rows; unlimited without a terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return sys.maxsize, sys.maxsize


def table(
    services: Sequence[Stats], before: Mapping[str, Stats], path: Path, columns: int = sys.maxsize
) -> list[str]:
    """Return the table of all services as lines, which omit columns if `columns` is small.

    A client's share is its part of the execution time since the statistics `before`, which are by
    device, or else since the service's start. `path` is the runtime folder.
    """
    if not services:
        return [
            f"No device service runs (none in {path}). Only models with `placement: service` start "
            "one; the server's live page and `/metrics` show other models"
        ]
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
        for rows, sides in (
            (_models(stats), _MODEL_COLUMNS),
            (_clients(stats, earlier if same else {}), _CLIENT_COLUMNS),
        ):
            if rows:
                lines += ["", *_fitted(rows, sides, columns)]
    return lines


def _service(stats: Stats) -> list[str]:
    turns, memory, place = stats["turns"], stats["memory"], stats["place"] or {}
    waited = turns["wait_s"] / turns["waited"] if turns["waited"] else 0.0
    allocated = sum(memory["allocated"].values())
    return [
        f"{stats['device']} ({place.get('hardware', 'not opened')}), pid {stats['pid']}, "
        f"up {_duration(stats['up_s'])}",
        f"  runs    {turns['begun']:,} started, {turns['running']} running, "
        f"{turns['waiting']} waiting; {turns['capacity'] - turns['free']} of {turns['capacity']} "
        "units in use",
        f"  waits   {turns['waited']:,}, mean {waited * 1e3:.1f} ms, longest "
        f"{turns['longest_wait_s'] * 1e3:.1f} ms; {turns['expired']} expired, "
        f"{turns['cancelled']} cancelled",
        f"  memory  weights {_size(memory['weights'])}, arenas {_size(memory['arenas'])}, "
        f"allocated {_size(allocated)}, resident {_size(memory['resident'])}",
        *_card(stats.get("card", {})),
    ]


def _card(card: Stats) -> list[str]:
    """Return the line about the device, if it reports anything."""
    if not card:
        return []
    if card["device_unwell"]:
        return ["  card    it reports a fault or does not answer; see the log of the service"]
    values = [f"{_size(card['device_free_bytes'])} free of {_size(card['device_total_bytes'])}"]
    values += [
        f"{name.removeprefix('device_').removesuffix('_percent')} {value}%"
        for name, value in card.items()
        if name.endswith("_percent")
    ]
    return [f"  card    {', '.join(values)}"]


def _models(stats: Stats) -> list[Sequence[str]]:
    return [
        (
            shown(*map(Path, model["artifacts"])),
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


def _clients(stats: Stats, before: Stats) -> list[Sequence[str]]:
    earlier = {one["number"]: one["busy_s"] for one in before.get("clients", ())}
    busy = [one["busy_s"] - earlier.get(one["number"], 0.0) for one in stats["clients"]]
    whole = sum(busy)
    return [
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


def _fitted(rows: Sequence[Sequence[str]], sides: Mapping[str, str], columns: int) -> list[str]:
    """Return the rows with a header, without columns that do not fit."""
    shown_columns = list(sides)
    for name in (None, *_OPTIONAL_COLUMNS):
        if name in shown_columns:
            shown_columns.remove(name)
        named = [dict(zip(sides, row, strict=True)) for row in (list(sides), *rows)]
        cells = [[row[name] for name in shown_columns] for row in named]
        lines = [
            f"  {line}"
            for line in aligned_columns(cells, "".join(sides[name] for name in shown_columns))
        ]
        if max(map(len, lines)) <= columns:
            break
    return lines


def _size(nbytes: int) -> str:
    return in_binary_units(nbytes) or f"{nbytes} B"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _seconds(text: str) -> float:
    expected = f"seconds above 0 and up to {_MAX_INTERVAL_S:,.0f}"
    return number(text, lambda value: 0 < value <= _MAX_INTERVAL_S, expected)
