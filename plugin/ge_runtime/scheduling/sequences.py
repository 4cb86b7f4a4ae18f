"""States of request sequences: the state tensors of each sequence, kept in host memory.

All memory is allocated at load. If there are more sequences than places, the least recently used
one is dropped. A request whose state was dropped is refused; it never silently starts from zeros.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

import numpy as np

from ge_runtime.errors import RequestFault
from ge_runtime.specs import Array, TensorSpec

SequenceId: TypeAlias = int | str

State: TypeAlias = Mapping[str, Array]
"""Graph input to [1, *dims]: its value in the next execution of the sequence."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """The sequence of a request, and whether the request is its first or last."""

    sequence: SequenceId
    starts: bool = False
    ends: bool = False


class SequenceStates:
    """The states of one model instance's sequences. Safe from any thread.

    The arrays of a state may only be used by one request of the sequence at a time.
    """

    def __init__(self, specs: Sequence[TensorSpec], kept: int) -> None:
        """specs: graph inputs, without rows, dims fixed. kept: largest number of sequences."""
        self._tables = {
            spec.name: np.zeros((kept, 1, *spec.shape({})), spec.dtype.numpy) for spec in specs
        }
        self._kept = kept
        # Least recently used first, with its place in the tables.
        self._places: OrderedDict[SequenceId, int] = OrderedDict()
        self._free = list(range(kept))
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Size of all tables in bytes."""
        return sum(table.nbytes for table in self._tables.values())

    def __len__(self) -> int:
        """Return the number of sequences whose state is kept."""
        return len(self._places)

    def find(self, steps: Sequence[SequenceStep | None]) -> list[State | RequestFault | None]:
        """Return the state of each request of a batch, to be updated in place.

        Returns None for a request without a sequence. The state of a first request is zeros. A
        fault says why there is no state: it is not kept, or another request of the batch belongs
        to the same sequence.
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
        """Drop the sequences whose last requests these were."""
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
            if oldest in seen:  # all kept sequences belong to this batch
                found = f"a batch of more than {self._kept} sequences"
                return _fault(step, found, "max_candidate_sequences as in the server")
            place = self._places.pop(oldest)
        self._places[step.sequence] = place = self._free.pop() if place is None else place
        state = {name: table[place] for name, table in self._tables.items()}
        if step.starts:
            for own in state.values():
                own[...] = 0
        return state


def _fault(step: SequenceStep, found: str, expected: str) -> RequestFault:
    return RequestFault(f"sequence {step.sequence!r}: found {found}, expected {expected}")
