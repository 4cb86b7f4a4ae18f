"""Requests of web pages: refused if another site may have sent them; other clients are not."""

import pytest
from server.support.frontend import Here, gateway
from server.support.http import Client, HandCrankedLoop, get

from reference_server.core.ports import SystemClock
from reference_server.frontends.http.handlers import HttpHandlers
from reference_server.frontends.http.origins import WebOrigins
from reference_server.frontends.http.pages import MetricsHandlers
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.options import WebOptions
from reference_server.watching import RemotePage

#: The method GET reads settings, and POST changes them.
TARGET = "/v2/logging"
LOCAL, REMOTE = ("127.0.0.1", 8000), ("10.0.0.7", 8000)


def client(
    options: WebOptions | None = None, address: str = "0.0.0.0", reached: tuple[str, int] = LOCAL
) -> Client:
    handlers = HttpHandlers(
        gateway(), SharedMemory(), None, HandCrankedLoop(), SystemClock(),
        origins=WebOrigins(options, address),
    )  # fmt: skip
    made = Client(handlers.handle)
    made.transport._extra = {"sockname": reached}
    return made


def status(to: Client, *headers: str, host: str = "localhost:8000", method: str = "POST") -> int:
    to.send(get(TARGET, f"Host: {host}", *headers, method=method))
    (reply,) = to.replies()
    return reply.status


def refused(
    *headers: str,
    host: str = "localhost:8000",
    method: str = "POST",
    address: str = "0.0.0.0",
    reached: tuple[str, int] = LOCAL,
) -> bool:
    return status(client(None, address, reached), *headers, host=host, method=method) == 403


@pytest.mark.parametrize(
    ("headers", "host", "is_refused"),
    [
        # Clients that are no browsers.
        ([], "localhost:8000", False),
        ([], "triton.example", False),
        (["User-Agent: curl/8.5.0"], "10.1.2.3:8000", False),
        # By Sec-Fetch-Site, which a page cannot set.
        (["Sec-Fetch-Site: same-origin", "Origin: http://localhost:8000"], "localhost:8000", False),
        (["Sec-Fetch-Site: same-origin", "Origin: https://a.example"], "triton_http", False),
        (["Sec-Fetch-Site: none"], "localhost:8000", False),
        (["Sec-Fetch-Site: cross-site", "Origin: https://evil.example"], "localhost:8000", True),
        (["Sec-Fetch-Site: same-site", "Origin: http://localhost:3000"], "localhost:8000", True),
        (["Sec-Fetch-Site: cross-site"], "localhost:8000", True),
        (["Sec-Fetch-Site: cross-site", "Origin: null"], "localhost:8000", True),
        # By Origin, from older browsers, and without TLS from other machines.
        (["Origin: http://localhost:8000"], "LOCALHOST:8000", False),
        (["Origin: http://[::1]:8000"], "[::1]:8000", False),
        (["Origin: http://10.1.2.3:8000"], "10.1.2.3:8000", False),
        (["Origin: http://evil.example"], "10.1.2.3:8000", True),
        (["Origin: http://localhost:3000"], "localhost:8000", True),
        (["Origin: null"], "localhost:8000", True),
        (["Origin: null"], "null", True),
        (["Origin: "], "localhost:8000", True),
    ],
)
def test_changes_are_accepted_from_pages_of_the_same_origin_only(headers, host, is_refused):
    assert refused(*headers, host=host) is is_refused
    assert not refused(*headers, host=host, method="GET")


@pytest.mark.parametrize(
    ("address", "reached", "headers", "is_refused"),
    [
        ("127.0.0.1", LOCAL, [], True),
        ("localhost", LOCAL, ["Sec-Fetch-Site: same-origin"], True),
        ("::1", ("::1", 8000, 0, 0), [], True),
        # Proxies on this machine use such names, too; a page's request has an Origin.
        ("0.0.0.0", LOCAL, [], False),
        ("0.0.0.0", LOCAL, ["Origin: http://evil.example"], True),
        ("::", ("::1", 8000, 0, 0), ["Origin: http://evil.example"], True),
        ("0.0.0.0", REMOTE, ["Origin: http://evil.example"], False),
        ("10.0.0.7", REMOTE, [], False),
    ],
)
def test_a_foreign_host_name_is_refused_where_it_indicates_rebinding(
    address, reached, headers, is_refused
):
    assert refused(*headers, host="evil.example", address=address, reached=reached) is is_refused


@pytest.mark.parametrize(
    ("host", "is_refused"),
    [
        ("localhost", False), ("localhost.:8000", False), ("app.localhost:8000", False),
        ("127.0.0.1:8000", False), ("[::1]:8000", False), ("192.168.1.5", False),
        ("triton", False), ("triton_http", False), ("model_server:8000", False), ("", False),
        ("evil.example", True), ("evil.example:8000", True), ("evil.example.", True),
        ("localhost.evil.example", True), ("127.0.0.1.evil.example", True), ("a.b:c", True),
    ],
)  # fmt: skip
def test_hosts_at_a_loopback_address_are_local_names_and_ip_addresses(host, is_refused):
    for method in ("GET", "POST"):
        assert refused(host=host, method=method, address="127.0.0.1") is is_refused


@pytest.mark.parametrize(
    ("options", "host", "origin", "is_refused"),
    [
        (WebOptions(("Triton.Example",)), "triton.example:80", "http://triton.example:80", False),
        (WebOptions(("triton.example",)), "evil.example:80", "http://evil.example:80", True),
        (WebOptions(("app.example",)), "localhost:8000", "https://app.example:444", False),
        (WebOptions(("app.example",)), "localhost:8000", "https://evil.app.example", True),
        (WebOptions(allow_cross_site=True), "evil.example", "https://evil.example", False),
        (WebOptions(allow_cross_site=True), "localhost:8000", "null", False),
    ],
)
def test_options_allow_names_and_sites(options, host, origin, is_refused):
    to = client(options, "127.0.0.1")
    assert (status(to, f"Origin: {origin}", host=host) == 403) is is_refused


def test_the_refusal_depends_on_the_connection_although_heads_are_remembered():
    shared = client(reached=REMOTE)
    headers = ["Origin: http://a.example"]
    assert status(shared, *headers, host="a.example") != 403
    shared.transport._extra = {"sockname": LOCAL}
    assert status(shared, *headers, host="a.example") == 403


class _Status:
    def read(self):
        return {"models": []}

    def log_after(self, number):
        return []


class _Metrics:
    def families(self):
        return []


@pytest.mark.parametrize("path", ["/", "/status.json", "/log.json?after=3"])
def test_pages_of_operators_are_refused_to_foreign_hosts_of_this_machine(path):
    port = Client(
        MetricsHandlers(_Metrics(), Here(), _Status(), WebOrigins(address="0.0.0.0")).handle
    )
    remote = Client(RemotePage(_Status(), None, WebOrigins(address="127.0.0.1")).handle)
    for to in (port, remote):
        to.transport._extra = {"sockname": LOCAL}
        to.send(get(path, "Host: evil.example:8002"))
        (reply,) = to.replies()
        assert reply.status == 403
        assert b"--http-allowed-host" in reply.body
    port.send(get(path, "Host: localhost:8002"), get("/metrics", "Host: evil.example"))
    assert [reply.status for reply in port.replies()] == [200, 200]
