"""What a check says of a machine, and what counts of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

REQUIRABLE: Final = ("cpu", "cuda", "npu", "service")
"""What one can ask a machine for."""

NEEDS: Final = (*REQUIRABLE, "torch", "torch_npu", "ge_session")
"""What a finding may matter to; those that are not REQUIRABLE are asked for by models only."""

ANY: Final = frozenset(REQUIRABLE)
NOBODY: Final[frozenset[str]] = frozenset()


class State(Enum):
    """Of one thing on a machine."""

    OK = "ok"
    MISSING = "missing"
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """It could not be found out, or nobody has written down what is right."""
    NOT_NEEDED = "not needed"
    """Missing, and nothing that is asked for needs it."""


FAULTS: Final = (State.MISSING, State.WRONG)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing on a machine."""

    group: str
    what: str
    state: State
    found: str
    expected: str
    cure: str = ""
    """What to do about it; empty if it is OK."""
    needs: frozenset[str] = NOBODY
    """It matters to these, of NEEDS; to nothing that serves, if there are none."""


def judged(findings: Iterable[Finding], required: frozenset[str]) -> list[Finding]:
    """The same findings; those that are missing and that nothing required needs say so."""
    return [
        replace(each, state=State.NOT_NEEDED)
        if each.state is State.MISSING and not each.needs & required
        else each
        for each in findings
    ]


def faults_of(findings: Iterable[Finding], required: frozenset[str]) -> list[Finding]:
    """Those that are missing or wrong where something required needs them."""
    return [each for each in findings if each.state in FAULTS and each.needs & required]
