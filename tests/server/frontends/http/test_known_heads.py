"""Remembered heads: requests are read as if their heads were new."""

from hypothesis import given
from hypothesis import strategies as st
from server.support.http import Client, get, post

from reference_server.frontends.http.reading import KnownHeads


def noted(request):
    """Return everything that a handler can see of a request."""
    return (
        *(request.url, request.method, request.version, request.keep_alive),
        *(request.headers, request.fields, bytes(request.body), request.dropped),
    )


def seen_by(heads, pieces, *, max_input=None):
    """Return the requests and replies of a new connection for these bytes."""
    seen = []

    def handle(request):
        seen.append(noted(request))
        request.reply(b"200 OK", [b"ok"])

    client = Client(handle, max_input=max_input, heads=heads)
    client.send(*pieces)
    return seen, client.received()


CHUNKED = get("/c", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n"
REQUESTS = (
    get("/a"),
    get("/a", "X-Id: 1"),
    post("/b", b"one"),
    post("/b", b"two"),
    post("/b", b"\r\n\r\n"),
    post("/b", b"longer"),
    post("/b", b"x" * 300, "Inference-Header-Content-Length: 7"),
    post("/b", b"y" * 5000),
    post("/b", b"one", "Expect: 100-continue"),
    post("/b", b"one", "Upgrade: h2c", "Connection: Upgrade"),
    post("/b", b"one", "Connection: close"),
    get("/a", "Upgrade: h2c", "Connection: Upgrade"),
    get("/a").replace(b"1.1", b"1.0", 1),
    get("/a", method="FETCH"),
    b"\r\n" + get("/a"),
    b"GET /\n\n",
    CHUNKED,
)


@given(
    st.lists(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4), min_size=1, max_size=6),
    st.lists(st.integers(0, 400), max_size=4),
    st.sampled_from([None, 4]),
)
def test_earlier_requests_do_not_change_how_requests_are_read(connections, cuts, max_input):
    heads = KnownHeads()
    for requests in connections:
        pieces = list(requests)
        for cut in cuts:  # as a network may split the bytes
            pieces[-1:] = [pieces[-1][:cut], pieces[-1][cut:]]
        pieces = [piece for piece in pieces if piece]
        anew = seen_by(KnownHeads(), pieces, max_input=max_input)
        assert seen_by(heads, pieces, max_input=max_input) == anew


def test_notes_of_handlers_are_kept_with_the_head():
    notes = []
    client = Client(lambda request: (notes.append(request.notes), request.reply(b"200 OK")))
    client.send(post("/b", b"one"), post("/b", b"two"), post("/other", b"two"))
    assert notes[0] is notes[1]
    assert notes[2] is not notes[0]
