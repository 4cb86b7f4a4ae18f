"""Findings about a machine: their states, which of them count, and the report."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import Final

from ge_runtime.memory.plan import aligned_columns

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


@dataclass(frozen=True, slots=True)
class Subject:
    """What one check looks at: a finding, but for what is found."""

    group: str
    what: str
    expected: str
    needs: frozenset[str] = NOBODY
    """As of Finding."""

    def finding(self, state: State, found: str, cure: str = "") -> Finding:
        return Finding(self.group, self.what, state, found, self.expected, cure, self.needs)

    def ok(self, found: str) -> Finding:
        return self.finding(State.OK, found)

    def missing(self, found: str, cure: str) -> Finding:
        return self.finding(State.MISSING, found, cure)

    def wrong(self, found: str, cure: str) -> Finding:
        return self.finding(State.WRONG, found, cure)

    def unknown(self, found: str, cure: str) -> Finding:
        return self.finding(State.UNKNOWN, found, cure)


def judge(findings: Iterable[Finding], required: frozenset[str]) -> list[Finding]:
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


_WIDTH: Final = 100
_COMMAND: Final = re.compile("`[^`]*`")
_GLUE: Final = "\0"
_MOST: Final = 60
"""Characters of a thing that was found, in the table; `--json` and cures have all of it."""


def report_lines(
    findings: Sequence[Finding], required: frozenset[str], faults: Sequence[Finding]
) -> list[str]:
    """All of it for people: a table of each group, then what to do."""
    rows = aligned_columns(
        [(each.what, each.state.value, _short(each.found)) for each in findings], "<<<"
    )
    shown: list[str] = []
    for group, members in groupby(zip(findings, rows, strict=True), key=lambda pair: pair[0].group):
        shown += [*([""] if shown else []), group, *(f"  {row}" for _, row in members)]
    cures = [each for each in findings if each.state in (*FAULTS, State.UNKNOWN)]
    if cures:
        shown += ["", "What to do"]
        for each in cures:
            shown += _cure(each, counts=each in faults)
    names = ", ".join(sorted(required))
    verdict = "nothing stands" if not faults else f"{len(faults)} of these stand"
    verdict += "s" * (len(faults) == 1)
    return [*shown, "", f"Required: {names}; {verdict} in the way."]


def as_json(
    findings: Sequence[Finding], required: frozenset[str], faults: Sequence[Finding]
) -> dict[str, object]:
    """The same for programs."""
    return {
        "required": sorted(required),
        "fit": not faults,
        "findings": [
            {
                "group": each.group,
                "what": each.what,
                "state": each.state.value,
                "found": each.found,
                "expected": each.expected,
                "cure": each.cure,
                "needed_by": sorted(each.needs),
                "stands_in_the_way": each in faults,
            }
            for each in findings
        ],
    }


def _short(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def _cure(finding: Finding, *, counts: bool) -> list[str]:
    """counts: whether it stands in the way."""
    mark = "!" if counts else "-"
    head = f"{finding.group}, {finding.what}: found {finding.found}, expected {finding.expected}"
    wrap = textwrap.TextWrapper(_WIDTH, break_long_words=False, break_on_hyphens=False)
    wrap.initial_indent, wrap.subsequent_indent = f"  {mark} ", "    "
    told = wrap.wrap(head)
    wrap.initial_indent = "    "
    # A command stays on one line, however long, as it is to be pasted.
    whole = _COMMAND.sub(lambda command: command[0].replace(" ", _GLUE), finding.cure)
    return [*told, *(line.replace(_GLUE, " ") for line in wrap.wrap(whole))]
