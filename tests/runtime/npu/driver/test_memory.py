"""Memory of a card: rows copied in and out of slots, places of tensors, pinned and arena memory."""

import gc
import mmap
import weakref
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_simulator import SimulatorWarning
from ge_runtime.errors import EngineLost
from ge_runtime.npu.driver.cann_values import GEAR_INPUT, DriverFault, ModelDescription, ModelTensor
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.driver.ge_session_executor import ALIGNMENT, ArenaPool
from ge_runtime.npu.driver.memory import RowCopy, can_be_queued, gathering, scattering, slot_layout
from ge_runtime.npu.driver.pyacl import PyAclDriver
from ge_runtime.npu.engines.ascend_backend import AscendBackend

BYTES = st.integers(0, 10_000)


def tensor(name, nbytes):
    return ModelTensor(name, 0, 2, (), nbytes)


def taken(nbytes):
    """Return the size that malloc adds padding to."""
    return -(-nbytes // 32) * 32 + 32


@st.composite
def chains(draw):
    """Stages with random inputs among the existing tensors, and random sizes."""
    known, models = ["x", "y"], []
    for stage in range(draw(st.integers(1, 5))):
        takes = draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
        gives = [f"t{stage}.{i}" for i in range(draw(st.integers(1, 3)))]
        inputs = [tensor(name, draw(BYTES)) for name in takes]
        if draw(st.booleans()):
            inputs.append(tensor(GEAR_INPUT, draw(st.integers(4, 64))))
        outputs = [tensor(f"Node:0:{name}", draw(BYTES)) for name in gives]
        models.append(SimpleNamespace(description=ModelDescription((*inputs,), (*outputs,))))
        known += gives
    return models, draw(st.sets(st.sampled_from(known)))


def places_of(stage, model):
    """Name of the place: bytes that the stage wants there."""
    description = model.description
    inputs = {
        f"{GEAR_INPUT} of {stage}" if own.name == GEAR_INPUT else own.name: own.nbytes
        for own in description.inputs
    }
    return inputs, {own.name.split(":")[-1]: own.nbytes for own in description.outputs}


@pytest.mark.brute_force
@given(chains())
def test_tensors_needed_at_the_same_time_do_not_overlap(chain):
    models, kept = chain
    packing = slot_layout(models, kept)
    stages = [places_of(stage, model) for stage, model in enumerate(models)]
    sizes = {}
    for inputs, outputs in stages:
        for name, nbytes in (inputs | outputs).items():
            sizes[name] = max(taken(nbytes), sizes.get(name, 0))
    assert packing.offsets.keys() == sizes.keys()
    assert all(offset % 64 == 0 for offset in packing.offsets.values())
    given_by = {name: stage for stage, (_, outputs) in enumerate(stages) for name in outputs}
    takers = {
        name: [stage for stage, (inputs, _) in enumerate(stages) if name in inputs]
        for name in sizes
    }

    def is_live(name, stage):
        begins = given_by.get(name, 0)
        ends = len(stages) if name in kept or not takers[name] else takers[name][-1]
        return begins <= stage <= ends

    for stage in range(len(stages)):
        live = [name for name in sizes if is_live(name, stage)]
        for one, other in combinations(live, 2):
            first, second = sorted((one, other), key=lambda name: packing.offsets[name])
            assert packing.offsets[first] + sizes[first] <= packing.offsets[second]
        assert all(packing.offsets[name] + sizes[name] <= packing.peak for name in live)


@pytest.mark.brute_force
@given(chains())
def test_no_more_is_taken_than_places_of_their_own(chain):
    models, kept = chain
    every = {name for s, m in enumerate(models) for own in places_of(s, m) for name in own}
    apart = slot_layout(models, every)
    assert slot_layout(models, kept).peak <= apart.peak
    assert apart.peak < sum(
        max(
            taken(own[name]) for s, m in enumerate(models) for own in places_of(s, m) if name in own
        )
        + 64
        for name in every
    )


def test_later_tensors_reuse_the_memory_of_earlier_ones():
    def stage(takes, gives):
        return SimpleNamespace(
            description=ModelDescription((tensor(takes, 968),), (tensor(gives, 968),))
        )

    models = [stage("a", "b"), stage("b", "c"), stage("c", "d"), stage("d", "e")]
    assert slot_layout(models, ()).peak == 2 * 1024
    assert slot_layout(models, ("b",)).peak == 3 * 1024
    assert slot_layout(models[:1], ()).peak == 2 * 1024


SLOT, ROW = 640, 64


def moved(memory, copies):
    """Return the memory after the copies, whose sources and targets must not overlap."""
    for target, source, nbytes in copies:
        assert abs(target - source) >= nbytes
        memory[target : target + nbytes] = memory[source : source + nbytes]
    return memory


places = st.lists(st.integers(0, 9), min_size=1, max_size=8).map(
    lambda rows: [row * ROW for row in rows]
)


@given(places, st.integers(0, 8))
def test_a_batch_is_its_rows_and_these_once_more(own, padding):
    rng = np.random.default_rng(1)
    memory = rng.integers(0, 256, 4096, np.uint8)
    before = memory.copy()
    copies = gathering(own, ROW, len(own) + padding, SLOT)
    after = moved(memory, copies)
    for row in range(len(own) + padding):
        at = SLOT + row * ROW
        assert any(
            np.array_equal(after[at : at + ROW], before[place : place + ROW])
            for place in (own if row >= len(own) else own[row : row + 1])
        )
    assert len(copies) <= len(own) + padding.bit_length()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True))
