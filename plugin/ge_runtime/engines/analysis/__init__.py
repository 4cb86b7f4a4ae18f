"""The memory of a graph's intermediate results, told from its file: nothing is executed.

This module makes lifetimes of operations in their order; the others read the files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ge_runtime.memory.lifetimes import Intermediates, Lifetime


@dataclass(frozen=True, slots=True)
class Operation:
    """What one step of a graph reads and writes, by name. Every name is written once."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    shows: str | None = None
    """The read value whose bytes the written ones are; None if they have bytes of their own."""


def intermediates(
    operations: Sequence[Operation],
    nbytes: Mapping[str, int],
    *,
    elsewhere: Collection[str],
    delivered: Collection[str] = (),
) -> Intermediates:
    """The lifetimes of what `operations` write; a step is an operation's index.

    nbytes: of written values, in bytes; what lacks counts as unsized.
    elsewhere: values with memory that is planned elsewhere, e.g. inputs and weights.
    delivered: values that are read once more after the last operation.
    A value lives from the step that writes it to the last that reads it or what shows its bytes.
    No operation is taken to write its result over what it reads.
    """
    owner: dict[str, str] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for step, operation in enumerate(operations):
        for name in operation.reads:
            last[owner.get(name, name)] = step
        for name in operation.writes:
            # Memory of the caller's, or of a plan of its own: counted twice otherwise.
            if name in elsewhere:
                continue
            if operation.shows is None:
                first[name] = last[name] = step  # also what nobody reads is there for its step
            else:
                owner[name] = owner.get(operation.shows, operation.shows)
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
