"""Generated inputs compared with their definitions, row by row."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.request_batches import AXES, block_of, request_batches, written

from ge_runtime.batching.admission import Block
from ge_runtime.batching.feeds import (
    AccumulatedElementCount,
    AccumulatedElementCountWithZero,
    ElementCount,
    ItemShape,
    ItemShapeFlattened,
    Joined,
    Lengths,
    Mask,
    MaxElementCountAsShape,
    Offsets,
    Positions,
    RowsLater,
    Shared,
    graph_shape,
    rows_first,
)
from ge_runtime.batching.ragged import Geometry, Layout
from ge_runtime.specs import DType, TensorSpec

NUMBERS = [d for d in DType if d not in (DType.BYTES, DType.BF16, DType.BOOL)]
axes = st.sampled_from(AXES)
numbers = st.sampled_from(NUMBERS)
packed_batches = st.builds(
    lambda requests, axis: requests.but(packed=axis), request_batches(), axes
)


def fed(feed, layout):
    """Return the content written by the feed; checks its shape against that of the geometry."""
    shape = feed.shape(layout)
    planned = feed.shape(Geometry(layout.rows, layout.extents, packed=layout.packed))
    assert all(size <= most for size, most in zip(shape, planned, strict=True))
    return written(lambda batch: feed.write(layout, batch), shape, feed.spec.dtype.numpy)


def rows_of(layout, *axes):
    """Return the ends of each row's data along `axes`, row by row."""
    return zip(*(layout.lengths[axis].tolist() for axis in axes), strict=True)


@pytest.mark.brute_force
@given(request_batches(), st.lists(axes, min_size=1, max_size=3), numbers | st.just(DType.BOOL))
def test_mask_is_one_exactly_where_a_row_has_data_along_all_axes(requests, names, dtype):
    layout = requests.layout
    mask = fed(Mask(TensorSpec("m", dtype, tuple(names))), layout)
    for row, ends in zip(mask, rows_of(layout, *names), strict=True):
        expected = np.zeros_like(row)
        expected[tuple(map(slice, ends))] = 1
        np.testing.assert_array_equal(row, expected)


@pytest.mark.brute_force
@given(request_batches(), axes, numbers)
def test_positions_count_from_the_start_of_each_row_and_are_zero_in_padding(requests, axis, dtype):
    layout = requests.layout
    positions = fed(Positions(TensorSpec("p", dtype, (axis,))), layout)
    for row, (end,) in zip(positions, rows_of(layout, axis), strict=True):
        assert row.tolist() == [*range(end), *[0] * (len(row) - end)]


@pytest.mark.brute_force
@given(packed_batches, numbers | st.just(DType.BOOL))
def test_packed_mask_is_one_where_rows_lie(requests, dtype):
    layout = requests.layout
    mask = fed(Mask(TensorSpec("m", dtype, (requests.packed,))), layout)
    total = layout.lengths[requests.packed].sum()
    assert mask.tolist() == [1] * total + [0] * (len(mask) - total)


@pytest.mark.brute_force
@given(packed_batches, numbers)
def test_packed_positions_restart_with_each_row(requests, dtype):
    layout = requests.layout
    positions = fed(Positions(TensorSpec("p", dtype, (requests.packed,))), layout).tolist()
    for (end,) in rows_of(layout, requests.packed):
        assert positions[:end] == list(range(end))
        del positions[:end]
    assert not any(positions)


@pytest.mark.brute_force
@given(request_batches(), axes, numbers, st.sampled_from([(), (1,)]))
def test_lengths_are_true_lengths(requests, axis, dtype, dims):
    layout = requests.layout
    lengths = fed(Lengths(TensorSpec("n", dtype, dims), axis), layout)
    assert lengths.shape == (layout.rows, *dims)
    assert lengths.ravel().tolist() == [end for (end,) in rows_of(layout, axis)]


