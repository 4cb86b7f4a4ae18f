import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.errors import PlanFault
from ge_runtime.memory.buffers import PlannedBuffers
from ge_runtime.memory.plan import ALIGNMENT, MemoryPlan
from ge_runtime.specs import DType, TensorSpec

IDS = TensorSpec("ids", DType.INT64, ("tokens",))
SCORES = TensorSpec("scores", DType.FP16, ("tokens", 3))
FLAGS = TensorSpec("flags", DType.BOOL, ())


def buffers():
    limits = {"tokens": 10}
    return PlannedBuffers(MemoryPlan.of([IDS, FLAGS], [SCORES], rows=4, limits=limits))


@given(st.integers(1, 4), st.integers(1, 10))
def test_views_are_exact_aligned_and_apart(rows, tokens):
    memory = buffers()
    plan = memory.plan
    views = [
        memory.view(plan.inputs["ids"], (rows, tokens)),
        memory.view(plan.inputs["flags"], (rows,)),
        memory.view(plan.outputs["scores"], (rows, tokens, 3)),
    ]
    assert [view.shape for view in views] == [(rows, tokens), (rows,), (rows, tokens, 3)]
    assert [view.dtype for view in views] == [np.int64, np.bool_, np.float16]
    for number, view in enumerate(views):
        assert view.flags.c_contiguous
        assert view.flags.writeable
        assert view.ctypes.data % ALIGNMENT == 0
        assert not any(np.shares_memory(view, other) for other in views[number + 1 :])


def test_views_of_one_region_share_its_bytes():
    memory = buffers()
    region = memory.plan.inputs["ids"]
    first = memory.view(region, (4, 10))
    first[...] = 7
    second = memory.view(region, (2, 3))
    assert second.ctypes.data == first.ctypes.data
    assert (second == 7).all()


def test_a_view_larger_than_planned_is_refused():
    memory = buffers()
    with pytest.raises(PlanFault) as raised:
        memory.view(memory.plan.inputs["ids"], (4, 11))
    assert str(raised.value) == (
        "input ids: found shape [4, 11] of 352 bytes, expected at most [4, 10] of 320 bytes"
    )


@pytest.mark.parametrize("limit", [2**44, 2**70], ids=["no such memory", "no such number"])
def test_memory_that_cannot_be_had_is_refused_with_the_plan(limit):
    plan = MemoryPlan.of([IDS], [], rows=64, limits={"tokens": limit})
    with pytest.raises(PlanFault, match=r"cannot be allocated:\ninput ids") as raised:
        PlannedBuffers(plan)
    assert "total, aligned" in str(raised.value)


def test_a_plan_of_nothing_needs_no_memory():
    assert PlannedBuffers(MemoryPlan.of([], [], rows=1, limits={})).plan.total_bytes == 0
