"""The `data` of an input: the tensor, or the reported fault."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reference_server.codecs import json_tensor_reader
from reference_server.codecs.json_tensor_reader import read_tensor
from reference_server.codecs.json_writer import write_array
from reference_server.codecs.rapid_json import loads
from reference_server.core.errors import ServerError
from reference_server.core.tensor import DataType

NUMERIC = [d for d in DataType if d not in (DataType.FP16, DataType.BF16, DataType.BYTES)]


@pytest.mark.brute_force
@pytest.mark.parametrize("datatype", NUMERIC)
@settings(max_examples=30)
@given(st.data())
def test_written_tensors_are_read_back(datatype, data):
    shape = data.draw(arrays.array_shapes(max_dims=3, max_side=4))
    elements = arrays.from_dtype(np.dtype(datatype.numpy))
    array = data.draw(arrays.arrays(datatype.numpy, shape, elements=elements))
    again = read_tensor(loads(write_array(array)), datatype, shape)
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=5))
def test_written_strings_are_read_back(elements):
    array = np.array([*elements, None], dtype=object)[:-1]
    again = read_tensor(loads(write_array(array)), DataType.BYTES, (len(elements),))
    assert again.tolist() == elements


@pytest.mark.parametrize(
    ("data", "datatype", "refusal"),
    [
        ([1, 2, 3, 4, 5, 300, 7], DataType.INT8, "value 300 is out of range"),
        ([300, 2, 3, 4, 5, 2**63], DataType.INT8, "non-signed-integer"),
        ([300, 2, 3, 4, 5, True], DataType.INT8, "non-signed-integer"),
        ([1, 2, 3, 4, 5, 6, "7"], DataType.FP32, "non-number as double"),
    ],
)
def test_the_refusal_does_not_depend_on_the_pieces(monkeypatch, data, datatype, refusal):
    monkeypatch.setattr(json_tensor_reader.gil, "SLICE", 4)
    with pytest.raises(ServerError, match=refusal):
        read_tensor(data, datatype, (len(data),))
