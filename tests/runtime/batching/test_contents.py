"""Checks of the content of requests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.batching.admission import Admission
from ge_runtime.batching.groups import kind_of
from ge_runtime.config import ValueRange
from ge_runtime.errors import RequestFault
from ge_runtime.specs import DType, TensorSpec

IDS = TensorSpec("ids", DType.INT64, ("tokens",))
LENGTHS = TensorSpec("lengths", DType.INT32, (1,))
VOCABULARY = {"ids": ValueRange(0, 15)}


def admission(max_batch_size=4, *, lengths=False):
    inputs, axis_lengths = ([IDS, LENGTHS], {"tokens": "lengths"}) if lengths else ([IDS], {})
    return Admission(inputs, {"tokens": 8}, axis_lengths, max_batch_size, ranges=VOCABULARY)


def ids(*rows):
    return {"ids": np.array(rows, np.int64)}


@pytest.mark.parametrize("value", [16, -1, 2**62])
def test_an_element_out_of_range_is_named_with_its_place(value):
    with pytest.raises(RequestFault) as raised:
        admission().admit(ids([1, 2, 3], [4, value, 6]))
    assert str(raised.value) == (
        f"input 'ids': found {value} at [1, 1], expected 0 to 15 (range.ids)"
    )


def test_a_place_has_no_row_if_requests_have_none():
    with pytest.raises(RequestFault, match=r"found 16 at \[2\], expected 0 to 15"):
        admission(0).admit(ids(1, 2, 16))


@given(st.lists(st.lists(st.integers(-3, 18), min_size=5, max_size=5), min_size=1, max_size=4))
def test_only_data_counts(rows):
    ends = [1 + (row[0] % 5) for row in rows]
    request = {**ids(*rows), "lengths": np.array(ends, np.int32)[:, None]}
    sound = all(
        0 <= value <= 15 for row, end in zip(rows, ends, strict=True) for value in row[:end]
    )
    try:
        admission(lengths=True).admit(request)
    except RequestFault:
        assert not sound
    else:
        assert sound


@pytest.mark.parametrize(
    ("value", "sound"), [(0.5, True), (-1, True), (1, True), (1.01, False), (np.nan, False)]
)
@pytest.mark.parametrize("dtype", [DType.FP16, DType.FP32, DType.FP64])
def test_nan_is_in_no_range(value, sound, dtype):
    spec = TensorSpec("x", dtype, (2,))
    judge = Admission([spec], {}, {}, 1, ranges={"x": ValueRange(-1.0, 1.0)})
    request = {"x": np.array([[0, value]], dtype.numpy)}
    if sound:
        judge.admit(request)
    else:
        with pytest.raises(RequestFault, match=r"at \[0, 1\], expected -1.0 to 1.0"):
            judge.admit(request)


def test_kinds_are_equal_if_and_only_if_the_values_are():
    def kind(*values):
        tensors = {"a": np.full((2, 1), values[0]), "b": np.full((2, 3), values[1])}
        return kind_of(["a", "b"], tensors)

    assert kind(1, 2) == kind(1, 2)
    assert len({kind(1, 2), kind(2, 1), kind(1, 1), kind(2, 2)}) == 4
