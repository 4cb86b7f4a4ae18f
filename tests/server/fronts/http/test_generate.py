"""The generate endpoints: chunks, events, errors, and that the connection goes on."""

import numpy as np
import pytest
from server.support.front import Front, answering, failing, served
from server.support.http import get, post

from reference_server.core.errors import unavailable

VECTOR = """
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
GENERATE = "/v2/models/m/generate"
STREAM = "/v2/models/m/generate_stream"
BODY = b'{"X":[1,2],"id":"q"}'
OBJECT = b'{"Y":[1.0,2.0],"id":"q","model_name":"m","model_version":"1"}'
JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"
LIVE = get("/v2/health/live")


@pytest.fixture
def front():
    return Front(served(VECTOR, answer=answering(Y=np.float32([1, 2]))))


def chunked(status, content_type, *chunks, version=b"1.1", connection=b""):
    """The bytes of a chunked reply."""
    head = b"HTTP/%b %b\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n%b\r\n" % (
        version,
        status,
        content_type,
        connection,
    )
    return head + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        (GENERATE, chunked(b"200 OK", JSON, OBJECT)),
        ("/v2/models/m/versions/1/generate", chunked(b"200 OK", JSON, OBJECT)),
        (STREAM, chunked(b"200 OK", EVENTS, b"data: %b\n\n" % OBJECT)),
    ],
)
def test_one_response_is_one_chunk(front, path, reply):
    front.exchange(post(path, BODY))
    assert front.client.received() == reply


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        (GENERATE, chunked(b"400 Bad Request", JSON, b'{"error":"not now"}')),
        (STREAM, chunked(b"400 Bad Request", EVENTS, b'data: {"error":"not now"}\n\n')),
    ],
)
def test_an_error_of_the_model_is_always_400(path, reply):
    front = Front(served(VECTOR, answer=failing(unavailable("not now"))))
    front.exchange(post(path, BODY))
    assert front.client.received() == reply


@pytest.mark.parametrize("value", [np.float16([1]), np.array([1j])], ids=str)
def test_an_output_that_cannot_be_written_is_an_error(value):
    front = Front(served(VECTOR, answer=answering(Y=value)))
    front.exchange(post(GENERATE, BODY))
    assert front.client.received().startswith(b"HTTP/1.1 400 Bad Request\r\n")


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (post(GENERATE, b""), 500, "The document is empty. at 0"),
        (post(GENERATE, b"{}"), 400, "missing required input(s) ['X']"),
        (post(STREAM, b'{"X":"a"}'), 500, "non-number as double"),
        (post("/v2/models/nobody/generate", BODY), 404, "'nobody' is not found"),
        (get(GENERATE), 405, "Method Not Allowed"),
        (
            post(GENERATE, BODY, "Content-Encoding: gzip"),
            400,
            "Unsupported content-encoding, only 'identity' is supported.",
        ),
    ],
)
def test_what_never_reaches_the_model_is_a_plain_reply(front, request_, status, text):
    reply = front.ask(request_)
    assert (reply.status, reply.header("Content-Type")) == (status, "application/json")
    assert text in reply.body.decode()


def test_a_request_behind_it_is_answered_next(front):
    front.exchange(post(GENERATE, BODY) + LIVE)
    first = chunked(b"200 OK", JSON, OBJECT)
    assert front.client.received() == first + (
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: text/plain\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("request_", "version", "connection", "is_closed"),
    [
        (post(GENERATE, BODY, "Connection: close"), b"1.1", b"Connection: close\r\n", True),
        (post(GENERATE, BODY).replace(b"1.1", b"1.0"), b"1.0", b"", True),
        (
            post(GENERATE, BODY, "Connection: keep-alive").replace(b"1.1", b"1.0"),
            b"1.0",
            b"Connection: keep-alive\r\n",
            False,
        ),
    ],
)
def test_the_connection_goes_on_as_the_client_asks(front, request_, version, connection, is_closed):
    front.exchange(request_)
    assert front.client.received() == chunked(
        b"200 OK", JSON, OBJECT, version=version, connection=connection
    )
    assert front.client.is_closed is is_closed


def test_a_client_that_left_is_not_missed(front):
    front.client.send(post(GENERATE, BODY))
    front.client.leave()
    front.exchange(b"")
    assert front.client.received() == b""
