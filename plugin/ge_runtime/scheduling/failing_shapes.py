"""Finds the sizes of executions that the engine cannot execute, so that they are not tried again.

A failed execution has one of two causes: the values of a request, or the size. After MOST_FAILURES
failures of a size, rows of generated values are executed at that size. If these fail too, the size
is the cause. A number of rows that was executed once is never suspected again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from ge_runtime.batching.gears import Gear
from ge_runtime.counts import Counts, SharedCounts
from ge_runtime.errors import EngineFault, OutOfMemory, RequestFault, SizeDisabled

if TYPE_CHECKING:
    from ge_runtime.scheduling.executor import Executor

MOST_FAILURES: Final = 3
"""Number of failures of a size after which it is tried with generated values."""
MOST_SIZES: Final = 1024
"""Maximum number of sizes that are remembered; the oldest are forgotten first."""

_log = logging.getLogger(__name__)

Value = TypeVar("Value")


class FailingShapes:
    """The sizes that are not executed. Safe from any thread.

    With free axes, sizes seldom repeat. So failures are also counted for each number of rows. A
    number of rows that always fails is not executed for several requests, at any extents.
    """

    def __init__(
        self, name: str, try_blank: Callable[[Executor, Gear], object], counts: SharedCounts
    ) -> None:
        """Initialize without failing sizes.

        Args:
            name: The instance's name in the log.
            try_blank: Executes rows of generated values at a size.
            counts: Receives the number of disabled sizes.
        """
        self._name = name
        self._try_blank = try_blank
        self._counts = counts
        self._executed_rows: set[int] = set()
        self._failures: dict[Hashable, int] = {}
        self._disabled: dict[Hashable, str] = {}  # the text with the last failure
        self.any = False
        """True if a size is disabled."""
        self._lock = Lock()

    def find(self, gear: Gear, requests: int) -> SizeDisabled | None:
        """Return the fault of an execution of this size; None if it may be tried.

        Args:
            gear: The size.
            requests: The number of requests in the execution. An execution of one request cannot
                be divided, so it is only refused at exactly the size that failed.
        """
        text = self._disabled.get(_key(gear))
        if text is None and requests > 1:
            text = self._disabled.get(gear.rows)
        return None if text is None else SizeDisabled(text)

    def note_success(self, gear: Gear) -> None:
        """Note that an execution of this size succeeded."""
        if gear.rows not in self._executed_rows:
            self._executed_rows.add(gear.rows)
        if self._failures:
            with self._lock:
                self._failures.pop(_key(gear), None)

    def note_failure(self, gear: Gear, fault: EngineFault, executor: Executor) -> None:
        """Note that an execution of this size failed; the third failure of a size is examined."""
        if isinstance(fault, RequestFault):  # the engine names the request's values as the cause
            return
        keys: list[Hashable] = [_key(gear)]
        if gear.rows > 1 and gear.rows not in self._executed_rows:
            keys.append(gear.rows)
        with self._lock:
            for key in keys:
                failures = self._failures.pop(key, 0) + 1  # popped, so that the oldest is first
                _put(self._failures, key, failures)
            due = [key for key in keys if self._failures[key] >= MOST_FAILURES]
            for key in due:
                del self._failures[key]
        if due and self._fails_blank(gear, executor):
            self._disable(due, gear, fault)

    def _fails_blank(self, gear: Gear, executor: Executor) -> bool:
        try:
            self._try_blank(executor, gear)
        except OutOfMemory:
            return False
        except EngineFault as fault:
            return not isinstance(fault, RequestFault)
        self._executed_rows.add(gear.rows)
        return False

    def _disable(self, keys: list[Hashable], gear: Gear, fault: EngineFault) -> None:
        text = (
            f"execution of {gear}: found {MOST_FAILURES} failures, and one with generated values, "
            "expected a size that the graph executes: it is not tried again until the model is "
            f"loaded again. The last failure was: {fault}"
        )
        with self._lock:
            for key in keys:
                _put(self._disabled, key, text)
            self.any = True
        self._counts.add(Counts(disabled_sizes=len(keys)))
        rows = f". Executions of {gear.rows} rows for several requests are not tried again, either"
        _log.warning("%s: %s%s", self._name, text, rows if gear.rows in keys else "")


def _key(gear: Gear) -> Hashable:
    return gear.rows, *sorted(gear.extents.items())


def _put(table: dict[Hashable, Value], key: Hashable, value: Value) -> None:
    """Set an entry; the oldest one is removed if the table is full."""
    if len(table) >= MOST_SIZES:
        del table[next(iter(table))]
    table[key] = value
