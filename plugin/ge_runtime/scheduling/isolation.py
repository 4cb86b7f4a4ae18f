"""Isolation: an execution that fails is halved until the requests to blame stand alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ge_runtime.errors import EngineFault, OutOfMemory

Member = TypeVar("Member")
Answer = TypeVar("Answer")


def isolate(
    members: Sequence[Member],
    execute: Callable[[Sequence[Member]], Sequence[Answer]],
    deliver: Callable[[Member, Answer | EngineFault | OutOfMemory], None],
    still_waiting: Callable[[Sequence[Member]], Sequence[Member]],
) -> int:
    """Deliver to every member its answer or its own fault; returns how many executions failed.

    execute: runs members together, one answer each, or raises for all of them.
    deliver: called once per member that was executed, alone or in company.
    still_waiting: asked before each execution after a failure; members that it leaves out are not
    executed again, and are its own to answer.

    An execution that raises EngineFault or OutOfMemory is cut in halves, the earlier one first. One
    culprit among n members takes 1 + 2 * log2(n) executions: 9 for 16. What `execute` raises
    besides is about no member, e.g. that the device is lost, and passes.
    """
    failures = 0
    waiting = [members]
    while waiting:
        batch = waiting.pop()
        if failures:  # before the first execution, whoever calls has asked
            batch = still_waiting(batch)
        if not batch:
            continue
        try:
            answers = execute(batch)
        except (EngineFault, OutOfMemory) as fault:
            failures += 1
            if len(batch) == 1:
                deliver(batch[0], fault)
            else:
                middle = len(batch) // 2
                # A stack, so that the earlier half is next: requests keep their order.
                waiting += [batch[middle:], batch[:middle]]
        else:
            for member, answer in zip(batch, answers, strict=True):
                deliver(member, answer)
    return failures
