"""The report of the conformance suite, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ge_runtime.testing.model_under_test import Groups, smallest_failing


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A fault found after a request batch."""

    request: int | None
    """The request's place in the batch; None if no single answer is wrong."""
    text: str

    def __str__(self) -> str:
        return self.text if self.request is None else f"request {self.request}: {self.text}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A request batch with a wrong answer."""

    round: int
    how: str
    """The way in which the requests were executed."""
    requests: Sequence[str]
    """A description of each request."""
    mismatch: Mismatch
    groups: Groups
    """The requests of each execution, in order."""
    smallest: Groups | None
    """The fewest requests that still fail; None if executing `groups` again did not fail."""
    left: Mismatch | None
    """The mismatch of the smallest groups."""

    @classmethod
    def reduced(
        cls,
        number: int,
        how: str,
        requests: Sequence[object],
        mismatch: Mismatch,
        groups: Groups,
        again: Callable[[Groups], Mismatch | None],
    ) -> Failure:
        """Reduce the groups of a failed round to the fewest requests that still fail.

        Args:
            number: The round.
            how: How the requests were executed.
            requests: The requests; their text goes into the report.
            mismatch: The fault that was found.
            groups: The requests of each execution.
            again: Executes only some of the groups, and returns what is wrong.
        """
        smallest = smallest_failing(groups, lambda less: again(less) is not None)
        left = None if smallest is None else again(smallest)
        return cls(number, how, [*map(str, requests)], mismatch, groups, smallest, left)

    @property
    def failed_group(self) -> Sequence[int]:
        """The requests of the execution with the wrong answer."""
        return next((group for group in self.groups if self.mismatch.request in group), ())

    def lines(self) -> list[str]:
        """Return the report of this failure, line by line."""
        lines = [f"round {self.round}, requests executed {self.how}:", f"  {self.mismatch}"]
        if self.failed_group:
            lines += ["its execution:", *self._described([self.failed_group])]
        if self.smallest is None:
            return [*lines, "the same executions, repeated, gave no wrong answer"]
        count = len(self.smallest)
        several = f", {count} executions" if count > 1 else ""
        lines.append(f"the fewest requests that fail{several}:")
        return [*lines, *self._described(self.smallest), f"  {self.left}"]

    def _described(self, groups: Groups) -> list[str]:
        lines = []
        for number, group in enumerate(groups, start=1):
            lines += [f"  execution {number}"] if len(groups) > 1 else []
            lines += [f"    request {member}: {self.requests[member]}" for member in group]
        return lines


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `check`. Its text is for people."""

    model: str
    seed: int
    rounds: int
    """Rounds that were started."""
    requests: int
    executions: int
    shared: int
    """Executions of more than one request."""
    pads: Mapping[str, str]
    """Input to the value of its padding when the model was opened a second time."""
    changed: int
    """Answers that stayed the same to the bit after the values of all other requests changed."""
    moved: float
    """The largest distance between an answer and that of the request alone, caused by rounding."""
    failure: Failure | None

    @property
    def passed(self) -> bool:
        """True if every answer was the expected one."""
        return self.failure is None

    def lines(self) -> list[str]:
        """Return the report, line by line."""
        lines = [
            f"{self.model}: {self.rounds} round(s) of seed {self.seed}, {self.requests} request(s) "
            f"in {self.executions} executions, {self.shared} of them shared"
        ]
        if not self.shared:
            lines.append("no two requests shared an execution, so their independence is not shown")
        lines += [f"padding of '{name}' poisoned with {value}" for name, value in self.pads.items()]
        if self.changed:
            lines.append(
                f"leakage: none: {self.changed} answer(s) stayed the same to the bit after the "
                "values of all other requests changed"
            )
        lines.append(
            f"rounding: answers differ from those of the requests alone by at most {self.moved:.2g}"
        )
        if self.failure is None:
            return [*lines, "passed: every answer is that of the request alone"]
        return [*lines, "FAILED", *self.failure.lines()]

    def __str__(self) -> str:
        return "\n".join(self.lines())
