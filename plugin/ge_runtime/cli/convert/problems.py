"""What a conversion cannot keep, and what it left out without loss."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing of the configuration that cannot be kept."""

    name: str
    """A parameter, a field, or a tensor."""
    value: str
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value}: {self.why}; {self.cure}"


@dataclass(slots=True)
class Told:
    """Collects what is to be told of one conversion. For one thread."""

    dropped: Collection[str]
    """The names that may be lost, as the user said."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out, each with the reason why nothing is lost; what was dropped."""
    used: set[str] = field(default_factory=set)
    """Of `dropped`, those that stood in the way."""

    def refuse(self, name: str, value: str, why: str, cure: str = "") -> None:
        """It cannot be kept: a problem, unless it may be lost. cure: what else could be done."""
        if name in self.dropped:
            self.used.add(name)
            self.notes.append(f"{name} = {value}: dropped")
            return
        drop = f"--drop {name}"
        self.problems.append(Problem(name, value, why, f"{cure}, or {drop}" if cure else drop))

    def demand(self, name: str, value: str, why: str, cure: str) -> None:
        """Something is not known without which nothing can be converted."""
        self.problems.append(Problem(name, value, why, cure))

    def leave_out(self, name: str, value: str, why: str) -> None:
        """It is not in the new configuration, and nothing is lost."""
        self.notes.append(f"{name} = {value}: left out, {why}")
