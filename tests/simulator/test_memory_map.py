"""The memory map under any sequence of calls: separate blocks, exact sums, unique addresses."""

from itertools import pairwise
from threading import RLock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ascend_simulator import violations
from ascend_simulator.codes import Refused
from ascend_simulator.memory.blocks import FRESH, charged_bytes
from ascend_simulator.memory.heaps import AddressSpace
from ascend_simulator.violations import SimulatorViolation

KIB = 1024
CAPACITY = 256 * KIB
sizes = st.integers(1, 70 * KIB)


class MemoryMap(RuleBasedStateMachine):
    """Blocks by start -> (content, kind, device, charged); `gone` has the freed blocks."""

    device = Bundle("device")
    pinned = Bundle("pinned")

    def __init__(self):
        super().__init__()
        violations.reset("strict")
        self.space = AddressSpace([CAPACITY, CAPACITY], RLock())
        self.alive = {}
        self.gone = {}
        self.stamp = 0

    def enter(self, start, nbytes, kind, device, charged):
        assert (
            self.space.resolve(start, nbytes, want="any", write=False).tobytes()
            == bytes([FRESH]) * nbytes
        )
        self.stamp += 1
        content = (self.stamp % 251).to_bytes(1, "little") * nbytes
        self.space.resolve(start, nbytes, want="any", write=True)[:] = self.stamp % 251
        if kind == "device":
            assert start not in self.gone
        self.alive[start] = (content, kind, device, charged)
        return start

    @rule(target=device, nbytes=sizes, device=st.integers(0, 1), tail=st.booleans())
    def malloc(self, nbytes, device, tail):
        charged = charged_bytes(nbytes, 2, tail=tail)
        free, _ = self.space.free_and_total(device)
        if charged > free:
            with pytest.raises(Refused, match="207001"):
                self.space.malloc(device, nbytes, 2, tail=tail)
            nbytes, charged = 1, charged_bytes(1, 2, tail=tail)
            if charged > free:
                return None
        start = self.space.malloc(device, nbytes, 2, tail=tail)
        return self.enter(start, nbytes, "device", device, charged)

    @rule(target=pinned, nbytes=sizes)
    def malloc_host(self, nbytes):
        return self.enter(self.space.malloc_host(nbytes), nbytes, "pinned", None, 0)

    @rule(start=consumes(device))
    def free(self, start):
        if start is None:
            return
        self.space.free(start)
        self.gone[start] = len(self.alive.pop(start)[0])

    @rule(start=consumes(pinned))
    def free_host(self, start):
        self.space.free_host(start)
        del self.alive[start]

    @rule(start=device, offset=st.integers(1, KIB))
    def free_an_inner_address(self, start, offset):
        if start in self.alive and offset < len(self.alive[start][0]):
            with pytest.raises(SimulatorViolation, match="bad-free"):
                self.space.free(start + offset)

    @rule(data=st.data())
    def use_after_free(self, data):
        if self.gone:
            start = data.draw(st.sampled_from(sorted(self.gone)))
            offset = data.draw(st.integers(0, self.gone[start] - 1))
            with pytest.raises(SimulatorViolation, match="use-after-free"):
                self.space.resolve(start + offset, 1, want="any", write=False)
            with pytest.raises(SimulatorViolation, match="bad-free"):
                self.space.free(start)

    @rule(data=st.data(), first=st.integers(0, 70 * KIB), nbytes=st.integers(0, 70 * KIB))
    def use_a_range(self, data, first, nbytes):
        if not self.alive:
            return
        start = data.draw(st.sampled_from(sorted(self.alive)))
        content, kind, _, _ = self.alive[start]
        first = min(first, len(content) - 1)
        if first + nbytes <= len(content):
            view = self.space.resolve(start + first, nbytes, want="any", write=False)
            assert view.tobytes() == content[first : first + nbytes]
        else:
            with pytest.raises(SimulatorViolation, match="beyond-block"):
                self.space.resolve(start + first, nbytes, want="any", write=False)
        if kind == "device":
            with pytest.raises(SimulatorViolation, match=r"device-for-host|beyond-block"):
                self.space.resolve(start + first, nbytes, want="host", write=False)
        else:
            with pytest.raises(SimulatorViolation, match=r"host-for-device|beyond-block"):
                self.space.resolve(start + first, nbytes, want="device", write=False)

    @rule(device=st.integers(0, 1), nbytes=st.integers(0, CAPACITY))
    def others_take(self, device, nbytes):
        self.space.take(device, nbytes)
        assert self.space.free_and_total(device) == (
            max(0, CAPACITY - self.space.used(device) - nbytes),
            CAPACITY,
        )

    @invariant()
    def blocks_lie_apart(self):
        blocks = self.space.blocks()
        assert [block.start for block in blocks] == sorted(self.alive)
        for before, after in pairwise(blocks):
            assert before.end <= after.start
            if before.device is not None:
                assert after.start - before.end >= 64

    @invariant()
    def books_are_exact(self):
        for device in range(2):
            assert self.space.used(device) == sum(
                charged for _, _, where, charged in self.alive.values() if where == device
            )
            assert self.space.used(device) <= CAPACITY

    @invariant()
    def contents_stay(self):
        for start, (content, _, _, _) in self.alive.items():
            assert self.space.find(start).content.tobytes() == content

    def teardown(self):
        self.space.check_host_writes()


TestMemoryMap = MemoryMap.TestCase
TestMemoryMap.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestMemoryMap.pytestmark = pytest.mark.brute_force
