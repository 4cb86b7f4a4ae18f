"""The rules that the simulator enforces and a device does not: declaring and violating them.

A module declares its rules where it enforces them. Each break is a finding, with the line of the
program that it comes from. Strict mode raises `SimulatorViolation`, which no `except Exception`
meant for return codes should swallow unseen; lenient mode warns, and lets the call go on as a
device would; the mode "report" does so without a word. A caution is never more than a warning. Safe
from any thread.
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
    """A rule was broken that a device breaks silently: corruption, a fault or a hang there.

    `rule` is its id in RULES.
    """

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"[{rule}] {text}")
        self.rule = rule


class SimulatorWarning(UserWarning):
    """A caution, or in lenient mode a violation."""


@dataclass(frozen=True)
class Rule:
    """What must hold, in one sentence, and whether breaking it only warns."""

    text: str
    caution: bool


@dataclass
class Finding:
    """A rule that one call of one line broke, `count` times; `text` tells of the first."""

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

_MOST: Final = 1000  # findings: of more than that only the rules are counted

_broken: Counter[str] = Counter()
_findings: dict[tuple[str, Origin], Finding] = {}
_warned: dict[Any, Any] = {}  # Python's own record of what it need not say again
_lock = Lock()
_mode: Mode = "strict"


def declare(rule: str, text: str, *, caution: bool = False) -> str:
    """Enter a rule in RULES; its id. Raises ValueError for an id that is taken."""
    if rule in RULES:
        raise ValueError(f"rule '{rule}': found a second declaration, expected one")
    RULES[rule] = Rule(text, caution)
    return rule


def violate(rule: str, text: str) -> None:
    """Rule `rule` was broken, `text` says how.

    Raises SimulatorViolation in strict mode, unless the rule is a caution; else warns, or in the
    mode "report" does not, and returns.
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
    """Rule `rule` was broken by `where`: counted, and nothing else."""
    with _lock:
        _broken[rule] += 1
        finding = _findings.get((rule, where))
        if finding is None:
            finding = Finding(rule, RULES[rule].caution, where, text)
            if len(_findings) < _MOST:
                _findings[rule, where] = finding
        finding.count += 1


def broken() -> dict[str, int]:
    """How often each rule was broken since the last reset, in any mode."""
    with _lock:
        return dict(_broken)


def findings() -> list[Finding]:
    """What was found since the last reset, in any mode, in the order of the first of each."""
    with _lock:
        return list(_findings.values())


def forget() -> None:
    """Nothing was found so far."""
    with _lock:
        _broken.clear()
        _findings.clear()
        _warned.clear()


def reset(mode: Mode) -> None:
    """Forget what was found and set the mode."""
    global _mode
    forget()
    _mode = mode
