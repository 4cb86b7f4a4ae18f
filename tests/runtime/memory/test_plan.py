import math

from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.memory.plan import ALIGNMENT, MemoryPlan
from ge_runtime.specs import DType, TensorSpec

AXES = ("a", "b")
dtypes = st.sampled_from([d for d in DType if d not in (DType.BYTES, DType.BF16)])
dims = st.lists(st.integers(1, 7) | st.sampled_from(AXES), max_size=3).map(tuple)
specs = st.lists(st.tuples(dtypes, dims), max_size=5).map(
    lambda drawn: [TensorSpec(f"t{i}", *spec) for i, spec in enumerate(drawn)]
)
plans = st.builds(
    lambda inputs, outputs, rows, a, b: MemoryPlan.of(
        inputs, outputs, rows=rows, limits={"a": a, "b": b}
    ),
    specs,
    specs,
    st.integers(1, 9),
    st.integers(1, 30),
    st.integers(1, 30),
)


def regions_of(plan):
    return [*plan.inputs.values(), *plan.outputs.values()]


@given(plans)
def test_regions_are_aligned_inside_and_apart(plan):
    end = 0
    for region in sorted(regions_of(plan), key=lambda region: region.offset):
        assert region.offset % ALIGNMENT == 0
        assert region.offset >= end
        end = region.offset + region.nbytes
    assert end <= plan.total_bytes


@given(plans)
def test_nothing_but_alignment_is_added(plan):
    needed = sum(region.nbytes for region in regions_of(plan))
    assert needed <= plan.total_bytes < needed + ALIGNMENT * max(1, len(regions_of(plan)))


@given(plans)
def test_each_region_holds_its_largest_shape(plan):
    for region in regions_of(plan):
        assert region.nbytes == math.prod(region.shape) * region.dtype.numpy.itemsize


def test_an_input_and_an_output_may_share_a_name():
    spec = TensorSpec("x", DType.FP32, (4,))
    plan = MemoryPlan.of([spec], [spec], rows=2, limits={})
    assert plan.inputs["x"].offset != plan.outputs["x"].offset


def test_table_shows_regions_and_total_for_people():
    plan = MemoryPlan.of(
        [TensorSpec("input_ids", DType.INT64, ("tokens",))],
        [TensorSpec("embedding", DType.FP32, (3,))],
        rows=8,
        limits={"tokens": 512},
    )
    assert plan.table() == [
        "input input_ids   INT64[8, 512]  32,768 bytes",
        "output embedding  FP32[8, 3]         96 bytes",
        "total, aligned                   32,896 bytes",
    ]
