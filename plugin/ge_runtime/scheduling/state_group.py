"""The group of sequences whose growing states an executor holds, in two planned buffers.

An execution reads the states of its rows, the past, from one buffer, and the graph writes the
states after the request to the other buffer. There they are the past of the next execution of the
same sequences, so nothing is copied. If the sequences change, each row is copied once: to the
blocks of a sequence that leaves the group, or to the other buffer.

Rows are right-aligned along PAST: padding comes first. Requests of an execution have equal sizes,
so their elements follow the past of each row without a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ge_runtime.batching.admission import Block
from ge_runtime.batching.feeds import graph_shape
from ge_runtime.batching.ragged import Geometry, Layout
from ge_runtime.engines.growing_states import GrowingState, group_places
from ge_runtime.scheduling.state_blocks import BlockPool, Row, SequenceState
from ge_runtime.specs import PAST, Array


class StateGroup:
    """The growing states of one executor. For one thread at a time."""

    def __init__(
        self, states: Sequence[GrowingState], geometries: Sequence[Geometry], memory: Array
    ) -> None:
        """Create an empty group.

        Args:
            states: The growing states.
            geometries: The largest executions.
            memory: uint8, two buffers of the size that `group_places` returns.
        """
        self._states = states
        self._places, half = group_places(states, geometries)
        self._buffers = (memory[:half], memory[half:])
        self._current = 0  # the buffer with the states of the members
        self._members: list[SequenceState | None] = []  # by row; None for rows that are not kept
        self._rows = 0
        self._extent = 0  # the size along PAST in the current buffer
        self.pool: BlockPool | None = None
        """The blocks of sequences that are not in the group; set after the load check."""

    def in_order(self, blocks: Sequence[Block]) -> list[int]:
        """Return the order of blocks in which the rows of the group stay where they are."""
        order = range(len(blocks))
        states = [block.state for block in blocks]
        rows = [state.row for state in states if isinstance(state, SequenceState)]
        known = [row for row in rows if row is not None]
        if len(known) < len(blocks) or len(blocks) != len(self._members):
            return list(order)
        return sorted(order, key=known.__getitem__)

    def past(self, layout: Layout) -> dict[str, Array]:
        """Return the graph's inputs: the states of the layout's rows before the request."""
        extent = layout.extents[PAST]
        if not extent:  # all sequences start: the group stays where it is
            return {
                state.spec.name: self._tensor(at, 1 - self._current, layout, past=True)
                for at, state in enumerate(self._states)
            }
        members = _members(layout)
        unchanged = (
            self._extent == extent
            and self._rows == layout.rows
            and len(members) == len(self._members)
            and all(
                own is not None and own is other
                for own, other in zip(members, self._members, strict=True)
            )
        )
        if not unchanged:
            self._gather(layout, members)
        return {
            state.spec.name: self._tensor(at, self._current, layout, past=True)
            for at, state in enumerate(self._states)
        }

    def present(self, layout: Layout) -> dict[str, Array]:
        """Return the memory for the graph's results: the states after the request."""
        return {
            state.result.name: self._tensor(at, 1 - self._current, layout, past=False)
            for at, state in enumerate(self._states)
        }

    def commit(self, layout: Layout) -> None:
        """Keep the states after an execution that succeeded."""
        first = self._states[0]
        extent = first.result.shape(layout.extents)[first.past_at]
        grown = extent - layout.extents[PAST]
        members = _members(layout)
        for row, block in enumerate(layout.blocks):
            if block.state is not None and members[row] is None:  # a request of the load check
                size = block.sizes[PAST] + grown
                own = self._row_of(1 - self._current, row, layout.rows, extent, size)
                self._keep_copies(block.state, own)
        waiting = any(state is not None and state.live for state in self._members)
        if not layout.extents[PAST] and waiting:
            for row, state in enumerate(members):
                if state is not None:
                    state.size = grown
                    own = self._row_of(1 - self._current, row, layout.rows, extent, grown)
                    self._save(state, own)
            return
        self._current = 1 - self._current
        self._members, self._rows, self._extent = members, layout.rows, extent
        for row, state in enumerate(members):
            if state is not None:
                state.size += grown
                state.row = row

    def _gather(self, layout: Layout, members: list[SequenceState | None]) -> None:
        """Make the layout's rows the group, in the other buffer."""
        extent, other = layout.extents[PAST], 1 - self._current
        staying = set(map(id, members))
        for row, state in enumerate(self._members):
            if state is not None and id(state) not in staying:
                if state.live:
                    self._save(state, self._member_row(row, state.size))
                state.row = None
        for row in range(layout.rows):
            given = layout.blocks[row].state if row < len(members) else None
            size = 0 if given is None else layout.blocks[row].sizes[PAST]
            target = self._row_of(other, row, layout.rows, extent, extent)
            for own in target:
                own[: extent - size] = 0
            if given is not None and size:
                part = [own[extent - size :] for own in target]
                self._copy(given, members[row], part)
        for row, state in enumerate(members):
            if state is not None:
                state.row = row
        self._current = other
        self._members, self._rows, self._extent = members, layout.rows, extent

    def _copy(self, given: Mapping[str, Array], state: SequenceState | None, target: Row) -> None:
        if state is None:
            for own, growing in zip(target, self._states, strict=True):
                own[...] = np.moveaxis(given[growing.spec.name][0], growing.past_at, 0)
        elif state.row is not None:
            for own, kept in zip(target, self._member_row(state.row, state.size), strict=True):
                own[...] = kept
        elif self.pool is not None:
            self.pool.load(state, target)

    def _save(self, state: SequenceState, row: Row) -> None:
        if self.pool is not None:
            self.pool.save(state, row)
        state.row = None

    def _keep_copies(self, state: Mapping[str, Array], row: Row) -> None:
        for own, growing in zip(row, self._states, strict=True):
            copy = np.moveaxis(own.copy(), 0, growing.past_at)[np.newaxis]
            state[growing.spec.name] = copy  # type: ignore[index]

    def _member_row(self, row: int, size: int) -> Row:
        return self._row_of(self._current, row, self._rows, self._extent, size)

    def _row_of(self, buffer: int, row: int, rows: int, extent: int, size: int) -> Row:
        """Return the last `size` elements along PAST of a row, with PAST first."""
        parts = []
        for at, state in enumerate(self._states):
            shape = (rows, *state.spec.shape({PAST: extent}))
            tensor = np.moveaxis(self._array(at, buffer, graph_shape(shape, state.at)), state.at, 0)
            parts.append(np.moveaxis(tensor[row], state.past_at, 0)[extent - size :])
        return parts

    def _tensor(self, at: int, buffer: int, layout: Layout, *, past: bool) -> Array:
        state = self._states[at]
        spec = state.spec if past else state.result
        return self._array(at, buffer, graph_shape(layout.shape(spec), state.at))

    def _array(self, at: int, buffer: int, shape: tuple[int, ...]) -> Array:
        dtype = self._states[at].spec.dtype.numpy
        return np.ndarray(shape, dtype, self._buffers[buffer], self._places[at])


def _members(layout: Layout) -> list[SequenceState | None]:
    """Return the states of each request, which has one row; None if they are not kept."""
    states = [block.state for block in layout.blocks]
    return [state if isinstance(state, SequenceState) else None for state in states]
