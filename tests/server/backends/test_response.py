"""Tests of InferenceResponse, TritonError and TritonModelException."""

import numpy as np
import pytest
from server.backends.kit import request, senders
from triton_python_backend_utils import (
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
)

from reference_server.core.errors import Code

TENSOR = Tensor("OUT", np.zeros(1))


@pytest.mark.parametrize("make", [list, tuple])
def test_output_tensors_returns_a_new_list(make):
    response = InferenceResponse(make([TENSOR, TENSOR]))
    response.output_tensors().clear()
    assert response.output_tensors() == [TENSOR, TENSOR]
    assert not response.has_error()
    assert response.error() is None


def test_all_arguments_may_be_left_out_or_named():
    assert InferenceResponse().output_tensors() == []
    response = InferenceResponse(output_tensors=[TENSOR], error=TritonError("x"))
    assert response.has_error()
    assert response.error().message() == "x"
    assert response.output_tensors() == [TENSOR]


def test_the_code_is_internal_unless_given():
    assert TritonError("x").code() is TritonError.INTERNAL
    assert TritonError(message="x", code=TritonError.NOT_FOUND).code() is TritonError.NOT_FOUND
    assert TritonError("né".encode()).message() == "né"


@pytest.mark.parametrize("number_and_code", list(enumerate(Code)))
def test_every_code_of_the_server_has_one(number_and_code):
    number, code = number_and_code
    ours = getattr(TritonError, code.name)
    assert ours.value == number
    error = TritonError("text", ours)._as_server_error()
    assert (error.code, error.message) == (code, "text")


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), True, "text"])
def test_parameters_of_64_bits_are_sent(value):
    response = senders().respond(request(), InferenceResponse([TENSOR], parameters={"a": value}))
    assert response.error is None
    assert response.parameters == (("a", value),)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_a_parameter_beyond_64_bits_is_an_error(value):
    given = InferenceResponse([TENSOR], parameters={"a": 1, "b": value})
    response = senders().respond(request(), given)
    assert response.error is not None
    assert response.error.message == "Unsupported value type on parameters"
    assert (response.outputs, response.parameters) == ([], ())


@pytest.mark.parametrize("value", [1.0, np.int64(1), np.bool_(True), np.float64(1), b"x", None])
def test_parameters_of_other_types_are_refused(value):
    text = f"Expect parameters values to have type bool/int/str, found type {type(value)}"
    with pytest.raises(TritonModelException, match=f"^{text}$"):
        InferenceResponse(parameters={"a": value})
