"""A matrix of the model API: each function with each kind of value for each argument.

The probe `arguments` makes the calls. An outcome is `accepted` or the class of the exception; texts
are not compared. `recorded/arguments.json` holds the outcomes on tritonserver 2.51.0 with NumPy
1.26; `make tables TABLES=write` records them again. Expected differences are in `DIFFERENCES`.

The file has one entry for all arguments with equal outcomes: the most frequent outcome, and the
kinds of values with other outcomes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "recorded" / "arguments.json"
NUMBER = "the number of arguments"

#: The kinds of values by call, argument and outcome.
Matrix = dict[str, dict[str, dict[str, list[str]]]]


@dataclass(frozen=True)
class Cell:
    """One call with its outcome on the real server and here."""

    call: str
    argument: str
    kind: str
    real: str
    ours: str


@dataclass(frozen=True)
class Difference:
    """The reason for a difference and the cells that it covers.

    A difference covers at least one cell, unless it depends on the installed NumPy.
    """

    reason: str
    covers: Callable[[Cell], bool]
    by_numpy: bool = False


DIFFERENCES = (
    Difference(
        "`triton_dtype()` returns the number of the type; Triton's always raises",
        lambda cell: cell.call == "Tensor.triton_dtype",
    ),
    Difference(
        "NumPy 2 instead of 1.26, which Triton 2.51.0 needs: with 1.26 these are equal",
        lambda cell: np.__version__ >= "2" and (
            cell.kind in ("array of 1", "array of none") or cell.call == "numpy_to_triton_type"),
        by_numpy=True,
    ),
)  # fmt: skip


def recorded() -> Callable[[str, str, str], str]:
    """Return a function that returns the real server's outcome of a call, argument and kind."""
    entries = {
        argument: entry
        for entry in json.loads(FILE.read_text(encoding="utf-8"))
        for argument in entry["arguments"]
    }

    def outcome(call: str, argument: str, kind: str) -> str:
        entry = entries[f"{call}: {argument}"]
        found = (name for name, kinds in entry["except"].items() if kind in kinds)
        return next(found, entry["outcome"])

    return outcome


def record(matrix: Matrix) -> None:
    """Write the outcomes on the real server."""
    entries: dict[str, list[str]] = {}
    for call, arguments in matrix.items():
        for argument, outcomes in arguments.items():
            usual = max(outcomes, key=lambda name: len(outcomes[name]))
            others = {name: kinds for name, kinds in sorted(outcomes.items()) if name != usual}
            key = json.dumps({"outcome": usual, "except": others})
            entries.setdefault(key, []).append(f"{call}: {argument}")
    lines = (json.dumps({"arguments": names} | json.loads(key)) for key, names in entries.items())
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def by_cell(matrix: Matrix) -> dict[tuple[str, str, str], str]:
    """Return the outcomes by call, argument and kind."""
    return {
        (call, argument, kind): outcome
        for call, arguments in matrix.items()
        for argument, outcomes in arguments.items()
        for outcome, kinds in outcomes.items()
        for kind in kinds
    }


def differing(ours: Matrix) -> Iterator[Cell]:
    """Yield the cells whose outcome here differs from the recorded outcome."""
    real = recorded()
    for cell, outcome in by_cell(ours).items():
        if outcome != real(*cell):
            yield Cell(*cell, real(*cell), outcome)


def reason(cell: Cell) -> Difference | None:
    """Return the expected difference that covers a cell, or None."""
    return next((one for one in DIFFERENCES if one.covers(cell)), None)


def counts(ours: Matrix) -> dict[str, int]:
    """Return the number of differing cells by reason."""
    found = Counter({one.reason: 0 for one in DIFFERENCES})
    for cell in differing(ours):
        why = reason(cell)
        assert why is not None, cell
        found[why.reason] += 1
    return dict(found)
