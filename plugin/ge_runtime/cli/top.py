"""`ge-runtime top`: the device services of this user, their models and clients, as a live table."""

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

from ge_runtime.cli.command import EXIT_NO, Command
from ge_runtime.errors import RuntimeFault, ServiceFault, shown
from ge_runtime.memory.plan import aligned_columns, in_binary_units
from ge_runtime.npu.service.channel import PeerGone
from ge_runtime.npu.service.connection import NoService, connect, request
from ge_runtime.npu.service.protocol import VERSION
from ge_runtime.npu.service.runtime_folder import RuntimeFolder

Stats: TypeAlias = Mapping[str, Any]
"""What a service tells: see `service.state.ServiceState.stats`."""

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

_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
"""Where to write next, and what to clear from there on: without a moment of an empty screen."""

_MODEL_COLUMNS: Final = {
    "model": "<", "engine": "<", "content": "<", "weights": ">", "clients": ">",
    "executions": ">", "faults": ">", "mean ms": ">",
}  # fmt: skip
_CLIENT_COLUMNS: Final = {
    "client": "<", "pid": ">", "process": "<", "arenas": ">", "executions": ">", "faults": ">",
    "waiting": ">", "waited ms": ">", "weight": ">", "share": ">",
}  # fmt: skip
_MOST_INTERVAL_S: Final = 86_400.0
_ANSWER_S: Final = 5.0
"""Until a service has answered: else it is shown as one that does not."""

_LESS_NEEDED: Final = ("content", "process", "engine", "weight", "arenas", "clients", "waited ms")
"""Columns that a narrow terminal does without, the first to go first."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--once", action="store_true", help="print the table once, and end")
    add("--json", action="store_true", help="print all figures once, as JSON")
    add("--interval", type=_seconds, default=1.0, metavar="S", help="between two looks (1)")


def _run(given: argparse.Namespace) -> int:
    with RuntimeFolder.open() as folder:
        if given.json:
            services = look(folder)
            print(json.dumps(services, indent=2))
            return 0 if services else EXIT_NO
        if given.once:
            services = look(folder)
            print("\n".join(table(services, {}, folder.path, _size_of_terminal()[0])))
            return 0 if services else EXIT_NO
        _live(folder, given.interval)
        return 0


COMMAND: Final = Command(
    name="top",
    help="show what the device services do",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def look(folder: RuntimeFolder) -> list[dict[str, Any]]:
    """What each service tells of itself. Starts none, and keeps none from ending.

    One that does not answer within seconds is there with its device and a `fault`. One that has
    ended meanwhile is not.
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
    until = time.monotonic() + _ANSWER_S

    def patience() -> None:
        if time.monotonic() > until:
            raise ServiceFault(f"it does not answer within {_ANSWER_S:g} s")

    channel, _ = connect(device, folder, patience)
    try:
        return request(channel, {"role": "observer", "version": VERSION}, patience)
    finally:
        channel.close()


def _live(folder: RuntimeFolder, interval_s: float) -> None:
    before: dict[str, Stats] = {}
    try:
        while True:
            services = look(folder)
            columns, rows = _size_of_terminal()
            lines = table(services, before, folder.path, columns)
            if sys.stdout.isatty():
                _fill_screen(lines, columns, rows)
            else:  # a file or a pipe: one table after the other
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
    """Columns and rows; without a terminal there is room for everything."""
    try:
        return os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return sys.maxsize, sys.maxsize


def table(
    services: Sequence[Stats], before: Mapping[str, Stats], path: Path, columns: int = sys.maxsize
) -> list[str]:
    """All services for people, line by line.

    before: what each device's service told the last time: shares are of the time since then, or
    since the service's start. path: where services were looked for. columns: of the terminal;
    tables leave out what is needed least.
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
        f"  turns   {turns['begun']:,} begun, {turns['running']} under way, "
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
    """What the device tells of itself, if it does."""
    if not card:
        return []
    if card["device_unwell"]:
        return ["  card    it says that it cannot be used, or does not answer: its log says what"]
    told = [f"{_size(card['device_free_bytes'])} free of {_size(card['device_total_bytes'])}"]
    told += [
        f"{name.removeprefix('device_').removesuffix('_percent')} {value}%"
        for name, value in card.items()
        if name.endswith("_percent")
    ]
    return [f"  card    {', '.join(told)}"]


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
    """The rows below the names of their columns, without those that there is no room for."""
    there = list(sides)
    for name in (None, *_LESS_NEEDED):
        if name in there:
            there.remove(name)
        named = [dict(zip(sides, row, strict=True)) for row in (list(sides), *rows)]
        cells = [[row[name] for name in there] for row in named]
        lines = [
            f"  {line}" for line in aligned_columns(cells, "".join(sides[name] for name in there))
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
    """An argument above 0, a day at most. Raises ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MOST_INTERVAL_S:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected seconds above 0, {_MOST_INTERVAL_S:,.0f} at most"
        )
    return seconds