@pytest.mark.brute_force
@given(request_batches(), axes, numbers)
def test_offsets_are_the_starts_of_rows_and_the_end_of_the_last(requests, axis, dtype):
    layout = requests.layout
    offsets = fed(Offsets(TensorSpec("o", dtype, ()), axis), layout).tolist()
    assert offsets[0] == 0
    ends = [end for (end,) in rows_of(layout, axis)]
    assert [after - before for before, after in pairwise(offsets)] == ends


def test_rows_of_padding_are_the_smallest_valid_rows():
    """A row of padding has one position, so that no graph divides by a length of 0."""
    block = block_of({"x": np.full((1, 3), 7)}, {"t": 3})
    ids, mask = TensorSpec("x", DType.INT64, ("t",)), TensorSpec("m", DType.INT64, ("t",))
    padded = Layout.of([block], rows=3)
    assert fed(Joined(ids, np.int64(-1)), padded).tolist() == [[7, 7, 7], [-1] * 3, [-1] * 3]
    assert fed(Mask(mask), padded).tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    packed = Layout.of([block], rows=3, extents={"t": 6}, packed="t")
    assert fed(Joined(ids, np.int64(-1)), packed).tolist() == [7, 7, 7, -1, -1, -1]
    assert fed(Mask(mask), packed).tolist() == [1, 1, 1, 1, 1, 0]
    assert fed(Offsets(TensorSpec("o", DType.INT32, ()), "t"), packed).tolist() == [0, 3, 4, 5]


padded_or_packed = st.builds(
    lambda requests, packed: requests.but(packed=packed),
    request_batches(),
    st.sampled_from([None, *AXES]),
)
dtypes = st.sampled_from([DType.INT32, DType.FP32, DType.INT64])


def fed_batch(kind, layout, source, dtype=DType.INT32):
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
    assert fed_batch(kind, layout, source).tolist() == expected


@pytest.mark.brute_force
@given(padded_or_packed, dtypes)
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
        assert fed_batch(kind, layout, requests.spec, dtype).tolist() == values


@pytest.mark.brute_force
@given(padded_or_packed, dtypes)
def test_shapes_are_of_the_data_of_each_row(requests, dtype):
    layout = requests.layout
    least = [dim if isinstance(dim, int) else 1 for dim in requests.spec.dims]
    shapes = [list(data.shape) for data in requests.data()]
    shapes += [least] * (layout.rows - layout.filled)
    assert fed_batch(ItemShape, layout, requests.spec, dtype).tolist() == shapes
    flat = fed_batch(ItemShapeFlattened, layout, requests.spec, dtype)
    assert flat.tolist() == [size for shape in shapes for size in shape]


@pytest.mark.brute_force
@given(request_batches(), st.data())
def test_a_turned_feed_writes_the_same_elements_as_the_feed(requests, data):
    layout = requests.layout
    feed = Joined(requests.spec, requests.pad)
    if requests.spec.axes:
        mask = Mask(TensorSpec("m", DType.FP32, tuple(dict.fromkeys(requests.spec.axes))))
        feed = data.draw(st.sampled_from([feed, mask]))
    at = data.draw(st.integers(0, len(feed.spec.dims)))
    own = RowsLater(feed, at)
    shape = own.shape(layout)
    assert shape == own.shape(Geometry(layout.rows, layout.extents))
    assert shape[at] == layout.rows
    dtype = feed.spec.dtype.numpy
    plain = written(lambda batch: feed.write(layout, batch), feed.shape(layout), dtype)
    found = written(lambda batch: own.write(layout, batch), shape, dtype)
    np.testing.assert_array_equal(rows_first(found, at, layout.rows), plain)


def test_a_tensor_without_rows_is_shared_by_all_rows():
    tensors = {"rate": np.full((2, 3), 8.0, np.float32)}
    layout = Layout.of([Block(2, {}, {}, tensors, {})], rows=4)
    feed = Shared(TensorSpec("rate", DType.FP32, (3,)))
    assert feed.shape(layout) == graph_shape((4, 3), None) == (3,)
    batch = np.zeros(3, np.float32)
    feed.write(layout, batch)
    assert rows_first(batch, None, 4).tolist() == [[8, 8, 8]] * 4
