"""The table of results in docs/results/campaign.md: one row for each attack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_COLUMNS = {
    "inline": "Ours, inline",
    "process": "Ours, process",
    "triton": "The real server, 2.51",
}
_NOT_ATTACKED = "-"


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a table in Markdown, of the rows of the campaign's results."""
    sides = [side for side in _COLUMNS if any(row["server"] == side for row in rows)]
    yield f"| Attack | {' | '.join(_COLUMNS[side] for side in sides)} |"
    yield f"| --- |{' --- |' * len(sides)}"
    for attack in dict.fromkeys(row["attack"] for row in rows):
        found = {row["server"]: row for row in rows if row["attack"] == attack}
        cells = [_cell(found[side]) if side in found else _NOT_ATTACKED for side in sides]
        yield f"| {attack} | {' | '.join(cells)} |"


def _cell(row: Mapping[str, Any]) -> str:
    if not row["answers"]:
        return "; ".join(map(str, row["failures"] or ["no answers"]))
    told = [f"{row['p99 ms']} ms", f"{row['MiB']} MiB"]
    told += [f"{row[what]} {what}" for what in ("refused", "lost", "wrong") if row[what]]
    return ", ".join([*told, *map(str, row["failures"])])
