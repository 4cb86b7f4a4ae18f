"""Which gears of a chain's stages go together."""

from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.driver.cann_values import ModelDescription, ModelTensor
from ge_runtime.npu.driver.om_model import OmGear
from ge_runtime.npu.engines.om import join_gears


def model(inputs, outputs, *gears):
    """gears: the dims of the inputs and then of the outputs, each."""
    tensors = [ModelTensor(name, 0, 2, (), 0) for name in (*inputs, *outputs)]
    split = len(inputs)
    described = ModelDescription((*tensors[:split],), (*tensors[split:],))
    return SimpleNamespace(
        description=described,
        gears={dims[:split]: OmGear(None, dims[:split], dims[split:]) for dims in gears},
    )


def inputs_of(sizes):
    return sizes[:-1]


@st.composite
def chains(draw):
    """Up to four stages, whose outputs are new and whose inputs may be earlier stages' outputs."""
    known, stages, fresh = ["u", "v"], {}, iter("wxyz")
    for stage in range(draw(st.integers(1, 4))):
        takes = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True))
        gives = next(fresh)
        sizes = st.tuples(*(st.integers(1, 3) for _ in (*takes, gives)))
        gears = draw(st.lists(sizes, min_size=1, max_size=6, unique_by=inputs_of))
        stages[str(stage)] = model(takes, gives, *(tuple((n,) for n in own) for own in gears))
        known.append(gives)
    return stages


def dims_of(own, gear):
    names = [tensor.name for tensor in own.description.inputs]
    return dict(
        zip((*names, *own.description.output_names), gear.inputs + gear.outputs, strict=True)
    )


def agreeing(models):
    """Every combination of gears in which no tensor has two shapes."""
    for gears in product(*(own.gears.values() for own in models.values())):
        dims = {}
        for own, gear in zip(models.values(), gears, strict=True):
            for name, shape in dims_of(own, gear).items():
                if dims.setdefault(name, shape) != shape:
                    break
            else:
                continue
            break
        else:
            yield gears, dims


@pytest.mark.brute_force
@given(chains())
def test_what_is_joined_is_every_combination_that_agrees_and_no_other(models):
    expected = list(agreeing(models))
    try:
        found = [(gear.stages, dict(gear.dims)) for gear in join_gears(models)]
    except ArtifactFault:
        found = []
    assert found == expected


def test_the_first_stage_that_fits_no_earlier_gears_is_reported_with_both_lists():
    models = {
        "embed": model("x", "h", ((1, 8), (1, 4)), ((2, 8), (2, 4))),
        "pool": model("h", "p", ((2, 4), (2,)), ((4, 4), (4,))),
        "head": model("p", "y", ((1,), (1,)), ((4,), (4,))),
    }
    with pytest.raises(ArtifactFault) as raised:
        join_gears(models)
    assert str(raised.value) == (
        "the stages embed, pool, head do not fit together: stage 'head': found gears for p [1]; "
        "p [4], expected a gear of earlier stages: p [2]; `ge-runtime build` compiles "
        "all stages for the same gears"
    )
