"""States of request sequences: the state tensors of each sequence, kept in host memory.

All memory is allocated at load. If it is too small for all sequences, the least recently used
sequence is dropped. A request whose state was dropped is refused; it never starts from zeros.

States that grow are in blocks of a pool. Their sequences are dropped after an idle time as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ge_runtime.errors import BlocksTaken, RequestFault
from ge_runtime.specs import PAST, Array, TensorSpec

if TYPE_CHECKING:
    from ge_runtime.config.sequence_states import GrowingStates
    from ge_runtime.scheduling.state_blocks import BlockPool, SequenceState

SequenceId: TypeAlias = int | str

State: TypeAlias = Mapping[str, Array]
"""The state of a sequence for its next execution: [1, *dims] by graph input."""


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

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        kept: int,
        growth: GrowingStates | None = None,
        pool: BlockPool | None = None,
    ) -> None:
        """Allocate the fixed states.

        Args:
            specs: Graph inputs, without rows, dims fixed.
            kept: Largest number of sequences.
            growth: The rules for states that grow; None if there are none.
            pool: The blocks of states that grow.
        """
        self._tables = {
            spec.name: np.zeros((kept, 1, *spec.shape({})), spec.dtype.numpy) for spec in specs
        }
        self._kept = kept
        self._growth = growth
        self._pool = pool
        # The index in the tables of each sequence, the least recently used sequence first.
        self._places: OrderedDict[SequenceId, int] = OrderedDict()
        self._free = list(range(kept))
        # Only with states that grow:
        self._grown: dict[SequenceId, SequenceState] = {}
        self._used_at: dict[SequenceId, float] = {}  # the end of the last request
        self._busy: set[SequenceId] = set()  # sequences with a request in progress
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Size of the tables of fixed states in bytes."""
        return sum(table.nbytes for table in self._tables.values())

    def __len__(self) -> int:
        """Return the number of sequences whose state is kept."""
        return len(self._places)

    def gauges(self, now: float = 0.0) -> dict[str, float]:
        """Return the metrics of blocks; empty if no state grows.

        Args:
            now: Seconds on the caller's clock; sequences that are idle for too long are dropped.
        """
        if self._pool is None or self._growth is None:
            return {}
        with self._lock:
            self._drop_idle(self._busy, now - self._growth.idle_s)
        return {"state_blocks": self._pool.count, "state_blocks_used": self._pool.used}

    def find(
        self, steps: Sequence[SequenceStep | None], now: float = 0.0
    ) -> list[State | RequestFault | None]:
        """Return the state of each request of a batch, to be updated in place.

        Returns None for a request without a sequence. The state of a first request is zeros. A
        fault says why there is no state: it is not kept, or another request of the batch belongs
        to the same sequence.

        Args:
            steps: The requests.
            now: Seconds on the caller's clock; sequences that are idle for too long are dropped.
        """
        seen: set[SequenceId] = set()
        found: list[State | RequestFault | None] = []
        with self._lock:
            if self._growth is not None:
                own = {step.sequence for step in steps if step is not None}
                self._drop_idle(own | self._busy, now - self._growth.idle_s)
                self._busy |= own
            for step in steps:
                if step is None:
                    found.append(None)
                elif step.sequence in seen:
                    found.append(_fault(step, "two requests in a batch", "one after the other"))
                else:
                    seen.add(step.sequence)
                    found.append(self._find(step, seen))
        return found

    def reserve(self, state: SequenceState, sizes: Mapping[str, int]) -> None:
        """Reserve the blocks for the states after a request.

        Args:
            state: The state of the request's sequence.
            sizes: The sizes of the request.

        Raises:
            RequestFault: The states are larger than their limit.
            BlocksTaken: No blocks are free, and none may be taken from another sequence.
        """
        pool, growth = self._pool, self._growth
        if pool is None or growth is None:
            return None
        size = growth.size_after.size({**sizes, PAST: state.size})
        with self._lock:
            while True:
                try:
                    return pool.reserve(state, size)
                except BlocksTaken:
                    idle = next((own for own in self._places if own not in self._busy), None)
                    if not growth.evicts or idle is None:
                        raise
                    self._drop(idle)

    def end(self, steps: Sequence[SequenceStep | None], now: float = 0.0) -> None:
        """End the requests of a batch, and drop the sequences whose last requests these were.

        Args:
            steps: The requests.
            now: Seconds on the caller's clock.
        """
        with self._lock:
            for step in steps:
                if step is None:
                    continue
                self._busy.discard(step.sequence)
                if step.sequence in self._grown:
                    self._used_at[step.sequence] = now
                if step.ends and step.sequence in self._places:
                    self._drop(step.sequence)

    def drop(self, sequence: SequenceId) -> None:
        """End a sequence without a request. Does nothing if its state is not kept."""
        with self._lock:
            if sequence in self._places:
                self._drop(sequence)

    def _drop_idle(self, used: Collection[SequenceId], before: float) -> None:
        """Drop sequences that are not in `used` and had no request since `before`."""
        idle = [own for own, at in self._used_at.items() if at < before and own not in used]
        for sequence in idle:
            self._drop(sequence)

    def _drop(self, sequence: SequenceId) -> None:
        self._free.append(self._places.pop(sequence))
        self._forget_growth(sequence)

    def _forget_growth(self, sequence: SequenceId) -> None:
        state = self._grown.pop(sequence, None)
        self._used_at.pop(sequence, None)
        if state is not None and self._pool is not None:
            self._pool.release(state)

    def _find(self, step: SequenceStep, seen: Collection[SequenceId]) -> State | RequestFault:
        place = self._places.pop(step.sequence, None)
        if place is None and not step.starts:
            expected = "a request with the START flag before; "
            expected += f"the states of at most {self._kept} sequences are kept"
            if self._pool is not None:
                expected += f", in {self._pool.count} blocks"
            return _fault(step, "no state", expected)
        if place is None and not self._free:
            oldest = next(iter(self._places), step.sequence)
            if oldest in seen:  # all kept sequences belong to this batch
                found = f"a batch of more than {self._kept} sequences"
                return _fault(step, found, "max_candidate_sequences as in the server")
            place = self._places.pop(oldest)
            self._forget_growth(oldest)
        self._places[step.sequence] = place = self._free.pop() if place is None else place
        state = {name: table[place] for name, table in self._tables.items()}
        if step.starts:
            for own in state.values():
                own[...] = 0
        if self._pool is None:
            return state
        if step.starts:
            # Only loaded for graphs with states that grow.
            from ge_runtime.scheduling.state_blocks import SequenceState

            self._forget_growth(step.sequence)
            self._grown[step.sequence] = SequenceState(state)
        return self._grown[step.sequence]


def _fault(step: SequenceStep, found: str, expected: str) -> RequestFault:
    return RequestFault(f"sequence {step.sequence!r}: found {found}, expected {expected}")
