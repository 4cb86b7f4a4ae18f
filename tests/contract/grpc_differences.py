"""Accepted differences between the reference server's gRPC frontend and NVIDIA's, with reasons.

As in differences.py, any other difference is a fault, and a row without any effect fails the suite.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from contract.grpc_casebook import Forget, GrpcCase, Outcome, details, everything


@dataclass(frozen=True)
class Difference:
    """An accepted difference: its cases, its reason, and the parts that are not compared."""

    cases: str
    reason: str
    forget: Forget

    def concerns(self, case: GrpcCase) -> bool:
        """Return whether this difference applies to a case."""
        return fnmatchcase(case.name, self.cases)


WRAPPED = (
    "an integer that does not fit is refused; the real server sends other numbers to the model"
)
OVERFLOW = (
    "sizes are counted without a limit; the real server's wrap to 0, and a request without data is "
    "then taken, which ends the model's process"
)

DIFFERENCES: list[Difference] = [
    *(
        Difference(f"typed: {datatype} wraps", WRAPPED, everything)
        for datatype in ("INT8", "INT16", "UINT8", "UINT16")
    ),
    Difference(
        "classes: more than 32 bits",
        "so many are all there are; the real server takes the low 32 bits, which say none",
        everything,
    ),
    Difference(
        "ensemble: of no rows, with the data of one",
        "a step that batches is not sent a row without its batch, which it would refuse",
        everything,
    ),
    Difference(
        "shape: beyond 64 bits", OVERFLOW, details(lambda text: text[: text.index("Expect")])
    ),
    Difference(
        "shape: below 64 bits", OVERFLOW, details(lambda text: text[: text.index("Expect")])
    ),
]


def comparable(
    case: GrpcCase, outcomes: tuple[Outcome, ...], differences: Iterable[Difference] = ()
) -> tuple[Outcome, ...]:
    """Return an outcome without the parts that are not compared for this case."""
    result = tuple(map(case.unstable, outcomes))
    for difference in differences:
        if difference.concerns(case):
            result = tuple(map(difference.forget, result))
    return result
