"""The counts of the runtime, as plain numbers.

`docs/runtime.md` says what each means; `adapters.metrics_exporter` gives them to Triton. Fields
have the names of the metrics, which stay as they are: there, a launch is an execution, and the
departed are the abandoned.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from threading import Lock
from typing import Final


@dataclass(slots=True)
class Counts:
    """Everything counted since the runtime was opened. Sizes are elements, times seconds."""

    useful_elements: int = 0
    """Rows times their own sizes, of all executions."""
    executed_elements: int = 0
    """Rows times sizes of the batches, padding included."""
    copied_bytes: int = 0
    """Moved by gather and scatter."""
    launches: int = 0
    launch_seconds: float = 0.0
    """In the engine."""
    predicted_seconds: float = 0.0
    """That the cost model said of these executions, gathering and scattering included."""
    measured_seconds: float = 0.0
    """That they took, in the same sense."""
    failed_launches: int = 0
    """Executions that failed, which are not among the launches."""
    launch_rows: Counter[int] = field(default_factory=Counter)
    """Rows of an execution, padding left out: how many executions had so many."""
    gear_hits: Counter[str] = field(default_factory=Counter)
    """Gear, e.g. "8x64": executions of that size."""
    shared_launches: Counter[str] = field(default_factory=Counter)
    """Executions of several requests, by why they may share one: see `batching.groups.Reason`."""
    gear_misses: int = 0
    """Requests that no gear held."""
    workspace_waits: int = 0
    """Executions that had to wait for workspace."""
    workspace_wait_seconds: float = 0.0
    isolations: int = 0
    """Executions that failed and were cut in halves, or failed with a single request."""
    culprits: int = 0
    """Requests found to make an execution fail."""
    departed: int = 0
    """Requests dropped because their callers cancelled or their deadlines passed."""
    refused: int = 0
    """Requests that were not sound."""
    early_answers: int = 0
    """Answers that left before the last execution of their request batch had ended."""
    early_seconds: float = 0.0
    """By which they left before that, of all of them together."""
    answer_seconds: float = 0.0
    """From the beginning of request batches until answers left, of all requests together."""
    answers_spilled: int = 0
    """Executions whose answers needed memory beyond the plan, because all slots were held."""

    def add(self, more: Counts) -> None:
        """Count these as well."""
        for name in _NUMBERS:
            if amount := getattr(more, name):
                setattr(self, name, getattr(self, name) + amount)
        # Most counts are of one batch, in which most counters are empty.
        if more.launch_rows:
            self.launch_rows.update(more.launch_rows)
        if more.gear_hits:
            self.gear_hits.update(more.gear_hits)
        if more.shared_launches:
            self.shared_launches.update(more.shared_launches)

    def since(self, earlier: Counts) -> Counts:
        """What was counted after `earlier`, a copy of these counts."""
        return Counts(
            **{name: getattr(self, name) - getattr(earlier, name) for name in _NUMBERS},
            launch_rows=self.launch_rows - earlier.launch_rows,
            gear_hits=self.gear_hits - earlier.gear_hits,
            shared_launches=self.shared_launches - earlier.shared_launches,
        )


_NUMBERS: Final = tuple(f.name for f in fields(Counts) if f.type in ("int", "float"))


class SharedCounts:
    """Counts that many threads add to."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._lock = Lock()

    def add(self, more: Counts) -> None:
        """Count these as well, at once."""
        with self._lock:
            self._counts.add(more)

    def snapshot(self) -> Counts:
        """A copy of all counts at one moment."""
        with self._lock:
            return self._counts.since(Counts())
