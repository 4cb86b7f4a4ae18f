from threading import Event

import numpy as np
import pytest
from runtime.support.threads import Beside

from ge_runtime.devices import HostDevice, NullDevice
from ge_runtime.errors import OutOfMemory, PlanFault
from ge_runtime.workspace import SerialArena


@pytest.fixture
def arena():
    arena = SerialArena("lane 0")
    arena.register("a", 3_000)
    arena.register("b", 5_000)
    return arena


def test_it_is_as_large_as_the_largest_need_and_allocated_once(arena):
    device = NullDevice(10_000)
    arena.register("b", 1_000)
    assert arena.nbytes == 5_000
    arena.bind(device)
    assert device.allocated_bytes == {"lane 0": 5_000}


def test_without_users_it_needs_nothing():
    assert SerialArena("lane 0").nbytes == 0


def test_users_share_the_same_bytes(arena):
    arena.bind(HostDevice())
    with arena.use("a") as memory:
        memory[:] = 7
        first = memory
    with arena.use("b") as memory:
        assert memory.shape == (5_000,)
        assert np.shares_memory(memory, first)


def test_users_take_turns(arena):
    arena.bind(HostDevice())
    entered, done = Event(), []

    def other():
        entered.set()
        with arena.use("b"):
            return list(done)

    with arena.use("a"):
        waiter = Beside(other)
        assert entered.wait(30)
        done.append("a")
    assert waiter.result() == ["a"]


def test_a_turn_ends_with_its_block_whatever_happens_there(arena):
    arena.bind(HostDevice())
    with pytest.raises(ZeroDivisionError), arena.use("a"):
        raise ZeroDivisionError
    with arena.use("b"):
        pass


def test_a_use_within_a_use_is_a_fault_instead_of_a_wait_for_ever(arena):
    arena.bind(HostDevice())
    with (
        arena.use("a"),
        pytest.raises(PlanFault, match="in use by a>: found a use by b within another"),
        arena.use("b"),
    ):
        pass


def test_nobody_registers_after_bind(arena):
    arena.bind(HostDevice())
    with pytest.raises(PlanFault) as raised:
        arena.register("c", 1)
    assert str(raised.value) == "lane 0: found c registered after bind, expected before"


def test_it_is_bound_once(arena):
    arena.bind(HostDevice())
    with pytest.raises(PlanFault, match="lane 0: found a second bind, expected one"):
        arena.bind(HostDevice())


def test_a_device_without_the_bytes_refuses_and_the_arena_stays_unbound(arena):
    with pytest.raises(OutOfMemory, match="'lane 0': found 5,000 bytes wanted"):
        arena.bind(NullDevice(4_999))
    arena.bind(NullDevice(5_000))


def test_only_registered_users_of_a_bound_arena_get_bytes(arena):
    with pytest.raises(PlanFault, match="found a use by a without memory, exp"), arena.use("a"):
        pass
    arena.bind(HostDevice())
    with pytest.raises(PlanFault, match="found user c, expected one that is"), arena.use("c"):
        pass


def test_closing_gives_the_bytes_back(arena):
    device = NullDevice(10_000)
    arena.bind(device)
    arena.close()
    arena.close()
    assert device.allocated_bytes == {}


def test_repr_tells_state_and_user(arena):
    assert repr(arena) == "<SerialArena lane 0: 5,000 bytes for 2 user(s), not bound, free>"
    arena.bind(HostDevice())
    with arena.use("b"):
        assert repr(arena) == (
            "<SerialArena lane 0: 5,000 bytes for 2 user(s), bound, in use by b>"
        )
    arena.close()
    assert repr(arena).endswith("not bound, free>")
