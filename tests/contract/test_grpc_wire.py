"""Valid and invalid bytes of gRPC: both servers return the same fields, messages and resets.

The calls are those that gRPC's libraries never make. If HTTP/2 itself is invalid, the real server
closes the connection or accepts it; for the reference server see
tests/server/frontends/grpc/http2/test_conformance.py.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable

import grpc
import pytest
from contract import grpc_casebook as over_grpc
from contract.casebook import get, infer, post, tensor
from contract.grpc_casebook import SERVICE
from contract.test_logging import AT_START, change
from contract.wire import exchange
from support.http2 import DATA, END_HEADERS, END_STREAM, RawConnection, frame, head, message
from support.servers import Server
from support.waiting import until

pytestmark = pytest.mark.oracle

LIVE = f"{SERVICE}ServerLive"
HttpRequest = Callable[[RawConnection], None]


def call(
    *more: tuple[str, str], path: str = LIVE, data: bytes = message(b""), **changed: str | None
) -> HttpRequest:
    """Return a call on stream 1 with these fields added to the usual ones, or replacing them."""

    def ask(connection: RawConnection) -> None:
        fields = [
            (name, path if name == ":path" else value)
            for name, value in head(path, *more, **changed)
        ]
        connection.send(connection.headers(1, fields), frame(DATA, END_STREAM, 1, data))

    return ask


def in_parts(*parts: tuple[list[tuple[str, str]] | bytes, int]) -> HttpRequest:
    """Return a call made of header fields and data, each with its flags."""

    def ask(connection: RawConnection) -> None:
        for what, flags in parts:
            if isinstance(what, bytes):
                connection.send(frame(DATA, flags, 1, what))
            else:
                connection.send(connection.headers(1, what, END_HEADERS | flags))

    return ask


CASES: dict[str, HttpRequest] = {
    "a good call": call(),
    "application/grpc+proto": call(content_type="application/grpc+proto"),
    "application/grpc;x": call(content_type="application/grpc;x"),
    "application/grpcx": call(content_type="application/grpcx"),
    "application/json": call(content_type="application/json"),
    "no content-type": call(content_type=None),
    "an empty content-type": call(content_type=""),
    "no te": call(te=None),
    "another te": call(te="gzip"),
    "GET": call(method="GET"),
    "PUT": call(method="PUT"),
    "no scheme": call(scheme=None),
    "another scheme": call(scheme="ftp"),
    "no authority": call(authority=None),
    "an empty path": call(path=""),
    "a path without a slash": call(path="x"),
    "an unknown method": call(path="/x/y", data=message(bytes(10))),
    "an unknown encoding": call(("grpc-encoding", "snappy"), data=message(b"x", 1)),
    "an unknown encoding, not used": call(("grpc-encoding", "snappy")),
    "compressed without an encoding": call(data=message(gzip.compress(b""), 1)),
    "gzip": call(("grpc-encoding", "gzip"), data=message(gzip.compress(b""), 1)),
    "deflate": call(("grpc-encoding", "deflate"), data=message(zlib.compress(b""), 1)),
    "no gzip": call(("grpc-encoding", "gzip"), data=message(b"nonsense", 1)),
    "an encoding that is not used": call(("grpc-encoding", "gzip")),
    "another flag": call(data=message(b"", 2)),
    "no message": call(data=b""),
    "half a prefix": call(data=b"\0\0"),
    "half a message": call(data=message(b"1234")[:-1]),
    "two messages": call(data=message(b"") * 2),
    "no message of the method": call(data=message(b"\xff")),
    "no body": in_parts((head(LIVE), END_STREAM)),
    "trailers": in_parts((head(LIVE), 0), (message(b""), 0), ([("a", "b")], END_STREAM)),
    "an open end": in_parts((head(LIVE), 0), (message(b""), 0)),
    "a message in pieces": in_parts(
        (head(LIVE), 0), (b"\0\0", 0), (b"\0\0", 0), (b"", 0), (b"\0", END_STREAM)
    ),
    "a deadline": call(("grpc-timeout", "10S")),
    "a long deadline": call(("grpc-timeout", "123456789S")),
    "no time at all": call(("grpc-timeout", "0S")),
    "no deadline": call(("grpc-timeout", "soon")),
    "a deadline before now": call(("grpc-timeout", "-1S")),
    "a deadline that passes": in_parts(
        ([*head(f"{SERVICE}ModelStreamInfer"), ("grpc-timeout", "50m")], 0)
    ),
    "binary metadata": call(("a-bin", "AAEC"), ("b-bin", "AAE")),
    "no base64": call(("a-bin", "!!!")),
    "10 KB of metadata": call(("a", "x" * 10_000)),
    "a refusal": call(path=f"{SERVICE}ModelInfer", data=message(b"\n\x06nobody")),
}


def outcome(server: Server, ask: HttpRequest) -> tuple[object, ...]:
    """Return the frames received on stream 1."""
    with RawConnection(server.grpc) as connection:
        ask(connection)
        answer = connection.answer(1)
        return answer.blocks, answer.data, answer.reset


@pytest.mark.parametrize("name", CASES)
def test_both_servers_answer_alike(name: str, probed_triton: Server, probed_reference: Server):
    real, ours = (outcome(server, CASES[name]) for server in (probed_triton, probed_reference))
    assert ours == real


def test_a_short_deadline_is_met_or_passes(probed_triton: Server, probed_reference: Server):
    """One nanosecond becomes a few milliseconds, within which a busy machine may not answer."""
    in_time = outcome(probed_triton, CASES["a deadline"])
    passed = outcome(probed_triton, CASES["no time at all"])
    for server in (probed_triton, probed_reference):
        for _ in range(1_000):
            answer = outcome(server, call(("grpc-timeout", "1n")))
            if answer == in_time:
                break
            assert answer == passed
        else:
            pytest.fail("a short deadline is never met")


#: What HTTP/2 calls malformed (RFC 9113, section 8), and the real server resets with another code
#: or answers.
MALFORMED = {"an upper-case name": call(("Foo", "x")), "connection": call(("connection", "close"))}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests_are_reset(name: str, probed_triton: Server, probed_reference: Server):
    assert outcome(probed_reference, MALFORMED[name]) == ([], b"", 1)
    assert outcome(probed_triton, MALFORMED[name]) != ([], b"", 1)


def test_both_servers_send_a_client_away_that_pings_and_pings(
    probed_triton: Server, probed_reference: Server
):
    for server in (probed_triton, probed_reference):
        with RawConnection(server.grpc) as connection:
            connection.send(*[frame(6, 0, 0, bytes(8))] * 10)
            _, code, reason = connection.until_goaway()
            assert (code, reason) == (11, b"too_many_pings")
            connection.until_closed()


def test_failed_requests_are_named_at_the_level_of_details(
    probed_triton: Server, probed_reference: Server
):
    real, ours = failures(probed_triton), failures(probed_reference)
    assert ours == real
    assert len(ours) == 11


#: Requests over HTTP that are refused, before or after their JSON is read.
_REFUSED = (
    infer("vector", tensor("X", "INT32", [4], [1, 2, 3, 4]), id="type"),
    infer("vector", id="none"),
    infer("vector", tensor("X", "FP32", "no", [1.0]), id="parse"),
    infer("missing", tensor("X", "FP32", [4], [1.0]), id="unknown"),
    infer("decoupled", tensor("X", "FP32", [1], [1.0]), id="decoupled"),
    post("/v2/models/vector/infer", "{"),
    post("/v2/models/vector/generate", '{"id": "generate", "Y": 1}'),
    post("/v2/models/vector/generate", "{}", headers={"Content-Encoding": "gzip"}),
    get("/v2/models/vector/infer"),
    get("/v2/models/vector/versions/99999999999999999999"),
    get("/v2/nothing?x=1"),
)
_SHORT = over_grpc.infer("vector", over_grpc.tensor("X", "FP32", [2]), id="grpc")
_FAULT = over_grpc.infer(
    "faults",
    over_grpc.tensor("what", "BYTES", [1], over_grpc.typed(bytes_contents=[b"error"])),
    id="fault",
)
_CALLS = (
    over_grpc.call("ModelInfer", _SHORT),
    over_grpc.call("ModelInfer", over_grpc.infer("missing")),
    over_grpc.call("ModelInfer", over_grpc.infer("decoupled")),
    over_grpc.call("ModelInfer", _FAULT),
    over_grpc.call("ModelStreamInfer", _SHORT, _FAULT),
)
_FAILURE = re.compile(r'\] "((?:HTTP error|Failed for ID|.*Infer failed): .*?)"?$', re.MULTILINE)


def failures(server: Server) -> list[str]:
    """Return the verbose lines about requests that fail."""
    change(server, log_verbose_level=1)
    before = len(server.log)
    try:
        for refused in _REFUSED:
            exchange(server.http, refused)
        with grpc.insecure_channel(server.grpc) as channel:
            for failing in _CALLS:
                failing.put(channel)
        until(lambda: "Failed for ID" in server.log[before:], "the last line")
    finally:
        change(server, **AT_START)
    return _FAILURE.findall(server.log[before:])
