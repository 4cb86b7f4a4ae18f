"""Findings about a machine: states, severity, and the report."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import Final

from ge_runtime.memory.plan import aligned_columns

REQUIRABLE: Final = ("cpu", "cuda", "npu", "build", "service")
"""Values of --require."""

NEEDS: Final = (*REQUIRABLE, "torch", "torch_npu", "ge_session")
"""All possible requirements; only models can require the last three."""

ALWAYS: Final = frozenset(REQUIRABLE)


class State(Enum):
    """The state of one checked item."""

    OK = "ok"
    MISSING = "missing"
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """Not determined, or the expected value is not known."""
    NOT_NEEDED = "not needed"
    """Missing, and not required."""


FAULTS: Final = (State.MISSING, State.WRONG)


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked item. Each method returns the item with the result of its check."""

    group: str
    what: str
    expected: str
    needed_by: frozenset[str] = frozenset()
    """Members of NEEDS that require this item; empty if the item only informs."""
    state: State = State.UNKNOWN
    found: str = ""
    cure: str = ""
    """Instructions to fix the item; empty if the state is OK."""

    def ok(self, found: str) -> Finding:
        return replace(self, state=State.OK, found=found)

    def missing(self, found: str, cure: str) -> Finding:
        return replace(self, state=State.MISSING, found=found, cure=cure)

    def wrong(self, found: str, cure: str) -> Finding:
        return replace(self, state=State.WRONG, found=found, cure=cure)

    def unknown(self, found: str, cure: str) -> Finding:
        return replace(self, state=State.UNKNOWN, found=found, cure=cure)


def mark_not_needed(findings: Iterable[Finding], required: frozenset[str]) -> list[Finding]:
    """Return the findings; a missing item that no requirement needs becomes NOT_NEEDED."""
    return [
        replace(each, state=State.NOT_NEEDED)
        if each.state is State.MISSING and not each.needed_by & required
        else each
        for each in findings
    ]


def faults_of(findings: Iterable[Finding], required: frozenset[str]) -> list[Finding]:
    """Return the findings that are missing or wrong and needed by a requirement."""
    return [each for each in findings if each.state in FAULTS and each.needed_by & required]


_TEXTS: Final = ("group", "what", "state", "found", "expected", "cure")
_WIDTH: Final = 100
_COMMAND: Final = re.compile("`[^`]*`")
_NO_BREAK: Final = "\0"
_MAX_FOUND: Final = 60
"""Characters of `found` in the table. `--json` and "What to do" show all."""


def report_lines(
    findings: Sequence[Finding], required: frozenset[str], faults: Sequence[Finding]
) -> list[str]:
    """Return the report as text: a table for each group, then the fixes."""
    rows = aligned_columns(
        [(each.what, each.state.value, _shortened(each.found)) for each in findings], "<<<"
    )
    lines: list[str] = []
    for group, members in groupby(zip(findings, rows, strict=True), key=lambda pair: pair[0].group):
        lines += [*([""] if lines else []), group, *(f"  {row}" for _, row in members)]
    fixable = [each for each in findings if each.state in (*FAULTS, State.UNKNOWN)]
    if fixable:
        lines += ["", "What to do"]
        for each in fixable:
            lines += _cure_lines(each, "!" if each in faults else "-")
    verdict = f"{len(faults)} problem(s), marked ! above" if faults else "no problems found"
    return [*lines, "", f"Required: {', '.join(sorted(required))}; {verdict}."]


def as_json(
    findings: Sequence[Finding], required: frozenset[str], faults: Sequence[Finding]
) -> dict[str, object]:
    """Return the report as values for JSON."""
    return {
        "required": sorted(required),
        "fit": not faults,
        "findings": [
            {
                **{name: getattr(each, name) for name in _TEXTS},
                "state": each.state.value,
                "needed_by": sorted(each.needed_by),
                "stands_in_the_way": each in faults,
            }
            for each in findings
        ],
    }


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_FOUND else f"{text[: _MAX_FOUND - 3]}..."


def _cure_lines(finding: Finding, mark: str) -> list[str]:
    title = f"{finding.group}, {finding.what}: found {finding.found}, expected {finding.expected}"
    # A command stays on one line, so that it can be pasted.
    cure = _COMMAND.sub(lambda command: command[0].replace(" ", _NO_BREAK), finding.cure)
    wrap = textwrap.TextWrapper(_WIDTH, break_long_words=False, break_on_hyphens=False)
    wrap.initial_indent, wrap.subsequent_indent = f"  {mark} ", "    "
    lines = wrap.wrap(title)
    wrap.initial_indent = "    "
    return [*lines, *(line.replace(_NO_BREAK, " ") for line in wrap.wrap(cure))]
