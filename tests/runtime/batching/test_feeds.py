"""Generated inputs compared with their definitions, row by row."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.request_batches import AXES, block_of, request_batches, written

from ge_runtime.batching.feeds import Joined, Lengths, Mask, Offsets, Positions
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


@pytest.mark.brute_force
@given(request_batches())
def test_joined_rows_are_gathered(requests):
    batch = fed(Joined(requests.spec, requests.pad), requests.layout)
    for row, data in zip(batch, requests.data(), strict=False):
        np.testing.assert_array_equal(row[tuple(map(slice, data.shape))], data)


@pytest.mark.brute_force
@given(request_batches(first="a"))
def test_joined_rows_with_the_packed_axis_are_packed(requests):
    requests = requests.but(packed="a")
    batch = fed(Joined(requests.spec, requests.pad), requests.layout)
    for data in requests.data():
        own, batch = batch[: len(data)], batch[len(data) :]
        np.testing.assert_array_equal(own[tuple(map(slice, data.shape))], data)


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
