"""InferenceRequest, InferenceResponse and TritonError."""

import numpy as np
import pytest
from server.backends.kit import request, senders
from triton_python_backend_utils import (
    InferenceRequest,
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
)

from reference_server.core.errors import Code
from reference_server.core.request import InferRequest, SequenceFlag


def received(sent: InferRequest | None = None, **fields) -> InferenceRequest:
    sent = sent or request()
    for name, value in fields.items():
        setattr(sent, name, value)
    return InferenceRequest._received(sent, senders())


def test_what_the_client_left_out_has_its_default():
    seen = received()
    assert seen.inputs() == []
    assert seen.request_id() == ""
    assert seen.correlation_id() == 0
    assert seen.parameters() == "{}"
    assert seen.flags() == 0
    assert seen.timeout() == 0
    assert seen.is_cancelled() is False


def test_what_the_client_sent_is_shown():
    seen = received(id="é7", correlation_id="seq", timeout_us=250, flags=SequenceFlag.START)
    assert seen.request_id() == "é7"
    assert seen.correlation_id() == "seq"
    assert seen.timeout() == 250
    assert (seen.flags(), type(seen.flags())) == (1, int)


def test_inputs_are_in_the_clients_order_and_the_same_objects():
    seen = received(request(B=[1], A=[2]))
    first = seen.inputs()
    assert [tensor.name() for tensor in first] == ["B", "A"]
    first.clear()
    again = seen.inputs()
    assert again[0] is seen.inputs()[0]
    assert len(again) == 2


def test_requested_outputs_are_a_new_set_of_all_unless_named():
    assert received(request("TEXT")).requested_output_names() == {"TEXT"}
    seen = received()
    seen.requested_output_names().clear()
    assert seen.requested_output_names() == {"OUT", "TEXT"}


def test_an_empty_slot_requests_no_outputs():
    assert received(batch_size=0).requested_output_names() == set()


def test_parameters_are_compact_json_text():
    parameters = {"i": 5, "s": "x", "b": True, "d": 1.5, "é": "ü\n\x01", "q": '"\\/', "n": -0.0}
    assert received(parameters=parameters).parameters() == (
        '{"i":5,"s":"x","b":true,"d":1.5,"é":"ü\\n\\u0001","q":"\\"\\\\/","n":-0.0}'
    )


def test_exec_needs_a_server():
    asked = InferenceRequest(inputs=[], requested_output_names=[], model_name="m")
    with pytest.raises(TritonModelException, match=r"^BLS is only supported during the 'execute'"):
        asked.exec()


def test_a_created_request_has_no_sender():
    asked = InferenceRequest(inputs=[], requested_output_names=[], model_name="m")
    with pytest.raises(TritonModelException, match="has no reference to the decoupled state"):
        asked.get_response_sender()


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
