"""What `ge-runtime doctor` prints."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from ge_runtime.cli.doctor.findings import FAULTS, Finding, State
from ge_runtime.memory.table import aligned

_WIDTH: Final = 100
_COMMAND: Final = re.compile("`[^`]*`")
_GLUE: Final = "\0"
_MOST: Final = 60
"""Characters of a thing that was found, in the table; `--json` and cures have all of it."""


def lines(
    findings: Sequence[Finding], required: frozenset[str], faults: Sequence[Finding]
) -> list[str]:
    """All of it for people: a table of each group, then what to do."""
    rows = aligned([(each.what, each.state.value, _short(each.found)) for each in findings], "<<<")
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
