"""One HTTP connection: bytes to requests, replies to bytes, and its end."""

import weakref
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.http import Client, get, post

from reference_server.frontends.event_loop import SHARE_S

OK = b"200 OK"


def echo(request):
    """Answer at once with the received request."""
    asked = f"{request.method} {request.url.decode('latin-1')} ".encode() + bytes(request.body)
    request.reply(OK, [asked])


class Held:
    """A handler that keeps requests until the test answers them."""

    def __init__(self):
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)

    def answer(self, text=b""):
        self.requests.pop(0).reply(OK, [text] if text else [])


@pytest.fixture
def client():
    return Client(echo)


@pytest.fixture
def held():
    return Held()


@pytest.fixture
def waiting_client(held):
    return Client(held)


def bodies(client):
    return [reply.body for reply in client.replies()]


UPGRADE = ("Connection: Upgrade", "Upgrade: h2c")


def chunked(path, *chunks, length=None, more=()):
    lengths = () if length is None else (f"Content-Length: {length}",)
    head = get(path, "Transfer-Encoding: chunked", *lengths, *more, method="POST")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"


LARGE = bytes(range(256)) * 80  # far more than one read

REQUESTS = {
    "without a body": (get("/v2"), b"GET /v2 "),
    "with a body": (post("/i", b"abc"), b"POST /i abc"),
    "with a large body": (post("/i", LARGE), b"POST /i " + LARGE),
    "with an empty body": (post("/i", b""), b"POST /i "),
    "without a length": (get("/i", method="POST"), b"POST /i "),
    "in chunks": (chunked("/i", b"ab", b"c", LARGE), b"POST /i abc" + LARGE),
    "an upgrade": (get("/v2", *UPGRADE), b"GET /v2 "),
    "an upgrade with a body": (post("/i", b"abc", *UPGRADE), b"POST /i abc"),
    "an upgrade in chunks": (chunked("/i", b"ab", LARGE, more=UPGRADE), b"POST /i ab" + LARGE),
    "an upgrade in chunks, with a length": (
        chunked("/i", b"ab", length=2, more=UPGRADE),
        b"POST /i ab",
    ),
    "HEAD": (get("/v2", method="HEAD"), b"HEAD /v2 "),
    "with a query": (get("/v2?x=/1"), b"GET /v2?x=/1 "),
    "percent signs": (get("/a%20b"), b"GET /a%20b "),
    "a body on GET": (get("/v2", "Content-Length: 2") + b"ab", b"GET /v2 ab"),
    "an empty line before it": (b"\r\n" + get("/v2"), b"GET /v2 "),
}


@pytest.mark.parametrize(("request_", "asked"), REQUESTS.values(), ids=REQUESTS)
def test_a_request_is_read(client, request_, asked):
    client.send(request_)
    assert bodies(client) == [asked]
    assert not client.is_closed


SCRIPT = [request for request, _ in REQUESTS.values()]


@given(st.data())
def test_bytes_may_be_split_anywhere(data):
    script = b"".join(data.draw(st.lists(st.sampled_from(SCRIPT), min_size=1, max_size=5)))
    points = data.draw(st.sets(st.integers(1, len(script) - 1), max_size=8))
    whole = Client(echo)
    whole.send(script)
    ends = [0, *sorted(points), len(script)]
    split = Client(echo)
    split.send(*(script[start:end] for start, end in pairwise(ends)))
    assert split.received() == whole.received()


