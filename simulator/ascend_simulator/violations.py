"""The rules that the simulator checks and a device does not: declaration and violations.

A module declares the rules that it checks. Each violation is a finding, with the call and the line
of the program that caused it. Strict mode raises `SimulatorViolation`, which is an AssertionError,
so that programs rarely catch it by accident. In lenient mode a violation warns, and the call
continues as on a device. The mode "report" continues without a warning. A rule may be a caution:
its violation only warns, even in strict mode. Thread-safe.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, TypeAlias

_PACKAGE: Final = f"{Path(__file__).parent}/"


class Origin(NamedTuple):
    """A call, and the line of the program that made the call; `file` is empty without a line."""

    call: str
    """The function, e.g. "acl.rt.free"."""
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        if not self.file:
            return self.call
        return f"{self.call}, {_relative_path(self.file)}:{self.line} in {self.function}"


class _Here(threading.local):
    call: str = ""
    task: Origin | None = None


HERE: Final = _Here()
"""Thread-local. `call` is the last function of `acl` that this thread called; `task` is the origin
of the task that it executes, if any."""


def origin() -> Origin:
    """Return the origin of the running code: the nearest line outside of this package."""
    if HERE.task is not None:
        return HERE.task
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return Origin(HERE.call, "", 0, "")
        frame = frame.f_back
    code = frame.f_code
    return Origin(HERE.call, code.co_filename, frame.f_lineno, code.co_name)


@contextmanager
def of_task(submitted: Origin) -> Iterator[None]:
    """Attribute findings in this block to a task's submission."""
    before, HERE.task = HERE.task, submitted
    try:
        yield
    finally:
        HERE.task = before


def _relative_path(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file


Mode: TypeAlias = Literal["strict", "lenient", "report"]


class SimulatorViolation(AssertionError):
    """A violation of a rule. A device does not report violations: data are corrupt, or calls hang.

    `rule` is the rule's id in RULES.
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
    """`count` violations of a rule by one call on one line; `text` describes the first of them."""

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
"""The rules of all modules imported so far, by id."""

_MOST: Final = 1000  # findings; further violations are only counted by rule

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
