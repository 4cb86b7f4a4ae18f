"""The rules that the simulator enforces and a device does not: declaring and violating them.

A module declares its rules where it enforces them. Strict mode raises `SimulatorViolation`, which
no `except Exception` meant for return codes should swallow unseen; lenient mode counts, warns, and
lets the call go on as a device would. A caution is never more than a warning. Safe from any thread.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from threading import Lock
from typing import Final


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


RULES: Final[dict[str, Rule]] = {}
"""Rule id -> rule, of all modules imported so far."""

_broken: Counter[str] = Counter()
_lock = Lock()
_strict = True


def declare(rule: str, text: str, *, caution: bool = False) -> str:
    """Enter a rule in RULES; its id. Raises ValueError for an id that is taken."""
    if rule in RULES:
        raise ValueError(f"rule '{rule}': found a second declaration, expected one")
    RULES[rule] = Rule(text, caution)
    return rule


def violate(rule: str, text: str) -> None:
    """Rule `rule` was broken, `text` says how.

    Raises SimulatorViolation in strict mode, unless the rule is a caution; else warns and returns.
    """
    caution = RULES[rule].caution
    with _lock:
        _broken[rule] += 1
    if _strict and not caution:
        raise SimulatorViolation(rule, text)
    warnings.warn(f"[{rule}] {text}", SimulatorWarning, stacklevel=2)


def broken() -> dict[str, int]:
    """How often each rule was broken since the last reset, in either mode."""
    with _lock:
        return dict(_broken)


def reset(*, strict: bool) -> None:
    """Forget what was counted and set the mode."""
    global _strict
    with _lock:
        _broken.clear()
        _strict = strict
