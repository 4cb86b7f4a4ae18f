"""Memory of a card and for it: pinned, registered, counted, and forgotten."""

import gc
import mmap
import weakref

import numpy as np
import pytest

from ascend_simulator import SimulatorWarning
from ge_runtime.errors import EngineLost
from ge_runtime.npu.driver.cann_values import DriverFault
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.driver.pyacl import PyAclDriver
from ge_runtime.npu.engines.ascend_backend import AscendBackend


def registered(place):
    memory = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
    place.register(memory)
    return memory


@pytest.mark.brute_force
def test_memory_is_freed_after_it_is_unregistered():
    place = AscendBackend(0)
    memory = registered(place)
    there = weakref.ref(memory)
    place.unregister(memory)
    place.unregister(memory)
    del memory
    gc.collect()
    assert there() is None
    place.close()


@pytest.mark.brute_force
def test_memory_that_cannot_be_unregistered_stays_mapped(monkeypatch):
    place = AscendBackend(0)
    memory = registered(place)
    there = weakref.ref(memory)

    def refuse(driver, address):
        raise DriverFault("acl.rt.host_unregister", 500002)

    with monkeypatch.context() as patch:
        patch.setattr(PyAclDriver, "host_unregister", refuse)
        with pytest.raises(DriverFault):
            place.unregister(memory)
    del memory
    gc.collect()
    assert there() is not None
    place.unregister(there())
    gc.collect()
    assert there() is None
    place.close()


def test_a_card_that_is_found_lost_as_memory_is_pinned_is_lost_for_all(machine):
    place = AscendBackend(0)
    machine.arm("malloc_host@1=lost")
    with pytest.raises(EngineLost, match=r"^npu:0: acl\.rt\.malloc_host: 507010"):
        place.memory.allocate("batches", 64)
    calls = machine.report.calls
    with pytest.raises(EngineLost):
        place.memory.allocate("batches", 64)
    place.close()
    assert machine.report.calls == calls


def test_pinned_memory_that_cannot_be_freed_keeps_no_card_open(machine):
    machine.start(mode="lenient")
    place = AscendBackend(0)
    place.memory.allocate("batches", 64).free()
    machine.arm("call@1=500002")
    with pytest.raises(DriverFault, match=r"acl\.rt\.free_host"):
        place.memory.allocate("batches", 64)
    with pytest.warns(SimulatorWarning, match="finalize-leaks"):
        place.close()
    assert PROCESS_CARDS._open == {}
    machine.start()


def test_memory_that_is_taken_while_serving_is_counted_on_the_card_as_well():
    place = AscendBackend(0)
    place.freeze()
    for memory in (place.memory, place.device_memory):
        before = memory.allocations_after_freeze
        memory.allocate("late", 64).free()
        assert memory.allocations_after_freeze == before + 1
    place.close()
