"""The table of a conversion: what is kept, changed and dropped, and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_WIDTH: Final = 48


class Row(NamedTuple):
    """A row of the table."""

    verdict: str
    """"kept", "changed" or "dropped"."""
    what: str
    """A parameter with its value, or a field of config.pbtxt."""
    why: str


@dataclass(slots=True)
class ConversionReport:
    """The table and the problems of a conversion. Not thread-safe."""

    dropped: Collection[str]
    """Names given with --drop."""
    problems: list[str] = field(default_factory=list)
    """Parts that cannot be converted: "NAME = VALUE: reason; fix", one line each."""
    rows: list[Row] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    """Names in `dropped` that were refused."""

    def keep(self, what: str, why: str) -> None:
        """Add a part that has the same meaning in ge_runtime."""
        self.rows.append(Row("kept", what, why))

    def change(self, what: str, why: str) -> None:
        """Add a part of the new configuration that replaces something, or that is new."""
        self.rows.append(Row("changed", what, why))

    def drop(self, name: str, value: str, why: str) -> None:
        """Add a part that is not in the new configuration, and does not affect responses."""
        self.rows.append(Row("dropped", f"{name} = {value}", why))

    def refuse(self, name: str, value: str, why: str, cure: str = "") -> None:
        """Add a problem that --drop NAME resolves, or a row if the name is in `dropped`."""
        if name in self.dropped:
            self.used.add(name)
            self.drop(name, value, "--drop")
            return
        drop = f"--drop {name}"
        self.require(name, value, why, f"{cure}, or {drop}" if cure else drop)

    def require(self, name: str, value: str, why: str, cure: str) -> None:
        """Add a problem that only a change of the input resolves."""
        self.problems.append(f"{name} = {value}: {why}; {cure}")

    def table(self) -> list[str]:
        """Return the lines of the table: first kept rows, then changed rows, then dropped rows."""
        rows = sorted(self.rows, key=lambda row: ("kept", "changed", "dropped").index(row.verdict))
        width = min(max((len(row.what) for row in rows), default=0), _WIDTH)
        return [f"{row.verdict:7}  {row.what:{width}}  {row.why}" for row in rows]
