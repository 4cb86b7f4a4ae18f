"""The positions of a chain's tensors in the memory of its slot."""

from itertools import combinations
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.npu.driver.cann_values import GEAR_INPUT, ModelDescription, ModelTensor
from ge_runtime.npu.driver.memory import slot_layout

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
