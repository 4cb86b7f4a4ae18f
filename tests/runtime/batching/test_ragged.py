"""Ragged batches compared with their definition, for all sizes, types and gears."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.request_batches import AXES, block_of, ends_of, request_batches, written

from ge_runtime.batching.ragged import Geometry, Layout, gather, scatter
from ge_runtime.specs import UNKNOWN, DType, Relation, TensorSpec


def gathered(requests):
    layout, spec = requests.layout, requests.spec
    return written(
        lambda batch: gather(layout, spec, requests.pad, batch),
        layout.shape(spec),
        spec.dtype.numpy,
    )


# -- layout ----------------------------------------------------------------------------------


@pytest.mark.brute_force
@given(request_batches())
def test_layout_measures_rows_and_their_ends(requests):
    layout = requests.layout
    ends = [ends_of(block, row) for block in requests.blocks for row in range(block.rows)]
    assert layout.filled == len(ends)
    assert layout.rows == max(len(ends), requests.rows)
    padding = [1] * (layout.rows - len(ends))
    for axis in AXES:
        assert layout.lengths[axis].tolist() == [own[axis] for own in ends] + padding
        assert layout.offsets(axis).tolist() == [
            layout.lengths[axis][:row].sum() for row in range(layout.rows + 1)
        ]


@pytest.mark.brute_force
@given(request_batches())
def test_a_batch_holds_its_rows_its_answers_and_its_gear(requests):
    layout = requests.layout
    for axis in AXES:
        sizes = [block.sizes[axis] for block in requests.blocks]
        longest = max(sizes) if axis in requests.answered else layout.lengths[axis].max()
        assert layout.extents[axis] == max(longest, dict(requests.extents).get(axis, 0))


@pytest.mark.brute_force
@given(request_batches(), st.sampled_from(AXES))
def test_a_packed_axis_holds_all_rows_or_its_gear(requests, axis):
    layout = requests.but(packed=axis).layout
    total = layout.lengths[axis].sum()
    assert layout.extents[axis] == max(total, dict(requests.extents).get(axis, 0))


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


@pytest.mark.brute_force
@given(request_batches())
def test_gather_writes_data_of_rows_and_padding_elsewhere(requests):
    batch = gathered(requests)
    expected = np.full(batch.shape, requests.pad)
    for row, data in enumerate(requests.data()):
        expected[(row, *map(slice, data.shape))] = data
    np.testing.assert_array_equal(batch, expected)


@pytest.mark.brute_force
@given(request_batches())
def test_poison_past_a_rows_end_never_reaches_the_batch(requests):
    clean = gathered(requests)
    for block_ in requests.blocks:
        block_.tensors["x"] = block_.tensors["x"].copy()
    kept = [data.copy() for data in requests.data()]
    for block_ in requests.blocks:
        block_.tensors["x"][...] = requests.spec.dtype.numpy.type(1)
    for data, own in zip(requests.data(), kept, strict=True):
        data[...] = own
    np.testing.assert_array_equal(gathered(requests), clean)


# -- scatter ---------------------------------------------------------------------------------


@pytest.mark.brute_force
@given(request_batches(lengths=False))
def test_scatter_after_gather_restores_each_request(requests):
    requests = requests.but(answered=frozenset(AXES))
    batch = gathered(requests)
    for answer, block_ in zip(
        scatter(requests.layout, requests.spec, batch), requests.blocks, strict=True
    ):
        np.testing.assert_array_equal(answer, block_.tensors["x"])
        assert answer.flags.c_contiguous
        assert not np.shares_memory(answer, batch)


@pytest.mark.brute_force
@given(request_batches())
def test_answers_are_views_if_contiguous_and_carved_otherwise(requests):
    requests = requests.but(answered=frozenset(AXES))
    batch, carved = gathered(requests), []

    def carve(dtype, shape):
        carved.append(np.empty(shape, dtype))
        return carved[-1]

    copies = scatter(requests.layout, requests.spec, batch)
    answers = scatter(requests.layout, requests.spec, batch, carve)
    for answer, copy in zip(answers, copies, strict=True):
        np.testing.assert_array_equal(answer, copy)
        assert answer.flags.c_contiguous
        assert np.shares_memory(answer, batch) != any(answer is own for own in carved)
    whole = [
        block_.rows == 1 or requests.spec.shape(block_.sizes) == batch.shape[1:]
        for block_ in requests.blocks
    ]
    if len(requests.spec.dims) <= 1:  # then a row of any length is contiguous
        assert len(carved) == whole.count(False)


def test_scatter_cuts_to_the_size_of_a_relation():
    spec = TensorSpec("half", DType.FP32, (Relation.parse("(t + 1) // 2"), 2))
    shapes = {3: (2, 3), 8: (1, 8)}
    layout = Layout.of([block_of({"x": np.zeros(shapes[t])}, {"t": t}) for t in shapes])
    batch = np.arange(24.0, dtype=np.float32).reshape(layout.shape(spec))
    first, second = scatter(layout, spec, batch)
    np.testing.assert_array_equal(first, batch[:2, :2])
    np.testing.assert_array_equal(second, batch[2:])


def test_scatter_keeps_an_unnamed_size():
    spec = TensorSpec("found", DType.INT64, ("t", UNKNOWN))
    layout = Layout.of([block_of({"x": np.zeros((1, 2))}, {"t": 2})], extents={"t": 4})
    batch = np.arange(20).reshape(1, 4, 5)
    (answer,) = scatter(layout, spec, batch)
    np.testing.assert_array_equal(answer, batch[:, :2])
