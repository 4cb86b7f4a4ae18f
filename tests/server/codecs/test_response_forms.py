"""Classification is a stable sort; and large responses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import array_tensor, raw_tensor

from reference_server.codecs.inference import OutputForm, ResponseForm, classify
from reference_server.core.tensor import DataType


def classes(values, count, *, dtype=np.float32, labels=(), batches=False):
    """Shape and texts of the classes."""
    result = classify(array_tensor("Y", values, dtype), count, labels, batches=batches)
    assert (result.name, result.datatype) == ("Y", DataType.BYTES)
    assert result.array().shape == result.shape
    return result.shape, [text.decode() for text in result.array().ravel()]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.integers(1, 10))
def test_the_order_is_that_of_a_stable_sort(values, count):
    expected = sorted(range(len(values)), key=lambda index: -values[index])[:count]
    assert classes(values, count, dtype=np.int32)[1] == [
        f"{values[index]}:{index}" for index in expected
    ]


@pytest.mark.parametrize(
    ("tensor", "form", "is_large"),
    [
        (array_tensor("Y", np.zeros(8192, np.float32)), OutputForm(classes=1), False),
        (array_tensor("Y", np.zeros((2, 4097), np.float32)), OutputForm(classes=1), True),
        (array_tensor("Y", np.zeros(100_000, np.float32)), OutputForm(binary=True), False),
        (array_tensor("Y", np.array([b"x"] * 8193, object)), OutputForm(binary=True), True),
        (raw_tensor("Y", DataType.BYTES, (8193,), bytes(4 * 8193)), OutputForm(), False),
    ],
    ids=["few", "many", "numbers", "strings", "bytes"],
)
def test_large_responses(tensor, form, is_large):
    assert ResponseForm(form).is_large_response([tensor]) is is_large
