"""The model API's arguments: what the real server's functions make of every kind of value.

The probe `arguments` calls every function with every kind of value for each argument. What came of
it on tritonserver 2.51.0, with NumPy 1.26, is kept in `recorded/arguments.jsonl`: a line for each
argument, or several that are read alike, with the kinds by what came of them. `make tables
TABLES=write` records it anew.

Compared are: whether a value is taken, what can be read back of it, and otherwise the exception's
type and its text. Left out of texts are addresses, the repetition of the arguments behind `Invoked
with:` (where it is the one that pybind11 makes), and how Python's own texts call the value's class.
What may still differ stands in `DIFFERENCES`, with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "recorded" / "arguments.jsonl"
NUMBER = "the number of arguments"

#: By call and argument: the kinds by what came of them.
Matrix = dict[str, dict[str, dict[str, list[str]]]]


@dataclass(frozen=True)
class Cell:
    """One call: what came of it on the real server and here."""

    call: str
    argument: str
    kind: str
    real: str
    ours: str


@dataclass(frozen=True)
class Difference:
    """Cells that may differ, and why; there is one at least, if not all depends on NumPy."""

    reason: str
    covers: Callable[[Cell], bool]
    by_numpy: bool = False


def _both_refuse(cell: Cell) -> bool:
    return cell.real.startswith("TypeError: ") and cell.ours.startswith("TypeError: ")


def _is_numpys(cell: Cell) -> bool:
    """Whether it is what NumPy 2 does otherwise, whatever the server."""
    return (
        cell.kind in ("array of 1", "array of none")
        or (cell.call == "numpy_to_triton_type" and "__array_wrap__" in cell.real)
        or (cell.real.startswith("UFuncTypeError: ") and cell.ours.startswith("UFuncTypeError: "))
        or cell.real.replace("bool_", "bool") == cell.ours
    )


DIFFERENCES = (
    Difference(
        "too many arguments for a function that takes none: a TypeError in both, here with "
        "Python's own text, since whatever reads arguments would cost each call of `as_numpy`, "
        "`name` or `inputs` twice its time",
        lambda cell: cell.argument == NUMBER and _both_refuse(cell),
    ),
    Difference(
        "bytes that are no UTF-8 are read as U+FFFD; on Triton what holds them raises a "
        "UnicodeDecodeError once they are read back",
        lambda cell: cell.kind == "bytes, no UTF-8" and "UnicodeDecodeError" in cell.real,
    ),
    Difference(
        "`triton_dtype()` gives the type's number; Triton's always raises",
        lambda cell: cell.call == "Tensor.triton_dtype",
    ),
    Difference(
        "`serialize_byte_tensor` takes the bytes of subclasses such as `np.bytes_`; Triton sends "
        "their text, `b'm'` with its quotes",
        lambda cell: cell.call == "serialize_byte_tensor" and cell.kind in (
            "bytes, subclass", "np.bytes_"),
    ),
    Difference(
        "NumPy 2 instead of 1.26, which Triton 2.51.0 needs: with that these are equal, too",
        lambda cell: np.__version__ >= "2" and _is_numpys(cell),
        by_numpy=True,
    ),
)  # fmt: skip


def recorded() -> Matrix:
    """What came of all on the real server."""
    matrix: Matrix = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        call, arguments, outcomes = json.loads(line)
        matrix.setdefault(call, {}).update(dict.fromkeys(arguments, outcomes))
    return matrix


def record(matrix: Matrix) -> None:
    """Keep what came of all on the real server: a line for arguments that are read alike."""
    lines: list[str] = []
    for call, arguments in matrix.items():
        alike: dict[str, list[str]] = {}
        for argument, outcomes in arguments.items():
            alike.setdefault(json.dumps(outcomes), []).append(argument)
        lines += (f"[{json.dumps(call)}, {json.dumps(names)}, {outcomes}]"
                  for outcomes, names in alike.items())  # fmt: skip
    FILE.write_text("\n".join([*lines, ""]), encoding="utf-8")


def by_cell(matrix: Matrix) -> dict[tuple[str, str, str], str]:
    """What came of each call with each argument and kind."""
    return {
        (call, argument, kind): outcome
        for call, arguments in matrix.items()
        for argument, outcomes in arguments.items()
        for outcome, kinds in outcomes.items()
        for kind in kinds
    }


def differing(ours: Matrix) -> Iterator[Cell]:
    """The cells in which what came of it here is not what is recorded."""
    real, here = by_cell(recorded()), by_cell(ours)
    assert real.keys() == here.keys()
    for (call, argument, kind), outcome in real.items():
        if here[call, argument, kind] != outcome:
            yield Cell(call, argument, kind, outcome, here[call, argument, kind])


def reason(cell: Cell) -> Difference | None:
    """Why a cell differs; None if nothing says so."""
    return next((one for one in DIFFERENCES if one.covers(cell)), None)


def counts(ours: Matrix) -> dict[str, int]:
    """How many cells differ, by the reason."""
    found = Counter({one.reason: 0 for one in DIFFERENCES})
    for cell in differing(ours):
        why = reason(cell)
        assert why is not None, cell
        found[why.reason] += 1
    return dict(found)
