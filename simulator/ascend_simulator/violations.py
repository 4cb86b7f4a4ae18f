"""The rules that the simulator checks and a device does not: declaration and violations.

A module declares its rules where it checks them. Each violation is a finding, with the line of the
program that caused it. Strict mode raises `SimulatorViolation`, which is an AssertionError, so that
programs rarely catch it by accident. Lenient mode warns, and the call continues as on a device. The
mode "report" continues without a warning. A caution only ever warns. Safe from any thread.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Literal, TypeAlias

from ascend_simulator.origins import Origin, origin

Mode: TypeAlias = Literal["strict", "lenient", "report"]


class SimulatorViolation(AssertionError):
    """A violation of a rule, which a device would not report: corruption, a fault or a hang there.

    `rule` is its id in RULES.
    """

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"[{rule}] {text}")
        self.rule = rule


class SimulatorWarning(UserWarning):
    """A caution, or a violation in lenient mode."""


@dataclass(frozen=True)
class Rule:
    """A requirement, in one sentence, and whether its violation only warns."""

    text: str
    caution: bool


@dataclass
class Finding:
    """`count` violations of a rule by one call on one line; `text` describes the first."""

    rule: str
    caution: bool
    origin: Origin
    text: str
    count: int = 0

    def __str__(self) -> str:
        times = f", {self.count:,} times" if self.count > 1 else ""
        kind = "caution " if self.caution else ""
        return f"{kind}[{self.rule}] {self.origin}{times}\n    {self.text}"


RULES: Final[dict[str, Rule]] = {}
"""Rule id -> rule, of all modules imported so far."""

_MOST: Final = 1000  # findings; further ones are only counted by rule

_broken: Counter[str] = Counter()
_findings: dict[tuple[str, Origin], Finding] = {}
_warned: dict[Any, Any] = {}  # Python's record of warnings that were already shown
_lock = Lock()
_mode: Mode = "strict"


def declare(rule: str, text: str, *, caution: bool = False) -> str:
    """Add a rule to RULES; return its id. Raises ValueError for an id that exists."""
    if rule in RULES:
        raise ValueError(f"rule '{rule}': declared twice")
    RULES[rule] = Rule(text, caution)
    return rule


def violate(rule: str, text: str) -> None:
    """Record a violation of `rule`; `text` describes it.

    Raises SimulatorViolation in strict mode, unless the rule is a caution. Otherwise warns, except
    in the mode "report", and returns.
    """
    where = origin()
    note(rule, text, where)
    if _mode == "strict" and not RULES[rule].caution:
        raise SimulatorViolation(rule, text)
    if _mode != "report":
        message = SimulatorWarning(f"[{rule}] {text}")
        file = where.file or "ascend_simulator"
        warnings.warn_explicit(message, None, file, where.line, registry=_warned)


def note(rule: str, text: str, where: Origin) -> None:
    """Record a violation of `rule` by `where` without raising or warning."""
    with _lock:
        _broken[rule] += 1
        finding = _findings.get((rule, where))
        if finding is None:
            finding = Finding(rule, RULES[rule].caution, where, text)
            if len(_findings) < _MOST:
                _findings[rule, where] = finding
        finding.count += 1


def broken() -> dict[str, int]:
    """Return the number of violations of each rule since the last reset, in any mode."""
    with _lock:
        return dict(_broken)


def findings() -> list[Finding]:
    """Return the findings since the last reset, in any mode, by first occurrence."""
    with _lock:
        return list(_findings.values())


def forget() -> None:
    """Remove all findings."""
    with _lock:
        _broken.clear()
        _findings.clear()
        _warned.clear()


def reset(mode: Mode) -> None:
    """Remove all findings and set the mode."""
    global _mode
    forget()
    _mode = mode
