"""The memory of a graph's intermediate results, from its file and without executing it.

This module computes lifetimes from a sequence of operations; the other modules read the files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ge_runtime.memory.lifetimes import Intermediates, Lifetime


@dataclass(frozen=True, slots=True)
class Operation:
    """The values that one step of a graph reads and writes, by name; each is written once."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    view_of: str | None = None
    """The read value whose memory the written values share; None if they have their own."""


def intermediates(
    operations: Sequence[Operation],
    nbytes: Mapping[str, int],
    *,
    elsewhere: Collection[str],
    delivered: Collection[str] = (),
) -> Intermediates:
    """Return the lifetimes of the values that `operations` write; a step is an operation's index.

    A value lives from the step that writes it to the last step that reads it or a view of it.
    Operations are assumed not to work in place.

    Args:
        operations: The operations, in order of execution.
        nbytes: The size of each value in bytes; values without an entry count as unsized.
        elsewhere: Values whose memory is planned elsewhere, e.g. inputs and weights.
        delivered: Values that are read after the last operation.
    """
    owner: dict[str, str] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for step, operation in enumerate(operations):
        for name in operation.reads:
            last[owner.get(name, name)] = step
        for name in operation.writes:
            if name in elsewhere:
                continue
            if operation.view_of is None:
                first[name] = last[name] = step  # an unused value exists during its own step
            else:
                owner[name] = owner.get(operation.view_of, operation.view_of)
    for name in delivered:
        last[owner.get(name, name)] = len(operations)
    return Intermediates(
        tuple(
            Lifetime(name, nbytes[name], first[name], last[name])
            for name in first
            if name in nbytes
        ),
        sum(name not in nbytes for name in first),
    )
