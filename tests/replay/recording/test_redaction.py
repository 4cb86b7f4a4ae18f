"""Redaction removes contents and keeps shapes and lengths."""

import argparse
import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_replay.capture.records import Request, Response, StreamMessage
from triton_replay.commands.record import add_options, redaction_of
from triton_replay.recording.redaction import Redaction
from triton_replay.wire.grpc_messages import with_prefix

SECRET = Redaction(frozenset({"authorization"}), frozenset({"secret"}))


def request(document, tail=b"", *headers, target="/v2/models/m/infer"):
    text = json.dumps(document).encode()
    if tail:
        headers = (*headers, ("Inference-Header-Content-Length", str(len(text))))
    body = text + tail
    headers = (("Content-Length", str(len(body))), *headers)
    return Request(0, 0, 0, 0, "POST", target, headers, len(body), body)


def tensor(name, datatype, data=None, size=None):
    found = {"name": name, "datatype": datatype, "shape": [2]}
    return found | ({"data": data} if size is None else {"parameters": {"binary_data_size": size}})


def inputs(message):
    return json.loads(bytes(message.body))["inputs"]


def test_named_headers_are_overwritten():
    sent = request({"inputs": []}, b"", ("Authorization", "Bearer 123"), ("X-Trace", "1"))
    headers = dict(SECRET.apply(sent).headers)
    assert headers["Authorization"] == "redacted"
    assert headers["X-Trace"] == "1"


def with_header(name):
    return request({"inputs": []}, b"", (name, "value"))


SECRETS = (
    *("Authorization", "Proxy-Authorization", "X-Forwarded-Authorization", "X-Auth-Token"),
    *("Cookie", "Set-Cookie", "api-key", "X-Api-Key", "Ocp-Apim-Subscription-Key"),
    *("X-Forwarded-Access-Token", "Private-Token", "X-Csrf-Token", "X-XSRF-TOKEN"),
    *("X-Client-Secret", "x-password", "X-Amz-Security-Token", "X-Amz-Signature"),
    *("X-Forwarded-Client-Cert", "X-Session-Id", "X-Goog-IAP-JWT-Assertion"),
)
OTHERS = (
    *("Host", "Accept", "Accept-Encoding", "Content-Type", "Content-Length", "User-Agent"),
    *("Inference-Header-Content-Length", "traceparent", "X-Request-Id", "X-Forwarded-For"),
    *("grpc-timeout", "grpc-encoding", "te", "triton-grpc-error", "Connection"),
)


def test_a_header_of_a_credential_is_overwritten_unless_it_is_kept():
    for name in SECRETS:
        sent = with_header(name)
        assert (name, "redacted") in Redaction().apply(sent).headers
        assert Redaction(kept={name.lower()}).apply(sent) is sent
        # A name that is given on purpose counts more.
        both = Redaction(headers={name.lower()}, kept={name.lower()})
        assert (name, "redacted") in both.apply(sent).headers
    for name in OTHERS:
        assert Redaction().apply(sent := with_header(name)) is sent


def test_credentials_in_headers_and_trailers_of_a_response_are_overwritten():
    cookie, status = ("Set-Cookie", "a=1"), ("grpc-status", "0")
    answer = Response(0, 0, 0, 200, (cookie,), 0, trailers=(("x-refresh-token", "1"), status))
    found = Redaction().apply(answer)
    assert found.headers == (("Set-Cookie", "redacted"),)
    assert found.trailers == (("x-refresh-token", "redacted"), status)


@pytest.mark.parametrize(
    ("target", "recorded"),
    [
        ("/v2?access_token=1", "/v2"),
        ("/v2?a=1&access_token=1&b=2", "/v2?a=1&b=2"),
        ("/v2?a=1;API_KEY=1", "/v2?a=1"),
        ("/v2?access%5Ftoken=a%3Db&a", "/v2?a"),
        ("/v2?%61ccess_tok%65n=1", "/v2"),
        ("/v2?sig=1&signal=2", "/v2?signal=2"),
        ("/v2?a=token;b", "/v2?a=token;b"),
        ("/v2/models/token", "/v2/models/token"),
        ("/v2?", "/v2?"),
    ],
)
def test_query_parameters_of_credentials_are_removed(target, recorded):
    sent = request({"inputs": []}, target=target)
    assert Redaction().apply(sent).target == recorded
    kept = {"access_token", "api_key", "sig"}
    assert Redaction(kept=kept).apply(sent).target == target


def test_the_options_name_headers_and_tensors():
    parser = argparse.ArgumentParser()
    add_options(parser)
    words = ["--redact-header=X-User", "--keep-header=X-Max-Tokens", "--redact-tensor=Secret"]
    found = redaction_of(parser.parse_args(["--output=a.trc", "--max-body=99", *words]))
    assert found == Redaction({"x-user"}, {"Secret"}, {"x-max-tokens"}, 99)


def test_a_message_without_a_named_tensor_keeps_its_bytes():
    sent = request({"inputs": [tensor("x", "FP32", [1.10, 2])]})
    assert SECRET.apply(sent) is sent


def test_json_data_keep_their_shape():
    data = [[1, 2.5], ["abc", True, None]]
    kept = tensor("x", "FP32", [3, 4])
    redacted = SECRET.apply(request({"inputs": [tensor("secret", "FP32", data), kept]}))
    assert inputs(redacted)[0]["data"] == [[0, 0.0], ["xxx", False, None]]
    assert inputs(redacted)[1] == kept
    assert redacted.redacted
    assert redacted.whole
    assert dict(redacted.headers)["Content-Length"] == str(len(redacted.body))


