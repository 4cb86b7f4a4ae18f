"""Management messages over both protocols, beyond the rows of tests/recorded."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import management_json, management_proto
from reference_server.core.errors import Code, ServerError
from reference_server.core.profiles import V2_51

HANDLE = bytes(range(100, 164))
B64 = base64.b64encode(HANDLE).decode()


@given(st.lists(st.tuples(st.integers(0, 86), st.sampled_from("\n*-_=. \0é")), max_size=5))
def test_characters_outside_of_base64_are_skipped(strangers):
    text = B64.rstrip("=")
    for at, stranger in strangers:
        text = text[:at] + stranger + text[at:]
    fields = {"raw_handle": {"b64": text}, "device_id": 1, "byte_size": 64}
    body = memoryview(json.dumps(fields).encode())
    assert management_json.cuda_registration(body).raw_handle == HANDLE


def test_the_index_omits_unknown_values():
    rows = [("a", None, None, ""), ("b", 1, "READY", ""), ("c", None, "UNAVAILABLE", 'x"\n')]
    assert management_json.index(rows) == (
        b'[{"name":"a"},{"name":"b","version":"1","state":"READY"},'
        b'{"name":"c","state":"UNAVAILABLE","reason":"x\\"\\n"}]'
    )
    assert management_json.index([]) == b"[]"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("aGVsbG8=", b"hello"), ("aGVsbG8", b"hello"), ("aGVs bG8=\\n", b"hello"), ("", b""),
        ("!!", b""), ("aGVsbG8!", b"hello"), ("a", b""), ("aGVsb", b"hel"),
    ],
)  # fmt: skip
def test_files_are_decoded_from_base64(text, content):
    body = f'{{"parameters":{{"file:x":"{text}","config":"c"}}}}'.encode()
    assert management_json.load_parameters(body) == {"file:x": content, "config": "c"}


def test_the_index_message_omits_unknown_values():
    (first, second) = management_proto.repository_index(
        [("a", None, None, ""), ("b", 1, "UNAVAILABLE", "unloaded")]
    ).models
    assert (first.name, first.version, first.state, first.reason) == ("a", "", "", "")
    assert (second.version, second.state, second.reason) == ("1", "UNAVAILABLE", "unloaded")


def test_load_parameters_have_any_type():
    request = pb.RepositoryModelLoadRequest()
    request.parameters["config"].string_param = "c"
    request.parameters["file:x"].bytes_param = b"y"
    request.parameters["i"].int64_param = 0
    request.parameters["b"].bool_param = False
    request.parameters["none"].SetInParent()
    assert management_proto.load_parameters(request.parameters) == {
        "config": "c", "file:x": b"y", "i": 0, "b": False, "none": False,
    }  # fmt: skip


def unload_request(**value):
    request = pb.RepositoryModelUnloadRequest()
    request.parameters["unload_dependents"].CopyFrom(pb.ModelRepositoryParameter(**value))
    return request


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (pb.RepositoryModelUnloadRequest(), False),
        (unload_request(bool_param=True), True),
        (unload_request(bool_param=False), False),
    ],
)
def test_unload_dependents(request_, wanted):
    assert management_proto.unload_dependents(request_) is wanted


@pytest.mark.parametrize("value", [{}, {"string_param": "true"}, {"int64_param": 1}])
def test_unload_dependents_is_a_bool(value):
    with pytest.raises(ServerError, match="expected bool_param") as caught:
        management_proto.unload_dependents(unload_request(**value))
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "failed to parse"),
        (b'{"parameters":1}', "attempt to get members for non-object"),
        (b'{"parameters":{"x":1}}', "attempt to access JSON non-string as string"),
        (b'{"parameters":{"x":"1"}}', "unexpected error on creating Triton parameter"),
    ],
)
def test_malformed_load_requests_are_refused(body, said):
    with pytest.raises(ServerError, match=said):
        management_json.load_parameters(body)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"parameters":{"unload_dependents":true}}', True),
        (b'{"parameters":{"unload_dependents":false}}', False),
        (b'{"parameters":{"unload_dependents":1}}', False),
        (b'{"parameters":1}', False), (b"{", False), (b"", False),
    ],
)  # fmt: skip
def test_unexpected_unload_bodies_are_accepted(body, wanted):
    assert management_json.unload_dependents(body, V2_51) is wanted
