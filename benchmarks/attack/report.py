"""Results of attacks: the rows that are printed, and the table of docs/results/campaign.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.attack.watching import Facts, Noticed
from triton_replay.comparing.latencies import percentile_of

HEADINGS = (
    "attack",
    "server",
    "answers",
    "refused",
    "lost",
    "wrong",
    "p99 ms",
    "most ms",
    "MiB",
    "fds",
    "threads",
    "what it did, and what failed",
)
_COLUMNS = {
    "inline": "Ours, inline",
    "process": "Ours, process",
    "triton": "The real server, 2.51",
}
_NOT_ATTACKED = "-"


@dataclass
class Row:
    """The result of one attack on one server."""

    attack: str
    side: str
    did: str
    noticed: Noticed
    grown: Facts
    failures: list[str]

    def cells(self) -> list[object]:
        """Return the cells of the row, in the order of HEADINGS."""
        times = self.noticed.seconds or [float("nan")]
        return [
            self.attack,
            self.side,
            self.noticed.answers,
            self.noticed.refused,
            self.noticed.lost,
            len(self.noticed.wrong),
            f"{1e3 * percentile_of(times, 99):.0f}",
            f"{1e3 * max(times):.0f}",
            f"{self.grown.mib:+.0f}",
            f"{self.grown.descriptors:+d}",
            f"{self.grown.threads:+d}",
            "; ".join([self.did, *self.failures]),
        ]


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table with a row for each attack, a column for each server."""
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
    parts = [f"{row['p99 ms']} ms", f"{row['MiB']} MiB"]
    parts += [f"{row[what]} {what}" for what in ("refused", "lost", "wrong") if row[what]]
    return ", ".join([*parts, *map(str, row["failures"])])
