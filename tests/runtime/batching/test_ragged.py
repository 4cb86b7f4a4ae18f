"""Against the definitions, element by element, for requests of any sizes and types."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.batching.admission import Block
from ge_runtime.batching.feeds import Joined, Lengths, Mask
from ge_runtime.batching.ragged import Layout, fill_mask, gather, scatter
from ge_runtime.specs import DType, TensorSpec

AXES = ("a", "b", "c")
FIXED_SIZE = [d for d in DType if d not in (DType.BYTES, DType.BF16)]
POISON = 77  # in batches before they are written; no data and no pad is ever this


@dataclass(frozen=True)
class Window:
    """Blocks of one tensor `x`, and what is drawn with them."""

    spec: TensorSpec
    blocks: list[Block]
    answered: set[str]
    pad: np.generic

    @property
    def layout(self):
        return Layout.of(self.blocks, self.answered)

    def batch(self):
        layout = self.layout
        shape = (layout.rows, *self.spec.shape(layout.extents))
        return np.full(shape, POISON).astype(self.spec.dtype.numpy)

    def rows(self):
        """(block, the row's tensor, each axis' true length), row by row."""
        for block in self.blocks:
            for row in range(block.rows):
                ends = {
                    axis: block.lengths[axis][row] if axis in block.lengths else size
                    for axis, size in block.sizes.items()
                }
                yield block, block.tensors["x"][row, ...], ends


@st.composite
def windows(draw, with_lengths=True):
    dims = tuple(draw(st.lists(st.integers(1, 3) | st.sampled_from(AXES), max_size=3)))
    spec = TensorSpec("x", draw(st.sampled_from(FIXED_SIZE)), dims)
    own = draw(st.sets(st.sampled_from(AXES))) if with_lengths else set()
    blocks = []
    for _ in range(draw(st.integers(1, 5))):
        rows = draw(st.integers(1, 3))
        sizes = {axis: draw(st.integers(1, 6)) for axis in AXES}
        ends = {
            axis: draw(st.lists(st.integers(1, sizes[axis]), min_size=rows, max_size=rows))
            for axis in own
        }
        shape = (rows, *spec.shape(sizes))
        values = np.random.default_rng(draw(st.integers(0, 9))).integers(2, 70, shape)
        blocks.append(Block(rows, sizes, ends, {"x": values.astype(spec.dtype.numpy)}))
    answered = draw(st.sets(st.sampled_from(AXES)))
    return Window(spec, blocks, answered, spec.dtype.numpy.type(draw(st.integers(0, 1))))


@given(windows())
def test_layout_measures_rows_and_extents(window):
    layout = window.layout
    ends = [row_ends for _, _, row_ends in window.rows()]
    assert layout.rows == len(ends)
    for axis in AXES:
        assert layout.lengths[axis].tolist() == [row_ends[axis] for row_ends in ends]
        sizes = [block.sizes[axis] for block in window.blocks]
        longest = max(sizes) if axis in window.answered else max(e[axis] for e in ends)
        assert layout.extents[axis] == longest


@given(windows())
def test_gather_writes_data_where_rows_have_it_and_pad_elsewhere(window):
    batch = window.batch()
    gather(window.layout, window.spec, window.pad, batch)
    for written, (_, source, ends) in zip(batch, window.rows(), strict=True):
        expected = np.full_like(written, window.pad)
        inside = tuple(
            slice(ends[dim]) if isinstance(dim, str) else slice(None) for dim in window.spec.dims
        )
        expected[inside] = source[inside]
        np.testing.assert_array_equal(written, expected)


@given(windows(with_lengths=False))
def test_scatter_after_gather_gives_each_request_its_own_back(window):
    window.answered.update(AXES)
    batch = window.batch()
    gather(window.layout, window.spec, window.pad, batch)
    answers = scatter(window.layout, window.spec, batch)
    for answer, block in zip(answers, window.blocks, strict=True):
        np.testing.assert_array_equal(answer, block.tensors["x"])
        assert answer.flags.c_contiguous
        assert not np.shares_memory(answer, batch)


@given(windows())
def test_scatter_cuts_answers_to_the_requests_size_not_to_true_lengths(window):
    window.answered.update(AXES)
    for answer, block in zip(
        scatter(window.layout, window.spec, window.batch()), window.blocks, strict=True
    ):
        assert answer.shape == (block.rows, *window.spec.shape(block.sizes))


@given(windows(), st.lists(st.sampled_from(AXES), min_size=1, max_size=3))
def test_mask_is_one_exactly_where_a_row_has_data_along_all_axes(window, axes):
    layout = window.layout
    shape = [layout.extents[axis] for axis in axes]
    mask = np.full((layout.rows, *shape), POISON).astype(window.spec.dtype.numpy)
    fill_mask(layout, axes, mask)
    for row, (_, _, ends) in zip(mask, window.rows(), strict=True):
        expected = np.zeros_like(row)
        expected[tuple(slice(ends[axis]) for axis in axes)] = 1
        np.testing.assert_array_equal(row, expected)


@given(windows())
def test_poison_past_a_rows_end_never_reaches_the_batch(window):
    clean, poisoned = window.batch(), window.batch()
    gather(window.layout, window.spec, window.pad, clean)
    for _, tensor, ends in window.rows():
        kept = tensor.copy()
        tensor[...] = POISON
        inside = tuple(
            slice(ends[dim]) if isinstance(dim, str) else slice(None) for dim in window.spec.dims
        )
        tensor[inside] = kept[inside]
    gather(window.layout, window.spec, window.pad, poisoned)
    np.testing.assert_array_equal(clean, poisoned)


def block(sizes, lengths=None, **tensors):
    rows = len(next(iter(tensors.values())))
    return Block(rows, sizes, lengths or {}, tensors)


def test_nan_in_a_tail_becomes_padding():
    values = np.array([[1, np.nan, np.nan], [1, 2, np.nan]], np.float32)
    layout = Layout.of([block({"t": 3}, {"t": [1, 2]}, x=values)], ["t"])
    batch = np.empty((2, 3), np.float32)
    gather(layout, TensorSpec("x", DType.FP32, ("t",)), np.float32(-1), batch)
    assert batch.tolist() == [[1, -1, -1], [1, 2, -1]]


def test_a_client_that_pads_too_far_costs_nothing_where_no_output_shows_it():
    padded = np.zeros((1, 512), np.int64)
    layout = Layout.of([block({"t": 512}, {"t": [3]}, x=padded)], answered=[])
    assert layout.extents == {"t": 3}


def test_non_contiguous_requests_are_joined_too():
    turned = np.arange(6, dtype=np.float32).reshape(1, 3, 2).transpose(0, 2, 1)
    layout = Layout.of([block({"h": 2, "w": 3}, x=turned)] * 2, ["h", "w"])
    batch = np.empty((2, 2, 3), np.float32)
    gather(layout, TensorSpec("x", DType.FP32, ("h", "w")), np.float32(0), batch)
    np.testing.assert_array_equal(batch, np.concatenate([turned, turned]))


@pytest.mark.parametrize(("dims", "shape"), [((), (3,)), ((1,), (3, 1))])
def test_lengths_feed_writes_true_lengths(dims, shape):
    two = block({"t": 9}, {"t": [2, 9]}, x=np.zeros((2, 9)))
    one = block({"t": 4}, {"t": [4]}, x=np.zeros((1, 4)))
    feed = Lengths(TensorSpec("count", DType.INT32, dims), "t")
    batch = np.empty(shape, np.int32)
    feed.write(Layout.of([two, one], []), batch)
    assert batch.ravel().tolist() == [2, 9, 4]


def test_joined_and_mask_feeds_write_their_tensor():
    layout = Layout.of([block({"t": 2}, x=np.ones((1, 2))), block({"t": 3}, x=np.ones((1, 3)))], [])
    joined, mask = np.empty((2, 3)), np.empty((2, 3), np.int64)
    Joined(TensorSpec("x", DType.FP64, ("t",)), np.float64(9)).write(layout, joined)
    Mask(TensorSpec("m", DType.INT64, ("t",))).write(layout, mask)
    assert joined.tolist() == [[1, 1, 9], [1, 1, 1]]
    assert mask.tolist() == [[1, 1, 0], [1, 1, 1]]
