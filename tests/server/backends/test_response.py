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


def test_a_later_change_of_the_list_has_no_effect():
    tensors = [TENSOR]
    response = InferenceResponse(tensors)
    tensors.clear()
    assert response.output_tensors() == [TENSOR]


def test_all_arguments_may_be_left_out_or_named():
    assert InferenceResponse().output_tensors() == []
    response = InferenceResponse(output_tensors=[TENSOR], error=TritonError("x"))
    assert response.has_error()
    assert response.error().message() == "x"
    assert response.output_tensors() == [TENSOR]


def test_none_among_the_outputs_is_refused():
    with pytest.raises(
        TritonModelException, match=r"^Output tensor for inference response should not be empty.$"
    ):
        InferenceResponse([None])


@pytest.mark.parametrize("outputs", [None, [5], "ab"], ids=repr)
def test_output_tensors_must_be_a_list_of_tensors(outputs):
    with pytest.raises(TypeError, match=r"^argument 'output_tensors': found .*; expected "):
        InferenceResponse(outputs)


def test_the_error_must_be_a_triton_error():
    text = "argument 'error': found str; expected TritonError or None"
    with pytest.raises(TypeError, match=f"^{text}$"):
        InferenceResponse([], "boom")


def test_the_code_is_internal_unless_given():
    assert TritonError("x").code() is TritonError.INTERNAL
    assert TritonError(message="x", code=TritonError.NOT_FOUND).code() is TritonError.NOT_FOUND
    assert TritonError("né".encode()).message() == "né"


def test_codes_have_tritons_repr_and_str():
    code = TritonError.INTERNAL
    assert (repr(code), str(code), f"{code}") == (
        "<__ErrorCode.INTERNAL: 1>",
        "__ErrorCode.INTERNAL",
        "__ErrorCode.INTERNAL",
    )
    assert (code.name, code.value, int(code), code == 1) == ("INTERNAL", 1, 1, True)
    assert repr(type(code)) in {
        "<class 'c_python_backend_utils.TritonError.__ErrorCode'>",
        "<enum '__ErrorCode'>",
    }


@pytest.mark.parametrize("number_and_code", list(enumerate(Code)))
def test_every_code_of_the_server_has_one(number_and_code):
    number, code = number_and_code
    ours = getattr(TritonError, code.name)
    assert ours.value == number
    error = TritonError("text", ours)._as_server_error()
    assert (error.code, error.message) == (code, "text")


@pytest.mark.parametrize("arguments", [("x", 3), (5,), ("x", "INTERNAL"), (None,)])
def test_errors_of_foreign_values_are_refused(arguments):
    with pytest.raises(TypeError, match=r"^argument '(message|code)': found "):
        TritonError(*arguments)


def test_only_tritonmodelexception_is_an_exception():
    assert not issubclass(TritonError, BaseException)
    exception = TritonModelException("x", "y")
    assert exception.args == ("x", "y")
    assert repr(type(exception)) == "<class 'c_python_backend_utils.TritonModelException'>"


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