def test_binary_data_are_overwritten_in_place():
    text = b"\x03\0\0\0abc\0\0\0\0\x01\0\0\0z"
    document = {
        "inputs": [
            tensor("before", "UINT8", size=2),
            tensor("secret", "BYTES", size=len(text)),
            tensor("after", "UINT8", size=3),
        ]
    }
    redacted = SECRET.apply(request(document, b"\x01\x02" + text + b"\x03\x04\x05"))
    length = int(dict(redacted.headers)["Inference-Header-Content-Length"])
    assert json.loads(redacted.body[:length]) == document
    blank = b"\x03\0\0\0xxx\0\0\0\0\x01\0\0\0x"
    assert redacted.body[length:] == b"\x01\x02" + blank + b"\x03\x04\x05"


def test_compressed_bodies_are_written_without_compression():
    plain = request({"inputs": [tensor("secret", "INT32", [7, 8])]})
    body = gzip.compress(bytes(plain.body))
    headers = (("Content-Encoding", "gzip"), ("Content-Length", str(len(body))))
    sent = Request(0, 0, 0, 0, "POST", "/", headers, len(body), body)
    redacted = SECRET.apply(sent)
    assert inputs(redacted)[0]["data"] == [0, 0]
    assert [name for name, _ in redacted.headers] == ["Content-Length"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_body_that_is_too_large_when_decompressed_is_not_written(limit):
    plain = bytes(request({"inputs": [tensor("secret", "INT32", [7, 8])]}).body)
    body = gzip.compress(plain)
    sent = Request(0, 0, 0, 0, "POST", "/", (("Content-Encoding", "gzip"),), len(body), body)
    bounded = Redaction(tensors={"secret"}, max_unpacked=len(plain) + limit)
    assert bool(bounded.apply(sent).body) == (limit == 0)
    call = with_prefix(zlib.compress(bytes(1000)), compressed=True)
    message = StreamMessage(0, False, 0, len(call), call)
    assert Redaction(tensors={"secret"}, max_unpacked=999).apply(message).body == b""


def test_fields_of_generate_are_redacted_like_tensors():
    answer = json.dumps({"outputs": [tensor("secret", "INT32", [5])]}).encode()
    redacted = SECRET.apply(Response(0, 0, 0, 200, (), len(answer), answer))
    assert json.loads(redacted.body)["outputs"][0]["data"] == [0]
    asked = request({"secret": "who", "n": 2}, target="/v2/models/m/generate")
    assert json.loads(SECRET.apply(asked).body) == {"secret": "xxx", "n": 2}


def test_events_are_overwritten_one_by_one():
    body = b'data: {"secret":"ab"}\n\ndata: {"n":1}\n\n'
    headers = (("Content-Type", "text/event-stream"),)
    answer = Response(0, 0, 0, 200, headers, len(body), body, parts=((1, 22), (2, len(body))))
    redacted = SECRET.apply(answer)
    assert redacted.body == b'data: {"secret": "xx"}\n\ndata: {"n":1}\n\n'
    assert redacted.parts == ()


@pytest.mark.parametrize(
    "message",
    [
        Request(0, 0, 0, 0, "POST", "/", (), 4, b"junk"),
        Request(0, 0, 0, 0, "POST", "/", (("Inference-Header-Content-Length", "0"),), 4, b"\0" * 4),
        Request(0, 0, 0, 0, "POST", "/", (("Content-Encoding", "br"),), 4, b"junk"),
        Request(0, 0, 0, 0, "POST", "/", (("Content-Encoding", "gzip"),), 4, b"junk"),
        Response(0, 0, 0, 200, (("Content-Type", "text/event-stream"),), 10, b"data: junk"),
        request({"inputs": [tensor("x", "INT8", size=9)]}, b"1"),
        request({"inputs": [tensor("x", "INT8", size=1)]}, b"12"),
        request({"inputs": [tensor("secret", "BYTES", size=5)]}, b"\x09\0\0\0a"),
        request({"inputs": {"name": "secret"}}),
    ],
)
def test_a_body_with_unknown_tensors_is_not_written(message):
    redacted = SECRET.apply(message)
    assert redacted.redacted
    assert (bytes(redacted.body), redacted.whole) == (b"", False)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["inputs", "outputs", "parameters", "name", "data", "secret", "binary_data_size"]
            ),
            inner | st.just("secret"),
            max_size=4,
        )
    ),
    max_leaves=6,
)


@given(VALUES, st.binary(max_size=20), st.none() | st.integers(0, 60).map(str))
def test_no_body_makes_redaction_raise(value, tail, length):
    body = json.dumps(value).encode() + tail
    headers = () if length is None else (("Inference-Header-Content-Length", length),)
    sent = Request(0, 0, 0, 0, "POST", "/v2/models/m/infer", headers, len(body), body)
    redacted = SECRET.apply(sent)
    assert redacted.redacted or bytes(redacted.body) == body


@pytest.mark.parametrize(
    ("body", "length"), [(b"[" * 100_000, None), (b"{}", "9" * 5000), (b'{"inputs": [{}]}', "2")]
)
def test_extreme_bodies_are_not_written(body, length):
    headers = () if length is None else (("Inference-Header-Content-Length", length),)
    sent = Request(0, 0, 0, 0, "POST", "/v2/models/m/infer", headers, len(body), body)
    assert SECRET.apply(sent).body == b""
