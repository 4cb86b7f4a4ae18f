"""Request headers of calls: valid ones parsed, invalid ones rejected."""

import base64

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st
from support.http2 import head

from reference_server.frontends.grpc import headers
from reference_server.frontends.grpc.calls import CallFailed, Status
from reference_server.frontends.grpc.headers import MalformedHeaders
from reference_server.frontends.grpc.http2.frames import ErrorCode
from reference_server.options import Compression


def read(*more, **changed):
    return headers.read_request(
        tuple((name.encode(), value.encode()) for name, value in head("/t.T/u", *more, **changed))
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1n", 0.001),
        ("1500u", 0.0015),
        ("250m", 0.25),
        ("2M", 120),
        ("1H", 3600),
        ("9" * 5_000 + "S", 1e9),
    ],
)
def test_timeouts(text, seconds):
    assert read(("grpc-timeout", text)).timeout_s == pytest.approx(seconds)


@given(st.binary(max_size=20))
def test_binary_metadata(value):
    for text in (base64.b64encode(value), base64.b64encode(value).rstrip(b"=")):
        assert read(("a-bin", text.decode())).fields == ((b"a-bin", value),)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "GET"}, "Bad method header"),
        ({"method": None}, "Missing :method header"),
        ({"te": None}, "Missing :te header"),
        ({"scheme": None}, "Missing :scheme header"),
        ({"path": None}, "Missing :path header"),
        ({"authority": None}, "Missing :authority header"),
    ],
)
def test_errors_for_the_client(changed, message):
    path = {key: value for key, value in changed.items() if key == "path"}
    changed = {key: value for key, value in changed.items() if key != "path"}
    fields = [
        (name.encode(), value.encode())
        for name, value in head("/t.T/u", **changed)
        if not (path and name == ":path")
    ]
    with pytest.raises(CallFailed) as caught:
        headers.read_request(tuple(fields))
    assert (caught.value.status, caught.value.message) == (Status.UNKNOWN, message)


def test_a_host_is_an_authority():
    assert read(("host", "here"), authority=None).path == "/t.T/u"


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ([("Upper", "x")], {}),
        ([("", "x")], {}),
        ([("a b", "x")], {}),
        ([("a", "x\r\ny")], {}),
        ([("connection", "close")], {}),
        ([("transfer-encoding", "chunked")], {}),
        ([(":path", "/again")], {}),
        ([(":status", "200")], {}),
    ],
    ids=["upper", "empty", "space", "line", "connection", "chunked", "pseudo late", "status"],
)
def test_headers_forbidden_by_http2(more, changed):
    with pytest.raises(MalformedHeaders) as caught:
        read(*more, **changed)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ([], {"content_type": "application/json"}),
        ([], {"content_type": "application/grpcx"}),
        ([], {"te": "gzip"}),
        ([], {"scheme": "ftp"}),
        ([("grpc-encoding", "snappy")], {}),
        ([("grpc-timeout", "soon")], {}),
        ([("grpc-timeout", "-1S")], {}),
        ([("a-bin", "!!!")], {}),
    ],
    ids=["json", "grpcx", "te", "scheme", "encoding", "timeout", "negative", "base64"],
)
def test_headers_that_are_not_grpc(more, changed):
    with pytest.raises(MalformedHeaders) as caught:
        read(*more, **changed)
    assert caught.value.code is ErrorCode.INTERNAL_ERROR


@pytest.mark.parametrize(
    "content_type", ["", None, "application/grpc+proto", "application/grpc;a=b"]
)
def test_content_types(content_type):
    assert read(content_type=content_type).path == "/t.T/u"


def test_failures():
    decode = Decoder().decode
    block = headers.failure(Status.NOT_FOUND, "naïve\n100%", opened=True)
    assert decode(block) == [("grpc-status", "5"), ("grpc-message", "na%C3%AFve%0A100%25")]
    block = headers.failure(Status.UNIMPLEMENTED, "", opened=False)
    assert decode(block) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "12"),
    ]


@pytest.mark.parametrize(
    ("level", "accepted", "encoding"),
    [
        (Compression.NONE, ("gzip", "deflate"), "identity"),
        (Compression.LOW, ("identity", "deflate", "gzip"), "gzip"),
        (Compression.MEDIUM, ("identity", "deflate", "gzip"), "deflate"),
        (Compression.HIGH, ("identity", "deflate", "gzip"), "deflate"),
        (Compression.HIGH, ("identity",), "identity"),
        (Compression.LOW, ("deflate",), "deflate"),
        (Compression.MEDIUM, ("gzip",), "gzip"),
    ],
)
def test_the_encoding_of_responses(level, accepted, encoding):
    assert headers.response_encoding(level, accepted) == encoding
