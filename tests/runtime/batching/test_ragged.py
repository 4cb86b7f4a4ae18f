"""Against the definitions, row by row, for requests of any sizes and types in any gear."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.windows import AXES, block_of, ends_of, windows, written

from ge_runtime.batching.ragged import Geometry, Layout, gather, scatter
from ge_runtime.relations import Relation
from ge_runtime.specs import UNKNOWN, DType, TensorSpec


def gathered(window):
    layout, spec = window.layout, window.spec
    return written(
        lambda batch: gather(layout, spec, window.pad, batch),
        layout.shape(spec),
        spec.dtype.numpy,
    )


# -- layout ----------------------------------------------------------------------------------


@given(windows())
def test_layout_measures_rows_and_their_ends(window):
    layout = window.layout
    ends = [ends_of(block, row) for block in window.blocks for row in range(block.rows)]
    assert layout.filled == len(ends)
    assert layout.rows == max(len(ends), window.rows)
    padding = [1] * (layout.rows - len(ends))
    for axis in AXES:
        assert layout.lengths[axis].tolist() == [own[axis] for own in ends] + padding
        assert layout.offsets(axis).tolist() == [
            layout.lengths[axis][:row].sum() for row in range(layout.rows + 1)
        ]


@given(windows())
def test_batch_is_as_large_as_its_rows_its_answers_and_its_gear(window):
    layout = window.layout
    for axis in AXES:
        sizes = [block.sizes[axis] for block in window.blocks]
        longest = max(sizes) if axis in window.answered else layout.lengths[axis].max()
        assert layout.extents[axis] == max(longest, dict(window.extents).get(axis, 0))


@given(windows(), st.sampled_from(AXES))
def test_packed_axis_is_as_large_as_all_rows_together_or_its_gear(window, axis):
    layout = window.but(packed=axis).layout
    total = layout.lengths[axis].sum()
    assert layout.extents[axis] == max(total, dict(window.extents).get(axis, 0))


def test_a_client_that_pads_too_far_costs_nothing_where_no_output_shows_it():
    padded = np.zeros((1, 512), np.int64)
    layout = Layout.of([block_of({"x": padded}, {"t": 512}, {"t": [3]})])
    assert layout.extents == {"t": 3}


@pytest.mark.parametrize(
    ("packed", "dims", "shape"),
    [
        (None, ("t", 2), (5, 30, 2)),
        ("t", ("t", 2), (30, 2)),
        ("t", (2, "t"), (5, 2, 30)),
        ("t", (), (5,)),
    ],
)
def test_only_tensors_with_the_packed_axis_first_have_no_rows(packed, dims, shape):
    geometry = Geometry(5, {"t": 30}, packed=packed)
    assert geometry.shape(TensorSpec("x", DType.FP32, dims)) == shape


# -- gather ----------------------------------------------------------------------------------


@given(windows())
def test_gather_writes_data_where_rows_have_it_and_pad_elsewhere(window):
    batch = gathered(window)
    expected = np.full(batch.shape, window.pad)
    for row, data in enumerate(window.data()):
        expected[(row, *map(slice, data.shape))] = data
    np.testing.assert_array_equal(batch, expected)


@given(windows())
def test_poison_past_a_rows_end_never_reaches_the_batch(window):
    clean = gathered(window)
    for block_ in window.blocks:
        block_.tensors["x"] = block_.tensors["x"].copy()
    kept = [data.copy() for data in window.data()]
    for block_ in window.blocks:
        block_.tensors["x"][...] = window.spec.dtype.numpy.type(1)
    for data, own in zip(window.data(), kept, strict=True):
        data[...] = own
    np.testing.assert_array_equal(gathered(window), clean)


def test_nan_in_a_tail_becomes_padding():
    values = np.array([[1, np.nan, np.nan], [1, 2, np.nan]], np.float32)
    layout = Layout.of([block_of({"x": values}, {"t": 3}, {"t": [1, 2]}, answered=["t"])])
    batch = np.empty((2, 3), np.float32)
    gather(layout, TensorSpec("x", DType.FP32, ("t",)), np.float32(-1), batch)
    assert batch.tolist() == [[1, -1, -1], [1, 2, -1]]


# -- scatter ---------------------------------------------------------------------------------


@given(windows(lengths=False))
def test_scatter_after_gather_gives_each_request_its_own_back(window):
    window = window.but(answered=frozenset(AXES))
    batch = gathered(window)
    for answer, block_ in zip(
        scatter(window.layout, window.spec, batch), window.blocks, strict=True
    ):
        np.testing.assert_array_equal(answer, block_.tensors["x"])
        assert answer.flags.c_contiguous
        assert not np.shares_memory(answer, batch)


@given(windows())
def test_answers_that_last_are_views_where_they_are_one_piece_and_else_carved(window):
    window = window.but(answered=frozenset(AXES))
    batch, carved = gathered(window), []

    def carve(dtype, shape):
        carved.append(np.empty(shape, dtype))
        return carved[-1]

    copies = scatter(window.layout, window.spec, batch)
    answers = scatter(window.layout, window.spec, batch, carve)
    for answer, copy in zip(answers, copies, strict=True):
        np.testing.assert_array_equal(answer, copy)
        assert answer.flags.c_contiguous
        assert np.shares_memory(answer, batch) != any(answer is own for own in carved)
    whole = [
        block_.rows == 1 or window.spec.shape(block_.sizes) == batch.shape[1:]
        for block_ in window.blocks
    ]
    if len(window.spec.dims) <= 1:  # then a row is one piece however long it is
        assert len(carved) == whole.count(False)


@given(windows())
def test_scatter_cuts_answers_to_the_requests_size_not_to_true_lengths(window):
    window = window.but(answered=frozenset(AXES))
    for answer, block_ in zip(
        scatter(window.layout, window.spec, gathered(window)), window.blocks, strict=True
    ):
        assert answer.shape == (block_.rows, *window.spec.shape(block_.sizes))


def test_scatter_cuts_to_what_a_relation_makes_of_the_requests_size():
    spec = TensorSpec("half", DType.FP32, (Relation.parse("(t + 1) // 2"), 2))
    shapes = {3: (2, 3), 8: (1, 8)}
    layout = Layout.of([block_of({"x": np.zeros(shapes[t])}, {"t": t}) for t in shapes])
    batch = np.arange(24.0, dtype=np.float32).reshape(layout.shape(spec))
    first, second = scatter(layout, spec, batch)
    np.testing.assert_array_equal(first, batch[:2, :2])
    np.testing.assert_array_equal(second, batch[2:])


def test_scatter_leaves_a_size_that_nobody_named():
    spec = TensorSpec("found", DType.INT64, ("t", UNKNOWN))
    layout = Layout.of([block_of({"x": np.zeros((1, 2))}, {"t": 2})], extents={"t": 4})
    batch = np.arange(20).reshape(1, 4, 5)
    (answer,) = scatter(layout, spec, batch)
    np.testing.assert_array_equal(answer, batch[:, :2])
