"""Tests of shared memory: allocation, views and freed blocks."""

import fcntl
import gc
import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reference_server.backends.process_host import memory
from reference_server.backends.process_host.memory import (
    ALIGNMENT,
    BlockAllocator,
    IncomingMemory,
    OutgoingMemory,
)

pytestmark = pytest.mark.brute_force

MEGABYTE = 1 << 20


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = memory.create(128 * MEGABYTE)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def outgoing(descriptor: int) -> OutgoingMemory:
    return OutgoingMemory(descriptor)


@pytest.fixture
def incoming(descriptor: int) -> IncomingMemory:
    return IncomingMemory(descriptor)


def put(outgoing: OutgoingMemory, data: bytes) -> int:
    offset = outgoing.put(memoryview(data))
    assert offset is not None
    return offset


def used(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def test_data_is_visible_on_the_other_side(outgoing, incoming):
    offsets = [put(outgoing, data) for data in (b"one", b"two")]
    assert [bytes(incoming.view(offset, 3)) for offset in offsets] == [b"one", b"two"]


def test_a_view_may_be_written_to_and_is_aligned(outgoing, incoming):
    put(outgoing, b"x")
    numbers = np.arange(4.0)
    array = np.frombuffer(incoming.view(put(outgoing, numbers.tobytes()), 32))
    array *= 2
    assert array.tolist() == [0, 2, 4, 6]
    assert array.flags.writeable
    assert array.flags.aligned


def test_a_block_ends_with_the_last_array_that_was_made_of_its_view(outgoing, incoming):
    offset = put(outgoing, bytes(64))
    view = incoming.view(offset, 64)
    part = np.frombuffer(view, np.float32).reshape(4, 4)[1:, ::2]
    del view
    assert incoming.take_unused() == []
    assert part.sum() == 0
    del part
    assert incoming.take_unused() == [offset]
    assert incoming.take_unused() == []


def test_a_block_freed_in_a_cycle_is_reported(outgoing, incoming):
    offset = put(outgoing, b"abc")
    cycle = [incoming.view(offset, 3)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert incoming.take_unused() == [offset]


def test_pages_are_allocated_on_write_and_returned_when_unused(descriptor, outgoing):
    assert used(descriptor) == 0
    small = put(outgoing, bytes(4 * MEGABYTE))
    assert used(descriptor) == 4 * MEGABYTE
    large = put(outgoing, bytes(96 * MEGABYTE))
    assert used(descriptor) == 100 * MEGABYTE
    outgoing.free([large])
    assert used(descriptor) == 100 * MEGABYTE
    outgoing.free([small])
    assert used(descriptor) == memory.KEPT_BYTES


def test_nobody_can_change_its_size(descriptor):
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, MEGABYTE)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


@pytest.mark.parametrize("side", [OutgoingMemory, IncomingMemory])
def test_memory_without_a_sealed_size_is_refused(side):
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, MEGABYTE)
    with pytest.raises(ValueError, match="expected a sealed size"):
        side(descriptor)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    side(descriptor).close()
    os.close(descriptor)


def test_views_outlive_close(outgoing, incoming):
    view = incoming.view(put(outgoing, b"abc"), 3)
    incoming.close()
    outgoing.close()
    assert bytes(view) == b"abc"
    assert outgoing.put(memoryview(b"x")) is None


LIMIT = 20 * ALIGNMENT


class Machine(RuleBasedStateMachine):
    """Allocates and frees at random, and compares with a simple list of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockAllocator(LIMIT)
        self.taken: dict[int, int] = {}

    def free_spans(self) -> list[tuple[int, int]]:
        spans, begin = [], 0
        for offset, size in sorted(self.taken.items()):
            if offset > begin:
                spans.append((begin, offset))
            begin = offset + -(-size // ALIGNMENT) * ALIGNMENT
        return [*spans, (begin, LIMIT)] if begin < LIMIT else spans

    @rule(size=st.integers(1, LIMIT + 1))
    def take(self, size: int) -> None:
        fitting = [begin for begin, end in self.free_spans() if end - begin >= size]
        offset = self.blocks.take(size)
        assert offset == (fitting[0] if fitting else None)
        if offset is not None:
            self.taken[offset] = size

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.taken:
            offset = data.draw(st.sampled_from(sorted(self.taken)))
            del self.taken[offset]
            self.blocks.free(offset)

    @invariant()
    def blocks_are_aligned_and_counted(self) -> None:
        assert all(offset % ALIGNMENT == 0 for offset in self.taken)
        assert self.blocks.used == LIMIT - sum(end - begin for begin, end in self.free_spans())
        assert self.blocks.is_unused == (not self.taken)


TestBlocks = Machine.TestCase
TestBlocks.settings = settings(max_examples=20, stateful_step_count=30)


def test_an_unallocated_block_cannot_be_freed():
    blocks = BlockAllocator(LIMIT)
    offset = blocks.take(5)
    with pytest.raises(KeyError):
        blocks.free(offset + ALIGNMENT)
    assert repr(blocks) == f"BlockAllocator(1 taken, 64 of {LIMIT} bytes, 1 free spans)"


def test_freed_neighbours_make_room_for_a_large_block():
    blocks = BlockAllocator(4 * ALIGNMENT)
    offsets = [blocks.take(1) for _ in range(4)]
    assert blocks.take(1) is None
    for offset in (offsets[2], offsets[0], offsets[3], offsets[1]):
        blocks.free(offset)
    assert blocks.take(4 * ALIGNMENT) == 0