def test_rows_go_to_their_places(rows):
    own = [row * ROW for row in rows]
    memory = np.arange(4096, dtype=np.uint16).astype(np.uint8)
    before = memory.copy()
    after = moved(memory, scattering(own, ROW, SLOT))
    for number, place in enumerate(own):
        start = SLOT + number * ROW
        assert np.array_equal(after[place : place + ROW], before[start : start + ROW])


def test_neighbours_are_one_copy():
    assert gathering([128, 192, 0, 64], 64, 4, SLOT) == [
        RowCopy(SLOT, 128, 128),
        RowCopy(SLOT + 128, 0, 128),
    ]


@pytest.mark.parametrize("places", [[0, 64], [0, 32]])
def test_all_are_queued_or_none(places):
    copies = scattering(places, 16, SLOT)
    assert can_be_queued(copies) is False  # the second row begins in the middle of the slot
    assert can_be_queued(copies[:1]) is True


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


ARENA_START, ARENA_BYTES = 0x10040, 1 << 16


@pytest.mark.brute_force
@given(st.lists(st.integers(0, 9000) | st.none(), max_size=60), st.randoms())
def test_blocks_are_aligned_inside_the_arena_and_apart(steps, random):
    pool = ArenaPool(ARENA_START, ARENA_BYTES)
    blocks = {}
    for nbytes in steps:
        if nbytes is None and blocks:
            address = random.choice([*blocks])
            pool.free(address)
            del blocks[address]
        elif nbytes is not None:
            try:
                address = pool.allocate(nbytes)
            except MemoryError:
                continue
            assert address % ALIGNMENT == 0
            # What operators use of a part of a block: its bytes rounded up to 32, and 32 more.
            end = address + -(-max(1, nbytes) // 32) * 32 + 32
            assert ARENA_START <= address < end <= ARENA_START + ARENA_BYTES
            assert all(end <= other or its <= address for other, its in blocks.items())
            blocks[address] = end
    for address in blocks:
        pool.free(address)
    assert pool.used_bytes == 0
    assert pool.peak_bytes <= ARENA_BYTES


def test_what_does_not_fit_is_refused_and_counted():
    pool = ArenaPool(ARENA_START, 4096)
    first = pool.allocate(3000)
    for _ in range(2):
        with pytest.raises(MemoryError, match="found 1,000 bytes wanted, expected at most"):
            pool.allocate(1000)
    assert pool.refused == 2
    pool.free(first)
    assert pool.allocate(3000) == first
    assert pool.peak_bytes == pool.used_bytes == 3040


def test_block_is_given_back_once():
    pool = ArenaPool(ARENA_START, ARENA_BYTES)
    address = pool.allocate(10)
    pool.free(address)
    with pytest.raises(ValueError, match="expected an allocation"):
        pool.free(address)
