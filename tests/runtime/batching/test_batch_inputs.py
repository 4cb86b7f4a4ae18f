"""Triton's kinds of `batch_input`: its own examples, and a comparison with the definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.request_batches import AXES, block_of, request_batches, written

from ge_runtime.batching.feeds import (
    AccumulatedElementCount,
    AccumulatedElementCountWithZero,
    ElementCount,
    ItemShape,
    ItemShapeFlattened,
    MaxElementCountAsShape,
)
from ge_runtime.batching.ragged import Geometry, Layout
from ge_runtime.specs import DType, TensorSpec

request_batches = st.builds(
    lambda requests, packed: requests.but(packed=packed),
    request_batches(),
    st.sampled_from([None, *AXES]),
)
dtypes = st.sampled_from([DType.INT32, DType.FP32, DType.INT64])


def fed(kind, layout, source, dtype=DType.INT32):
    feed = kind(TensorSpec("target", dtype, ()), source)
    shape = feed.shape(layout)
    planned = feed.shape(Geometry(layout.rows, layout.extents, packed=layout.packed))
    assert all(size <= most for size, most in zip(shape, planned, strict=True))
    return written(lambda batch: feed.write(layout, batch), shape, dtype.numpy)


def layout_of(dims, *shapes):
    """Return requests of these shapes, rows first, in which all dims are ragged."""
    source = TensorSpec("x", DType.FP32, dims)
    blocks = [
        block_of({"x": np.zeros(shape)}, dict(zip(dims, shape[1:], strict=True)))
        for shape in shapes
    ]
    return Layout.of(blocks), source


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ElementCount, [2, 2]),
        (AccumulatedElementCount, [2, 4]),
        (AccumulatedElementCountWithZero, [0, 2, 4]),
        (MaxElementCountAsShape, [0, 0]),
        (ItemShape, [[2], [2]]),
        (ItemShapeFlattened, [2, 2]),
    ],
)
def test_two_requests_of_two_elements(kind, expected):
    layout, source = layout_of(("n",), (1, 2), (1, 2))
    assert fed(kind, layout, source).tolist() == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ElementCount, [6, 4]),
        (AccumulatedElementCount, [6, 10]),
        (AccumulatedElementCountWithZero, [0, 6, 10]),
        (MaxElementCountAsShape, [0] * 6),
        (ItemShape, [[3, 1], [3, 1], [2, 2]]),
        (ItemShapeFlattened, [3, 1, 3, 1, 2, 2]),
    ],
)
def test_a_request_of_two_rows_and_one_of_one(kind, expected):
    layout, source = layout_of(("h", "w"), (2, 3, 1), (1, 2, 2))
    assert fed(kind, layout, source).tolist() == expected


@pytest.mark.brute_force
@given(request_batches, dtypes)
def test_counts_are_of_the_data_of_each_request(requests, dtype):
    layout, data = requests.layout, requests.data()
    counts = [sum(next(data).size for _ in range(block.rows)) for block in requests.blocks]
    fixed = np.prod([dim for dim in requests.spec.dims if isinstance(dim, int)], dtype=int)
    counts += [fixed] * (layout.rows - layout.filled)
    total = np.cumsum(counts).tolist()
    expected = {
        ElementCount: counts,
        AccumulatedElementCount: total,
        AccumulatedElementCountWithZero: [0, *total],
        MaxElementCountAsShape: [0] * max(counts),
    }
    for kind, values in expected.items():
        assert fed(kind, layout, requests.spec, dtype).tolist() == values


@pytest.mark.brute_force
@given(request_batches, dtypes)
def test_shapes_are_of_the_data_of_each_row(requests, dtype):
    layout = requests.layout
    least = [dim if isinstance(dim, int) else 1 for dim in requests.spec.dims]
    shapes = [list(data.shape) for data in requests.data()]
    shapes += [least] * (layout.rows - layout.filled)
    assert fed(ItemShape, layout, requests.spec, dtype).tolist() == shapes
    flat = fed(ItemShapeFlattened, layout, requests.spec, dtype)
    assert flat.tolist() == [size for shape in shapes for size in shape]


def test_accumulated_counts_are_the_offsets_of_a_packed_batch():
    block = block_of({"x": np.zeros((2, 5))}, {"t": 5}, {"t": [3, 2]})
    other = block_of({"x": np.zeros((1, 4))}, {"t": 4}, {"t": [4]})
    layout = Layout.of([block, other], packed="t")
    source = TensorSpec("x", DType.INT64, ("t",))
    assert fed(AccumulatedElementCountWithZero, layout, source).tolist() == [0, 5, 9]
    assert layout.extents["t"] == 9
