"""Restricted operations: the required header, and that every operation has a category."""

import pytest
from server.support.frontend import gateway
from server.support.http import Client, HandCrankedLoop, get

from reference_server.core.ports import SystemClock
from reference_server.frontends.grpc import methods as grpc_methods
from reference_server.frontends.http.handlers import HttpHandlers
from reference_server.frontends.http.routes import CATEGORY, Operation
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.options import API_CATEGORIES, Restriction, parse_restrictions


def test_every_operation_has_a_category():
    assert set(CATEGORY) == set(Operation)
    assert set(CATEGORY.values()) == set(API_CATEGORIES)
    assert set(grpc_methods.CATEGORY.values()) == set(API_CATEGORIES)


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


@pytest.mark.parametrize("page", [False, True])
def test_browsers_get_a_page_of_links_at_the_root(page):
    handlers = HttpHandlers(
        gateway(), SharedMemory(), None, HandCrankedLoop(), SystemClock(),
        page=page, metrics_port=8002,
    )  # fmt: skip
    client = Client(handlers.handle)
    html = "accept: text/html,application/xhtml+xml,*/*;q=0.8"
    for sent in (get("/", html), get("/"), get("/", "accept: */*"), get("/", html, method="POST")):
        client.send(sent)
    first, *others = client.replies()
    assert first.status == (200 if page else 404)
    assert (b'href="/try"' in first.body and b'data-port="8002"' in first.body) is page
    assert {(reply.status, reply.body) for reply in others} == {(404, b'{"error":"Not Found"}')}


def test_values_are_categories_and_a_header():
    found = parse_restrictions("--o", "api", ["health,trace:k=v:w=x", "logging:a=b"])
    assert found == {
        "health": Restriction("k", "v:w=x"),
        "trace": Restriction("k", "v:w=x"),
        "logging": Restriction("a", "b"),
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        *(
            ([value], f"--o option format is '<config name>:<setting>=<value>'. Got {value}")
            for value in ("health", "health:k", "health:=v", ":k=v", "health:k=", "")
        ),
        (["foo:k=v"], "unknown restricted api 'foo'"),
        (["health,:k=v"], "unknown restricted api ''"),
        (["health,health:k=v"], "restricted api 'health' can not be specified in multiple"),
        (["health:k=v", "health:k=v"], "restricted api 'health' can not be specified in multiple"),
    ],
)
def test_malformed_values_are_rejected(values, said):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        parse_restrictions("--o", "api", values)
    assert str(caught.value).startswith(said)
