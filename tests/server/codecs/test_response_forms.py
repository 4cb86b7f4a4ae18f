"""Classification: the greatest values of each row as text; and large responses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import array_tensor, raw_tensor

from reference_server.codecs.inference import OutputForm, ResponseForm, classify
from reference_server.core.errors import Code, ServerError
from reference_server.core.tensor import DataType, Tensor


def classes(values, count, *, dtype=np.float32, labels=(), batches=False):
    """Shape and texts of the classes."""
    result = classify(array_tensor("Y", values, dtype), count, labels, batches=batches)
    assert (result.name, result.datatype) == ("Y", DataType.BYTES)
    assert result.array().shape == result.shape
    return result.shape, [text.decode() for text in result.array().ravel()]


def test_classes_are_sorted_by_value():
    assert classes([0.1, 0.9, 0.5], 2) == ((2,), ["0.900000:1", "0.500000:2"])


def test_there_are_at_most_as_many_classes_as_values():
    assert classes([1, 2], 9) == ((2,), ["2.000000:1", "1.000000:0"])
    assert classes([1, 2], 2**64 - 1)[0] == (2,)


def test_each_row_of_a_batch_is_classified():
    assert classes([[1, 2, 3], [6, 5, 4]], 1, batches=True) == (
        (2, 1),
        ["3.000000:2", "6.000000:0"],
    )


def test_other_dimensions_are_flattened():
    assert classes([[1, 4], [3, 2]], 2) == ((2,), ["4.000000:1", "3.000000:2"])
    values = [[[1, 4], [3, 2]], [[0, 0], [0, 9]]]
    assert classes(values, 1, batches=True) == ((2, 1), ["4.000000:1", "9.000000:3"])


def test_equal_values_keep_their_order():
    assert classes([1, 2, 1, 2, 1], 5)[1] == [
        "2.000000:1",
        "2.000000:3",
        "1.000000:0",
        "1.000000:2",
        "1.000000:4",
    ]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.integers(1, 10))
def test_the_order_is_that_of_a_stable_sort(values, count):
    expected = sorted(range(len(values)), key=lambda index: -values[index])[:count]
    assert classes(values, count, dtype=np.int32)[1] == [
        f"{values[index]}:{index}" for index in expected
    ]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, np.float32, "0.100000:0"),
        (1e30, np.float32, "1000000015047466219876688855040.000000:0"),
        (0.1, np.float64, "0.100000:0"),
        (-2.5, np.float32, "-2.500000:0"),
        (np.inf, np.float32, "inf:0"),
        (-np.inf, np.float32, "-inf:0"),
        (100000, np.int32, "100000:0"),
        (-7, np.int8, "-7:0"),
        (2**64 - 1, np.uint64, "18446744073709551615:0"),
    ],
)
def test_values_of_classes_are_formatted(value, dtype, text):
    assert classes([value], 1, dtype=dtype)[1] == [text]


def test_classes_have_labels():
    assert classes([1, 4, 3, 2], 4, labels=("cat", "dög", ""))[1] == [
        "4.000000:1:dög",
        "3.000000:2",  # an empty line is no label
        "2.000000:3",
        "1.000000:0:cat",
    ]


@pytest.mark.parametrize(
    ("shape", "batches", "result"),
    [((0,), False, (0,)), ((0, 3), True, (0, 0)), ((2, 0), True, (2, 0))],
)
def test_empty_tensors_have_no_classes(shape, batches, result):
    assert classes(np.zeros(shape), 2, batches=batches) == (result, [])


@pytest.mark.parametrize("batches", [True, False])
def test_a_scalar_is_one_value(batches):
    assert classes(np.float32(3), 2, batches=batches) == ((1,), ["3.000000:0"])


def test_a_raw_tensor_is_classified():
    raw = np.array([1, 2], np.float32).tobytes()
    tensor = Tensor("Y", DataType.FP32, (2,), raw=memoryview(raw))
    assert classify(tensor, 1, (), batches=False).array().tolist() == [b"2.000000:1"]


@pytest.mark.parametrize(
    "tensor",
    [
        array_tensor("Y", [b"a"], object),
        array_tensor("Y", [1], np.float16),
        array_tensor("Y", [True]),
        Tensor("Y", DataType.BF16, (1,), raw=memoryview(bytes(2))),
    ],
    ids=["BYTES", "FP16", "BOOL", "BF16"],
)
def test_types_without_classes(tensor):
    with pytest.raises(ServerError) as caught:
        classify(tensor, 1, (), batches=False)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        f"class result not available for output due to unsupported type '{tensor.datatype.value}'"
    )


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
