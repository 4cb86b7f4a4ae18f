"""The server's order of inputs: which input's fault is reported, and what models receive.

The order is that of a C++ hash table; see `reference_server/core/cpp.py`.
"""

from __future__ import annotations

import random
from typing import Any

from contract.casebook import case, chapter, infer, tensor
from contract.probes import WIDE

GOOD = {
    "A": tensor("A", "FP32", [1, 4], [1, 2, 3, 4]),
    "B": tensor("B", "INT32", [1, 1, 2], [5, 6]),
}
#: For each kind of fault, the inputs of `pair` with this fault.
FAULTY = {
    "type": {
        "A": tensor("A", "FP64", [1, 4], [1] * 4),
        "B": tensor("B", "FP32", [1, 1, 2], [5, 6]),
    },
    "shape": {"A": tensor("A", "FP32", [1, 3], [1] * 3), "B": tensor("B", "INT32", [1, 2], [5, 6])},
    "batch": {
        "A": tensor("A", "FP32", [2, 4], [1] * 8),
        "B": tensor("B", "INT32", [9, 1, 2], [5] * 18),
    },
    "rank": {"A": tensor("A", "FP32", [], [1]), "B": tensor("B", "INT32", [1], [5])},
    "name": {
        "A": tensor("C", "FP32", [1, 4], [1] * 4),
        "B": tensor("input_ids", "INT32", [1, 1, 2], [5, 6]),
    },
    "nothing": GOOD,
}
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
SEQUENCE = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}


def orders(count: int) -> list[tuple[str, ...]]:
    """Return the inputs of `wide` as configured, in reverse order, and shuffled."""
    draw = random.Random(5)
    return [WIDE, WIDE[::-1], *(tuple(draw.sample(WIDE, len(WIDE))) for _ in range(count))]


def ones(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return an input of one element for each name."""
    return [tensor(name, "FP32", [1], [1]) for name in names]


CASES = [
    *chapter(
        "two faults",
        *(
            case(f"{first}, {second}{how}", infer("pair", *given), 400)
            for first in FAULTY
            for second in FAULTY
            if (first, second) != ("nothing", "nothing")
            for how, given in {
                "": (FAULTY[first]["A"], FAULTY[second]["B"]),
                ", B first": (FAULTY[second]["B"], FAULTY[first]["A"]),
            }.items()
        ),
    ),
    *chapter(
        "order",
        *(
            case(f"inputs {number}", infer("wide", *ones(names)), 200)
            for number, names in enumerate(orders(6))
        ),
        *(
            case(
                f"inputs and controls {number}",
                infer("wide_sequence", *ones(names), parameters=SEQUENCE),
                200,
            )
            for number, names in enumerate(orders(2))
        ),
        *(
            case(
                f"too many {count}",
                infer("vector", *ones(tuple("abcdefghijklmnopqrstuvwxyz"[:count]))),
                400,
            )
            for count in (2, 3, 13, 14, 26)
        ),
        case(
            "unknown outputs",
            infer("wide", *ones(WIDE), outputs=[{"name": name} for name in "zAaö_9"]),
            400,
        ),
    ),
]
