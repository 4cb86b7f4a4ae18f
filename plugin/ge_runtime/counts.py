"""Counters of the runtime, as plain numbers.

`docs/runtime.md` explains each; `adapters.metrics_exporter` exports them to Triton. Fields have the
names of the metrics, which must not change: there, an execution is called a launch, and an
abandoned request a departed one.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, fields
from functools import partial
from threading import Lock
from typing import Any, Final

# Each execution has counts of its own. Calling the class would also run `Counter.__init__`, which
# takes most of the time and adds nothing to an empty counter.
_empty: Final[Any] = partial(Counter.__new__, Counter)


@dataclass(slots=True)
class Counts:
    """All counts since the runtime was opened. Sizes are in elements, times in seconds."""

    useful_elements: int = 0
    """Elements of the rows in all executions, without padding."""
    executed_elements: int = 0
    """Elements of the batches in all executions, padding included."""
    copied_bytes: int = 0
    """Bytes copied by gather and scatter."""
    launches: int = 0
    launch_seconds: float = 0.0
    """Time in the engine."""
    predicted_seconds: float = 0.0
    """Time that the cost model predicted for these executions, with gather and scatter."""
    measured_seconds: float = 0.0
    """Time that these executions took, with gather and scatter."""
    failed_launches: int = 0
    """Failed executions, which are not counted as launches."""
    launch_rows: Counter[int] = field(default_factory=_empty)
    """Number of executions by their number of rows, without padding."""
    gear_hits: Counter[str] = field(default_factory=_empty)
    """Number of executions by their gear, e.g. "8x64"."""
    shared_launches: Counter[str] = field(default_factory=_empty)
    """Number of executions with several requests, by the reason why these requests may share one
    (`batching.groups.Reason`)."""
    gear_misses: int = 0
    """Requests that fit no gear."""
    workspace_waits: int = 0
    """Executions that had to wait for workspace."""
    workspace_wait_seconds: float = 0.0
    isolations: int = 0
    """Failed executions that a request may have caused; each with several requests was split."""
    culprits: int = 0
    """Requests identified as the cause of a failed execution."""
    disabled_sizes: int = 0
    """Sizes of executions that the engine cannot execute and that are not tried again."""
    departed: int = 0
    """Requests dropped because their callers cancelled or their deadlines passed."""
    refused: int = 0
    """Invalid requests."""
    early_answers: int = 0
    """Answers sent before the last execution of their request batch ended."""
    early_seconds: float = 0.0
    """Sum over early answers of the time between answer and end of the request batch."""
    answer_seconds: float = 0.0
    """Sum over all requests of the time from the start of the request batch to the answer."""
    answers_spilled: int = 0
    """Executions whose answers needed memory beyond the plan, as all slots were in use."""

    def add(self, more: Counts) -> None:
        """Add other counts to these."""
        # Written out: a loop over the names takes ten times as long.
        self.useful_elements += more.useful_elements
        self.executed_elements += more.executed_elements
        self.copied_bytes += more.copied_bytes
        self.launches += more.launches
        self.launch_seconds += more.launch_seconds
        self.predicted_seconds += more.predicted_seconds
        self.measured_seconds += more.measured_seconds
        self.failed_launches += more.failed_launches
        self.gear_misses += more.gear_misses
        self.workspace_waits += more.workspace_waits
        self.workspace_wait_seconds += more.workspace_wait_seconds
        self.isolations += more.isolations
        self.culprits += more.culprits
        self.disabled_sizes += more.disabled_sizes
        self.departed += more.departed
        self.refused += more.refused
        self.early_answers += more.early_answers
        self.early_seconds += more.early_seconds
        self.answer_seconds += more.answer_seconds
        self.answers_spilled += more.answers_spilled
        # Most counts come from one batch, in which most counters are empty.
        for rows, count in more.launch_rows.items():
            self.launch_rows[rows] += count
        if more.gear_hits:
            self.gear_hits.update(more.gear_hits)
        if more.shared_launches:
            self.shared_launches.update(more.shared_launches)

    def since(self, earlier: Counts) -> Counts:
        """Return the difference to `earlier`, a copy of these counts."""
        return Counts(
            **{name: getattr(self, name) - getattr(earlier, name) for name in _NUMBERS},
            launch_rows=self.launch_rows - earlier.launch_rows,
            gear_hits=self.gear_hits - earlier.gear_hits,
            shared_launches=self.shared_launches - earlier.shared_launches,
        )


_NUMBERS: Final = tuple(f.name for f in fields(Counts) if f.type in ("int", "float"))


_MOST_PENDING: Final = 64
"""Number of pending counts at which all are added up. One by one takes twice as long."""


class SharedCounts:
    """Counts that several threads add to. Safe from any thread."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._pending: deque[Counts] = deque()
        self._lock = Lock()

    def add(self, more: Counts) -> None:
        """Add other counts, which do not change any more, in one step."""
        self._pending.append(more)
        if len(self._pending) >= _MOST_PENDING:
            with self._lock:
                self._add_up()

    def add_answer_seconds(self, seconds: float) -> None:
        """Add to `answer_seconds` alone, without the cost of a new Counts for each batch."""
        with self._lock:
            self._counts.answer_seconds += seconds

    def snapshot(self) -> Counts:
        """Return a consistent copy of all counts."""
        with self._lock:
            self._add_up()
            return self._counts.since(Counts())

    def _add_up(self) -> None:
        while self._pending:
            self._counts.add(self._pending.popleft())
