"""What the conformance suite found, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ge_runtime.testing.model_under_test import Groups


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What is not as it should be after a batch."""

    request: int | None
    """Its place in the batch; None if no single answer is to blame."""
    text: str

    def __str__(self) -> str:
        return self.text if self.request is None else f"request {self.request}: {self.text}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A request batch with a wrong answer."""

    round: int
    how: str
    """How its requests were executed."""
    requests: Sequence[str]
    """Its requests, in words."""
    mismatch: Mismatch
    groups: Groups
    """The requests of each execution, in order."""
    smallest: Groups | None
    """The fewest that fail on their own; None if those of `groups`, again, do not."""
    left: Mismatch | None
    """What is wrong after the smallest."""

    @property
    def failed_group(self) -> Sequence[int]:
        """The requests of the execution with the wrong answer."""
        return next((group for group in self.groups if self.mismatch.request in group), ())

    def lines(self) -> list[str]:
        """All of it for people."""
        lines = [f"round {self.round}, requests executed {self.how}:", f"  {self.mismatch}"]
        if self.failed_group:
            lines += ["its launch:", *self._described([self.failed_group])]
        if self.smallest is None:
            return [*lines, "executed once more, the same launches give no wrong answer"]
        count = len(self.smallest)
        lines.append(
            "the least that fails:" if count == 1 else f"the least that fails, {count} launches:"
        )
        return [*lines, *self._described(self.smallest), f"  {self.left}"]

    def _described(self, groups: Groups) -> list[str]:
        lines = []
        for number, group in enumerate(groups, start=1):
            lines += [f"  launch {number}"] if len(groups) > 1 else []
            lines += [f"    request {member}: {self.requests[member]}" for member in group]
        return lines


@dataclass(frozen=True, slots=True)
class Report:
    """What `check` found. Its text is for people."""

    model: str
    seed: int
    rounds: int
    """That were begun."""
    requests: int
    executions: int
    shared: int
    """Executions of more than one request."""
    pads: Mapping[str, str]
    """Input: the value that its padding had in the model's second opening."""
    changed: int
    """Answers that were the same to the bit after the values of all others had been changed."""
    moved: float
    """The most that an answer was from that of the request by itself: rounding."""
    failure: Failure | None

    @property
    def passed(self) -> bool:
        """Whether every answer was the expected one."""
        return self.failure is None

    def lines(self) -> list[str]:
        """All of it for people."""
        lines = [
            f"{self.model}: {self.rounds} round(s) of seed {self.seed}, {self.requests} request(s) "
            f"in {self.executions} launches, {self.shared} of them shared"
        ]
        if not self.shared:
            lines.append("no two requests shared a launch, so nothing is shown of company")
        lines += [f"padding of '{name}' poisoned with {value}" for name, value in self.pads.items()]
        if self.changed:
            lines.append(
                f"leakage: none: {self.changed} answer(s) are the same to the bit after the values "
                "of all other requests were changed"
            )
        lines.append(
            f"rounding: answers are at most {self.moved:.2g} from those of the requests by "
            "themselves"
        )
        if self.failure is None:
            return [*lines, "passed: every answer is that of the request by itself"]
        return [*lines, "FAILED", *self.failure.lines()]

    def __str__(self) -> str:
        return "\n".join(self.lines())
