"""The endpoints of repository control: their calls and replies."""

import pytest
from server.support.frontend import Here, gateway
from server.support.http import Client, HandCrankedLoop, get, post

from reference_server.core.errors import invalid_arg
from reference_server.core.ports import SystemClock
from reference_server.frontends.http.handlers import HttpHandlers
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.repository.versions import IndexEntry, State


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


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/any/index"])
def test_index(ask, path):
    assert ask(post(path, b'{"ready":true}')) == (
        200,
        b'[{"name":"m","version":"1","state":"UNAVAILABLE","reason":"unloaded"},{"name":"n"}]',
    )
    assert ask.control.asked == [True]


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("models/m/load", b"", ("m", {}, "")),
        ("models/m/load", b'{"parameters":{"config":"c"}}', ("m", {"config": "c"}, "")),
        ("r/models/m/load", b"", ("m", {}, "r")),
        ("models/m/unload", b"", ("m", False, "")),
        (
            "r/models/m/unload",
            b'{"parameters":{"unload_dependents":true}}',
            ("m", True, "r"),
        ),
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


@pytest.mark.parametrize("path", ["index", "models/m/load", "models/m/unload"])
def test_only_post_is_allowed(ask, path):
    assert ask(get(f"/v2/repository/{path}"))[0] == 405
    assert ask.control.asked == []
