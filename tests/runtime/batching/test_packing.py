"""Packed tensors compared with their definition, and with padded ones."""

import numpy as np
import pytest
from hypothesis import given
from runtime.support.request_batches import AXES, request_batches, written

from ge_runtime.batching.packing import pack, unpack
from ge_runtime.batching.ragged import gather, scatter

packed_batches = request_batches(first="a").map(
    lambda requests: requests.but(packed="a", answered=frozenset(AXES))
)


def packed(requests):
    layout, spec = requests.layout, requests.spec
    return written(
        lambda batch: pack(layout, spec, requests.pad, batch), layout.shape(spec), spec.dtype.numpy
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
