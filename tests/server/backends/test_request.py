"""Tests of InferenceRequest."""

import pytest
from server.backends.kit import request, senders
from triton_python_backend_utils import InferenceRequest, TritonModelException

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
