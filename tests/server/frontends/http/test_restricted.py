"""Restricted operations: the required header, and that every operation has a category."""

import pytest
from server.support.frontend import Here, gateway
from server.support.http import Client, HandCrankedLoop, get, post

from reference_server.core.errors import invalid_arg
from reference_server.core.ports import SystemClock
from reference_server.frontends.http.handlers import HttpHandlers
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.options import API_CATEGORIES, Restriction
from reference_server.repository.versions import IndexEntry, State


@pytest.mark.parametrize(
    ("headers", "lets_in"),
    [
        ([], False), (["key: v"], True), (["KEY: v"], True), (["key: V"], False),
        (["key: "], False), (["other: v"], False), (["key: x", "key: v"], False),
    ],
)  # fmt: skip
def test_requests_with_the_header_are_accepted(headers, lets_in):
    handlers = HttpHandlers(
        gateway(), SharedMemory(), None, HandCrankedLoop(), SystemClock(),
        restrictions={"health": Restriction("Key", "v")},
    )  # fmt: skip
    client = Client(handlers.handle)
    client.send(get("/v2/health/live", *headers))
    (reply,) = client.replies()
    assert reply.status == (200 if lets_in else 403)
    if not lets_in:
        assert reply.body == b'{"error":"This API is restricted, expecting header \'Key\'"}'


@pytest.mark.parametrize("page", [False, True])
def test_the_form_for_requests_is_not_restricted(page):
    handlers = HttpHandlers(
        gateway(), SharedMemory(), None, HandCrankedLoop(), SystemClock(),
        restrictions={name: Restriction("Key", "v") for name in API_CATEGORIES}, page=page,
        grpc_port=8001,
    )  # fmt: skip
    client = Client(handlers.handle)
    for sent in (get("/try"), get("/try?x"), get("/try", method="POST"), get("/try/m")):
        client.send(sent)
    replies = client.replies()
    assert [reply.status for reply in replies] == [*([200, 200] if page else [404, 404]), 404, 404]
    assert (b"<form" in replies[0].body and b'data-port="8001"' in replies[0].body) is page
    # Its requests are restricted like any other.
    client.send(get("/v2/models/m"))
    assert client.replies()[0].status == 403


class Control:
    """Records its calls; models `bad` and `defect` fail."""

    def __init__(self):
        self.asked = []

    def index(self, *, ready_only):
        self.asked.append(ready_only)
        return [IndexEntry("m", 1, State.UNAVAILABLE, "unloaded"), IndexEntry("n")]

    def load(self, name, parameters, *, repository):
        self.asked.append((name, parameters, repository))
        if name == "bad":
            raise invalid_arg("load failed")
        if name == "defect":
            raise KeyError("oh")

    def unload(self, name, *, unload_dependents, repository):
        self.asked.append((name, unload_dependents, repository))


@pytest.fixture
def ask():
    """Return a function that sends a request to the frontend; `control` gets the calls."""
    control = Control()
    handlers = HttpHandlers(
        gateway(), SharedMemory(), control, HandCrankedLoop(), SystemClock(), background=Here()
    )  # fmt: skip

    def answer(request):
        client = Client(handlers.handle)
        client.send(request)
        (reply,) = client.replies()
        return reply.status, reply.body

    answer.control = control
    return answer


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("models/m/load", b"", ("m", {}, "")),
        ("models/m/load", b'{"parameters":{"config":"c"}}', ("m", {"config": "c"}, "")),
        ("r/models/m/load", b"", ("m", {}, "r")),
        ("models/m/unload", b"", ("m", False, "")),
        ("r/models/m/unload", b'{"parameters":{"unload_dependents":true}}', ("m", True, "r")),
    ],
)
def test_load_and_unload(ask, path, body, asked):
    assert ask(post(f"/v2/repository/{path}", body)) == (200, b"")
    assert ask.control.asked == [asked]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("index", b"{", 500, b"failed to parse"),
        ("models/m/load", b"{", 500, b"failed to parse"),
        ("models/bad/load", b"", 400, b'{"error":"load failed"}'),
        ("models/defect/load", b"", 500, b"KeyError: 'oh'"),
        ("models/m", b"", 404, b"Not Found"),
    ],
)
def test_rejections(ask, path, body, status, said):
    found, text = ask(post(f"/v2/repository/{path}", body))
    assert found == status
    assert said in text


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/any/index"])
def test_index(ask, path):
    assert ask(post(path, b'{"ready":true}')) == (
        200,
        b'[{"name":"m","version":"1","state":"UNAVAILABLE","reason":"unloaded"},{"name":"n"}]',
    )
    assert ask.control.asked == [True]
