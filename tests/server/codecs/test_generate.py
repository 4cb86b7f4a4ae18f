"""The generate extension, beyond the requests and responses of tests/recorded/test_http.py."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import NullSink, signature

from reference_server.codecs import generate
from reference_server.core.errors import Code, ServerError
from reference_server.core.tensor import DataType


def decode(body, model):
    return generate.decode(model, memoryview(json.dumps(body).encode()), NullSink())


def refusal(body, model):
    with pytest.raises(ServerError) as caught:
        decode(body, model)
    return caught.value.code, caught.value.message


@given(st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1, max_size=4), st.integers(0, 24))
def test_a_derived_shape_fits_the_elements(dims, count):
    model = signature({"X": (DataType.FP32, dims)})
    try:
        shape = decode({"X": [0] * count}, model).inputs["X"].shape
    except ServerError:
        fixed = np.prod([dim for dim in dims if dim > 0])
        assert count % fixed or (-1 not in dims and count != fixed)
        return
    assert np.prod(shape) == count
    assert all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))


def test_inputs_may_be_nested_99_deep():
    model = signature({"X": (DataType.FP32, [-1]), "T": (DataType.BYTES, [-1])})

    def nested(name, depth):
        return {name: json.loads("[" * depth + "1" + "]" * depth)}

    assert decode(nested("X", 99), model).inputs["X"].array().tolist() == [1]
    too_deep = "JSON nesting depth exceeds maximum allowed limit (100)"
    for name, prefix in (("X", "Unable to parse 'data': "), ("T", ""), ("parameter", "")):
        expected = Code.INVALID_ARG, f"{prefix}{too_deep}"
        assert refusal(nested(name, 100), model) == expected
    with pytest.raises(ServerError, match=r"^JSON nesting depth"):
        generate.decode(model, memoryview(b"[" * 101), NullSink())


def test_an_input_cannot_be_called_parameters():
    assert refusal({"parameters": "x"}, signature({"parameters": (DataType.BYTES, [1])})) == (
        Code.INVALID_ARG,
        "Keyword 'parameters' for nested schema also given as input tensor name",
    )
