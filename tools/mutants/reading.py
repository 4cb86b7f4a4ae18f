"""What was played, as a table, and as kills that were lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: What becomes of a mutant that tests notice.
NOTICED = ("killed", "hung")
#: Mutants that nobody can notice, each with the reason: they were read one by one.
EQUIVALENT = Path(__file__).with_name("equivalent.json")


def read(played: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """What became of each mutant; of several answers the last counts."""
    lines = (json.loads(line) for path in played for line in path.read_text().splitlines())
    return {
        json.dumps(line["mutant"], sort_keys=True): line
        for line in lines
        if line["outcome"] != "not patched"
    }


def _key(site: dict[str, Any]) -> tuple[Any, ...]:
    """Without its line, which moves."""
    return tuple(site[name] for name in ("file", "function", "statement", "kind", "number"))


def table(played: Iterable[Path], equivalent: Path = EQUIVALENT) -> dict[str, Counter[str]]:
    """By room: how many were played, killed (or hung), survived, and are equivalent."""
    excused = {_key(row) for row in json.loads(equivalent.read_text())}
    rooms: dict[str, Counter[str]] = {}
    for line in read(played).values():
        if line["outcome"] == "not found":
            continue
        site = line["here"]
        counts = rooms.setdefault(str(Path(site["file"]).parent), Counter())
        counts["played"] += 1
        if line["outcome"] in NOTICED:
            counts["killed"] += 1
        else:
            counts["equivalent" if _key(site) in excused else "survived"] += 1
    rooms["all"] = sum(rooms.values(), Counter())
    return rooms


def shown(rooms: dict[str, Counter[str]]) -> str:
    """The table as pages have it. The rate leaves out what is equivalent."""
    columns = ("played", "killed", "survived", "equivalent")
    rows = [f"| Room | {' | '.join(columns).title()} | Rate |", f"|{' --- |' * 6}"]
    for room, counts in rooms.items():
        told = counts["killed"] + counts["survived"]
        rate = f"{100 * counts['killed'] / told:.1f} %" if told else ""
        rows.append(f"| {room} | {' | '.join(str(counts[each]) for each in columns)} | {rate} |")
    return "\n".join(rows)


def survivors(played: Iterable[Path], equivalent: Path = EQUIVALENT) -> list[str]:
    """Each mutant that no test noticed, in one line."""
    excused = {_key(row) for row in json.loads(equivalent.read_text())}
    return [
        f"{site['file']}:{site['line']} {site['kind']} {site['number']}: {site['statement']}"
        for line in read(played).values()
        if line["outcome"] == "survived" and _key(site := line["here"]) not in excused
    ]


def lost_kills(before: Path, after: Path) -> list[str]:
    """Each mutant that was noticed before and no longer is, in one line."""
    first, then = read([before]), read([after])
    lost = [
        (was["mutant"], then[mutant]["outcome"] if mutant in then else "not played")
        for mutant, was in first.items()
        if was["outcome"] in NOTICED
        and (mutant not in then or then[mutant]["outcome"] not in NOTICED)
    ]
    return [
        f"{outcome}: {site['file']}:{site['line']} {site['kind']} {site['statement']}"
        for site, outcome in lost
    ]