REFUSED = {
    "chunks shorter than their length": chunked("/i", b"abc", length=9),
    "chunks and length 0": chunked("/i", b"abc", length=0),
    "two lengths": post("/i", b"abc", "Content-Length: 3"),
    "two lengths of an upgrade": post("/i", b"abc", "Content-Length: 3", *UPGRADE),
    "two codings": chunked("/i", b"abc", more=["Transfer-Encoding: chunked"]),
    "a folded length": get("/i", "Content-Length:\r\n 3", method="POST") + b"abc",
    "a folded line before the headers": post("/i", b"abc").replace(b"\r\n", b"\r\n X: y\r\n", 1),
    "a space before a colon": get("/i", "Content-Length : 3", method="POST") + b"abc",
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_rejected_request_is_answered_in_order_and_ends_the_connection(client, refused):
    client.send(get("/before") + refused + get("/behind"))
    before, reply = client.replies()
    assert before.body == b"GET /before "
    assert reply.status == 400
    assert b"failed to read the HTTP request: " in reply.body
    assert client.is_closed


def address_of(view):
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


@pytest.mark.parametrize("json_length", [0, 1, 37])
def test_a_large_body_is_writable_and_aligned_behind_its_json(held, json_length):
    client = Client(held)
    client.send(post("/i", LARGE, f"Inference-Header-Content-Length: {json_length}"))
    (request,) = held.requests
    assert request.body == LARGE
    assert not request.body.readonly
    assert address_of(request.body[json_length:]) % 64 == 0


@pytest.mark.parametrize("length", [2**62, 2**64 - 1])
def test_a_body_larger_than_memory_is_rejected(client, length):
    client.send(get("/i", f"Content-Length: {length}", method="POST") + b"abc")
    (reply,) = client.replies()
    assert reply.status == 400
    assert reply.body == (
        b'{"error":"a request body of %d bytes does not fit the server\'s memory"}' % length
    )
    assert client.is_closed


TYPED = ["Content-Type: application/json"]
PLAIN = ["Content-Type: text/plain"]
CLOSE, KEEP = ["Connection: close"], ["Connection: keep-alive"]

#: Header lines by version, the client's connection header, body, and whether it is typed.
HEADS = {
    "typed": ("1.1", [], b"abc", True, [*TYPED, "Content-Length: 3"]),
    "plain": ("1.1", [], b"abc", False, ["Content-Length: 3", *PLAIN]),
    "empty": ("1.1", [], b"", False, ["Content-Length: 0", *PLAIN]),
    "typed, closing": ("1.1", CLOSE, b"abc", True, [*TYPED, "Content-Length: 3", *CLOSE]),
    "plain, closing": ("1.1", CLOSE, b"abc", False, ["Content-Length: 3", *CLOSE, *PLAIN]),
    "empty, closing": ("1.1", CLOSE, b"", False, [*CLOSE, "Content-Length: 0", *PLAIN]),
    "kept": ("1.1", KEEP, b"abc", True, [*TYPED, "Content-Length: 3"]),
    "old and typed": ("1.0", [], b"abc", True, [*TYPED, "Content-Length: 3"]),
    "old and plain": ("1.0", [], b"abc", False, ["Content-Length: 3", *PLAIN]),
    "old and empty": ("1.0", [], b"", False, PLAIN),
    "old and kept": ("1.0", KEEP, b"abc", True, [*TYPED, "Content-Length: 3", *KEEP]),
    "old, empty, kept": ("1.0", KEEP, b"", False, [*KEEP, "Content-Length: 0", *PLAIN]),
}


@pytest.mark.parametrize(("version", "asked", "body", "typed", "lines"), HEADS.values(), ids=HEADS)
def test_the_head_of_a_reply(waiting_client, held, version, asked, body, typed, lines):
    waiting_client.send(get("/v2", *asked, version=version))
    (request,) = held.requests
    content_type = b"application/json" if typed else None
    request.reply(OK, [body] if body else [], content_type=content_type)
    head = "\r\n".join([f"HTTP/{version} 200 OK", *lines, "", ""])
    assert waiting_client.received() == head.encode() + body


def test_reading_pauses_while_many_wait(waiting_client, held):
    waiting_client.send(get("/") * 32)
    assert waiting_client.transport.is_reading
    waiting_client.send(get("/"))
    assert not waiting_client.transport.is_reading
    held.answer()
    assert waiting_client.transport.is_reading


MEGABYTE = post("/i", bytes(1 << 20))


@pytest.mark.parametrize("scratch_bytes", [1 << 12, 1 << 21])
def test_reading_pauses_while_a_megabyte_waits(held, scratch_bytes):
    client = Client(held, scratch_bytes=scratch_bytes)
    client.send(MEGABYTE)
    assert client.transport.is_reading  # it is being handled
    client.send(MEGABYTE)
    assert not client.transport.is_reading
    held.answer()
    assert client.transport.is_reading
    held.answer()
    client.send(MEGABYTE)
    assert client.transport.is_reading


def test_a_lost_connection_frees_its_body(waiting_client, held):
    waiting_client.send(post("/i", bytes(1 << 20))[: 1 << 19])
    body = weakref.ref(waiting_client.connection._reader.body_buffer.obj)
    waiting_client.leave()
    assert body() is None


def test_many_pipelined_requests_are_answered_in_shares():
    now_s = [0.0]

    def handle(request):
        now_s[0] += SHARE_S / 2
        request.reply(OK)

    client = Client(handle, scratch_bytes=1 << 20, clock=lambda: now_s[0])
    asked = get("/") * 1000
    client.connection.get_buffer(-1)[: len(asked)] = asked
    client.connection.buffer_updated(len(asked))
    answered = [client.received().count(b"200 OK")]
    while client.turns:
        client.turns.pop(0)()
        answered.append(client.received().count(b"200 OK"))
    assert sum(answered) == 1000
    # Requests of the first portion are answered as they are read.
    assert max(answered[1:]) <= 2


def test_reading_pauses_while_the_client_does_not_read(client):
    client.connection.pause_writing()
    client.send(get("/1") + get("/2"))
    assert (client.replies(), client.transport.is_reading) == ([], False)
    client.connection.resume_writing()
    assert bodies(client) == [b"GET /1 ", b"GET /2 "]
    assert client.transport.is_reading


ENDLESS = b"y" * (2 << 20)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + ENDLESS + b" HTTP/1.1\r\n\r\n",
        get("/", "X: " + ENDLESS.decode()),
        get("/", *["X: y"] * (len(ENDLESS) // 6)),
        chunked("/", b"x")[:-2] + b"X: " + ENDLESS + b"\r\n\r\n",
        get("/", "Transfer-Encoding: chunked", method="POST")
        + b"1;"
        + ENDLESS
        + b"\r\nx\r\n0\r\n\r\n",
        b"\r\n" * (len(ENDLESS) // 2) + get("/"),
    ],
    ids=["url", "header", "headers", "trailer", "chunk", "lines"],
)
def test_a_head_without_end_is_rejected(client, request_):
    client.send(request_)
    (reply,) = client.replies()
    assert reply.status == 400
    assert b"more than 1048576 bytes" in reply.body
    assert client.is_closed


def test_requests_after_a_closing_request_are_dropped(waiting_client, held):
    closing = post("/2", LARGE, "Connection: close")  # its body is read past the parser
    waiting_client.send(get("/1") + closing + get("/3"))
    held.answer(b"one")
    held.answer(b"two")
    assert bodies(waiting_client) == [b"one", b"two"]
    assert waiting_client.is_closed
    assert held.requests == []


TWICE = get("/i", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked", method="POST")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (chunked("/i", b"ab", b"c", length=4), "found Content-Length 4 and chunks of 3 bytes"),
        (post("/i", b"ab", "Content-Length: 2"), "Duplicate Content-Length"),
        (
            post("/i", b"ab", "Transfer-Encoding: identity"),
            "found Transfer-Encoding 'identity', expected chunked",
        ),
        (
            get("/i", "Transfer-Encoding: gzip", method="POST"),
            "found Transfer-Encoding 'gzip', expected chunked",
        ),
        (TWICE + b"0\r\n\r\n", "Invalid `Transfer-Encoding` header value"),
        (b"GET /v2 HTTP/1.2\r\n\r\n", "Invalid HTTP version"),
        (get("/v2", "X: a\0b"), "Invalid header value char"),
    ],
)
def test_ambiguous_requests_are_rejected_with_the_reason(client, request_, reason):
    client.send(request_, get("/v2"))
    (reply,) = client.replies()
    assert reply.status == 400
    assert reply.body == b'{"error":"failed to read the HTTP request: %b"}' % reason.encode()
    assert client.is_closed


def test_malformed_bytes_do_not_drop_the_answer_before_them(waiting_client, held):
    waiting_client.send(get("/1"), b"garbage\r\n\r\n", get("/2"))
    assert not waiting_client.is_closed
    held.answer(b"one")
    assert bodies(waiting_client) == [b"one"]
    assert waiting_client.is_closed
    assert held.requests == []


def test_a_half_closed_connection_gets_the_answer_of_the_current_request(waiting_client, held):
    waiting_client.send(get("/1") + get("/2"))
    waiting_client.half_close()
    assert not waiting_client.is_closed
    held.answer(b"one")
    assert bodies(waiting_client) == [b"one"]
    assert waiting_client.is_closed
    assert held.requests == []


def test_an_answer_to_a_disconnected_client_is_dropped(waiting_client, held):
    waiting_client.send(get("/1") + get("/2"))
    waiting_client.leave()
    held.answer(b"one")
    assert waiting_client.received() == b""
    assert held.requests == []


def test_a_busy_connection_closes_after_its_answers(waiting_client, held):
    waiting_client.send(get("/1") + get("/2"))
    waiting_client.connection.close()
    waiting_client.send(get("/3"))
    held.answer(b"one")
    held.answer(b"two")
    assert bodies(waiting_client) == [b"one", b"two"]
    assert waiting_client.is_closed
    assert held.requests == []


@pytest.mark.parametrize(
    "request_", [get("/1", method="CONNECT"), get("*", method="OPTIONS"), get("*")]
)
def test_requests_without_a_resource_are_dropped(waiting_client, held, request_):
    waiting_client.send(request_ + get("/2"))
    assert waiting_client.received() == b""
    assert waiting_client.is_closed
    assert held.requests == []


def test_a_connection_closed_when_it_opens_is_aborted():
    client = Client(echo, opened=lambda connection: connection.close())
    assert client.transport.is_aborted


UPGRADE = ["Connection: Upgrade", "Upgrade: h2c"]


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_body_of_unknown_length_is_sent_in_chunks(waiting_client, held):
    waiting_client.send(get("/a") + get("/b"))
    (request,) = held.requests
    request.begin_chunks(OK, b"text/x")
    assert waiting_client.received() == CHUNKED
    request.send_chunk(b"x" * 17)
    request.send_chunk(b"y")
    assert waiting_client.received() == b"11\r\n" + b"x" * 17 + b"\r\n1\r\ny\r\n"
    assert held.requests == [request]  # the next one waits
    request.end_chunks()
    assert waiting_client.received() == b"0\r\n\r\n"
    assert [waiting.url for waiting in held.requests] == [b"/a", b"/b"]


def test_chunks_for_a_disconnected_client_are_dropped(waiting_client, held):
    waiting_client.send(get("/a"))
    held.requests[0].begin_chunks(OK, b"text/x")
    waiting_client.received()
    waiting_client.leave()
    held.requests[0].send_chunk(b"x")
    held.requests[0].end_chunks()
    assert waiting_client.received() == b""


def limited(*pieces):
    """Return the sizes of kept and dropped bodies, for a limit of 10 bytes, and the client."""
    sizes = []

    def handle(request):
        sizes.append((len(request.body), request.dropped))
        request.reply(b"200 OK")

    client = Client(handle, max_input=10)
    client.send(*pieces)
    return sizes, client


HEAD = b"POST /v2 HTTP/1.1\r\n"
BINARY = HEAD + b"Inference-Header-Content-Length: %d\r\nContent-Length: 20000\r\n\r\n"


@pytest.mark.parametrize(
    ("pieces", "size"),
    [
        pytest.param([post("/v2", b"x" * 11)], 11, id="in one piece"),
        pytest.param(
            [HEAD + b"Content-Length: 20000\r\n\r\n", b"x" * 20000], 20000, id="announced"
        ),
        pytest.param(
            [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"6\r\nxxxxxx\r\n" * 3 + b"0\r\n\r\n"],
            18,
            id="in chunks",
        ),
        pytest.param([BINARY % 0, b"x" * 20000], 20000, id="of a raw tensor"),
        pytest.param([BINARY % 11, b"x" * 20000], 20000, id="behind too much JSON"),
    ],
)
def test_only_the_size_of_a_larger_body_is_kept(pieces, size):
    sizes, client = limited(*pieces, post("/v2", b"next"))
    assert sizes == [(0, size), (4, 0)]
    assert not client.is_closed


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(BINARY % 10, id="binary data"),
        pytest.param(BINARY % -1, id="a length that will be refused"),
        pytest.param(
            HEAD + b"Content-Encoding: gzip\r\nContent-Length: 20000\r\n\r\n", id="compressed"
        ),
    ],
)
def test_other_bodies_than_json_are_kept_at_any_size(head):
    sizes, _ = limited(head, b"x" * 20000)
    assert sizes == [(20000, 0)]


IN_CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def test_a_body_may_have_65536_chunks():
    sizes, client = in_chunks(65536)
    assert sizes == [65536]
    assert not client.is_closed


def test_a_body_with_more_chunks_is_rejected_early():
    sizes, client = in_chunks(65537, end=b"")
    (reply,) = client.replies()
    assert sizes == []
    assert (reply.status, reply.header("Content-Type")) == (400, "application/json")
    assert reply.body == (
        b'{"error":"Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or '
        b'larger HTTP chunks."}'
    )
    assert client.is_closed


def in_chunks(count, end=b"0\r\n\r\n"):
    """Return the sizes of the handled bodies and the client, for a body of `count` chunks."""
    sizes = []

    def handle(request):
        sizes.append(len(request.body))
        request.reply(b"200 OK")

    client = Client(handle, scratch_bytes=1 << 16)
    client.send(IN_CHUNKS, b"1\r\nx\r\n" * count + end)
    return sizes, client
