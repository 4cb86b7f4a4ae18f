"""Packed tensors compared with their definition, and with padded ones."""

import numpy as np
import pytest
from hypothesis import given
from runtime.support.request_batches import AXES, block_of, request_batches, written

from ge_runtime.batching.packing import pack, unpack
from ge_runtime.batching.ragged import Layout, gather, scatter
from ge_runtime.specs import DType, TensorSpec

packed_batches = request_batches(first="a").map(
    lambda requests: requests.but(packed="a", answered=frozenset(AXES))
)


def packed(requests):
    layout, spec = requests.layout, requests.spec
    return written(
        lambda batch: pack(layout, spec, requests.pad, batch),
        layout.shape(spec),
        spec.dtype.numpy,
    )


@pytest.mark.brute_force
@given(packed_batches)
def test_rows_are_joined_and_the_rest_is_padding(requests):
    batch = packed(requests)
    expected = np.full(batch.shape, requests.pad)
    start = 0
    for data in requests.data():
        end = start + len(data)
        expected[(slice(start, end), *map(slice, data.shape[1:]))] = data
        start = end
    np.testing.assert_array_equal(batch, expected)


@pytest.mark.brute_force
@given(packed_batches)
def test_packed_and_padded_batches_have_equal_answers(requests):
    zeros = requests.but(pad=requests.spec.dtype.numpy.type(0))
    layout, spec = zeros.but(packed=None).layout, requests.spec
    padded = np.empty(layout.shape(spec), spec.dtype.numpy)
    gather(layout, spec, zeros.pad, padded)
    answers = unpack(zeros.layout, spec, packed(zeros))
    for answer, expected in zip(answers, scatter(layout, spec, padded), strict=True):
        np.testing.assert_array_equal(answer, expected)
        assert answer.flags.c_contiguous


@pytest.mark.brute_force
@given(packed_batches)
def test_zeros_follow_a_shorter_row(requests):
    answers = unpack(requests.layout, requests.spec, packed(requests))
    data = requests.data()
    for block, answer in zip(requests.blocks, answers, strict=True):
        assert answer.shape == (block.rows, *requests.spec.shape(block.sizes))
        for row, own in zip(answer, data, strict=False):
            np.testing.assert_array_equal(row[tuple(map(slice, own.shape))], own)
            assert not row[len(own) :].any()


@pytest.mark.brute_force
@given(packed_batches)
def test_answers_are_views_or_carved_or_copies(requests):
    batch, carved = packed(requests), []

    def carve(dtype, shape):
        carved.append(np.empty(shape, dtype))
        return carved[-1]

    copies = unpack(requests.layout, requests.spec, batch)
    answers = unpack(requests.layout, requests.spec, batch, carve)
    for answer, copy in zip(answers, copies, strict=True):
        np.testing.assert_array_equal(answer, copy)
        assert not np.shares_memory(copy, batch)
        assert np.shares_memory(answer, batch) != any(answer is own for own in carved)


def test_full_rows_are_answered_without_a_copy():
    spec = TensorSpec("x", DType.FP32, ("t", 2))
    full = block_of({"x": np.zeros((3, 4, 2), np.float32)}, {"t": 4}, {"t": [4, 4, 4]})
    short = block_of({"x": np.zeros((2, 4, 2), np.float32)}, {"t": 4}, {"t": [4, 3]})
    layout = Layout.of([full, short], packed="t")
    batch, carved = np.ones(layout.shape(spec), np.float32), []

    def carve(dtype, shape):
        carved.append(shape)
        return np.empty(shape, dtype)

    whole, spread = unpack(layout, spec, batch, carve)
    assert np.shares_memory(whole, batch)
    assert whole.shape == (3, 4, 2)
    assert carved == [(2, 4, 2)]
    assert spread[:, :, 0].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
