"""What sequences of requests leave behind: the state tensors of each, kept on the host.

All memory is had at load. Of more sequences than there is room for, those that were used longest
ago are forgotten; a request that finds its state forgotten is refused, never answered from zeros.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TypeAlias

import numpy as np

from ge_runtime.batching.admission import Block
from ge_runtime.errors import RequestFault
from ge_runtime.specs import Array, TensorSpec

SequenceId: TypeAlias = int | str

State: TypeAlias = Mapping[str, Array]
"""Graph input: [1, *dims], what the next execution of the sequence finds there."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Which sequence a request belongs to, and whether it is the first or the last of it."""

    sequence: SequenceId
    starts: bool = False
    ends: bool = False


class SequenceStates:
    """The states of one model instance's sequences. Safe from any thread.

    What a state is written to and read from is for one request of the sequence at a time.
    """

    def __init__(self, specs: Sequence[TensorSpec], kept: int) -> None:
        """specs: of the graph inputs, without rows, all dims fixed. kept: the most sequences."""
        self._tables = {
            spec.name: np.zeros((kept, 1, *spec.shape({})), spec.dtype.numpy) for spec in specs
        }
        self._kept = kept
        # Least recently used first; the place of each in the tables.
        self._places: OrderedDict[SequenceId, int] = OrderedDict()
        self._free = list(range(kept))
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.nbytes for table in self._tables.values())

    def __len__(self) -> int:
        """The sequences whose state is kept."""
        return len(self._places)

    def find(self, steps: Sequence[SequenceStep | None]) -> list[State | RequestFault | None]:
        """What each request of a batch finds, to be written in place; None without a sequence.

        That of a start is 0. The fault says why there is none: nothing is kept of the sequence, or
        another request of the batch belongs to it.
        """
        seen: set[SequenceId] = set()
        found: list[State | RequestFault | None] = []
        with self._lock:
            for step in steps:
                if step is None:
                    found.append(None)
                elif step.sequence in seen:
                    found.append(_fault(step, "two requests in a batch", "one after the other"))
                else:
                    seen.add(step.sequence)
                    found.append(self._find(step, seen))
        return found

    def end(self, steps: Sequence[SequenceStep | None]) -> None:
        """Forget the sequences of which these were the last requests."""
        with self._lock:
            for step in steps:
                if step is not None and step.ends:
                    place = self._places.pop(step.sequence, None)
                    if place is not None:
                        self._free.append(place)

    def _find(self, step: SequenceStep, seen: Collection[SequenceId]) -> State | RequestFault:
        place = self._places.pop(step.sequence, None)
        if place is None and not step.starts:
            expected = "a request with the START flag before; "
            expected += f"the state of {self._kept} sequences at most is kept"
            return _fault(step, "no state", expected)
        if place is None and not self._free:
            oldest = next(iter(self._places), step.sequence)
            if oldest in seen:  # all that are kept are of this batch
                found = f"a batch of more than {self._kept} sequences"
                return _fault(step, found, "max_candidate_sequences as the server has it")
            place = self._places.pop(oldest)
        self._places[step.sequence] = place = self._free.pop() if place is None else place
        state = {name: table[place] for name, table in self._tables.items()}
        if step.starts:
            for own in state.values():
                own[...] = 0
        return state


def with_state(block: Block, state: State) -> Block:
    """The request with the state of its sequence. Raises RequestFault if it has several rows."""
    if block.rows != 1:
        raise RequestFault(f"found {block.rows} rows in a request of a sequence, expected 1")
    return replace(block, state=state)


def _fault(step: SequenceStep, found: str, expected: str) -> RequestFault:
    return RequestFault(f"sequence {step.sequence!r}: found {found}, expected {expected}")
