"""Feeds with rows along another dim, compared with the same feeds with rows first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.request_batches import request_batches, written

from ge_runtime.batching.admission import Block
from ge_runtime.batching.feeds import Joined, Mask, Shared, Turned, rows_first, turned
from ge_runtime.batching.ragged import Geometry, Layout
from ge_runtime.specs import DType, TensorSpec


@pytest.mark.brute_force
@given(request_batches(), st.data())
def test_a_turned_feed_writes_the_same_elements_as_the_feed(requests, data):
    layout = requests.layout
    feed = Joined(requests.spec, requests.pad)
    if requests.spec.axes:
        mask = Mask(TensorSpec("m", DType.FP32, tuple(dict.fromkeys(requests.spec.axes))))
        feed = data.draw(st.sampled_from([feed, mask]))
    at = data.draw(st.integers(0, len(feed.spec.dims)))
    own = Turned(feed, at)
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
    assert feed.shape(layout) == turned((4, 3), None) == (3,)
    batch = np.zeros(3, np.float32)
    feed.write(layout, batch)
    assert rows_first(batch, None, 4).tolist() == [[8, 8, 8]] * 4
