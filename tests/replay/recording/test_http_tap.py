"""The HTTP tap: requests and responses from bytes in any pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay.traffic import Records, pieces

from triton_replay.capture.records import Request, Response
from triton_replay.recording.http_tap import HttpTap


def tap(max_body=1000):
    records, ticks = Records(), itertools.count(1)
    return HttpTap(5, itertools.count(), lambda: next(ticks), records, max_body), records


TWO_REQUESTS = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    b"POST /v2/models/n/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
)
TWO_RESPONSES = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n1\r\n!\r\n0\r\n\r\n"
)


@given(st.lists(st.integers(0, 999), max_size=5), st.lists(st.integers(0, 999), max_size=5))
def test_requests_and_responses_are_separated_in_any_pieces(sent_cuts, answered_cuts):
    connection, records = tap()
    for piece in pieces(TWO_REQUESTS, sent_cuts):
        connection.sent(piece)
    for piece in pieces(TWO_RESPONSES, answered_cuts):
        connection.answered(piece)
    connection.closed("client")
    first, second, ok, bad = records
    assert (first.number, first.connection, first.method, first.target) == (
        *(0, 5, "POST"),
        "/v2/models/m/infer",
    )
    assert first.headers == (("Host", "a"), ("Content-Length", "3"))
    assert (bytes(first.body), bytes(second.body), second.number) == (b"abc", b"def", 1)
    assert (ok.number, ok.status, bytes(ok.body), ok.ended) == (0, 200, b"ok", "complete")
    assert (bad.number, bad.status, bytes(bad.body), bad.ended) == (1, 400, b"no!", "complete")
    assert [end for _, end in bad.parts] == [2, 3]
    assert first.at <= first.end < ok.at <= ok.end <= bad.end
    assert records.counted == []


def test_only_the_size_of_a_long_body_is_kept():
    connection, records = tap(max_body=2)
    connection.sent(TWO_REQUESTS)
    connection.answered(TWO_RESPONSES)
    assert [(record.body_size, bytes(record.body)) for record in records] == [
        *((3, b""), (3, b"")),
        *((2, b"ok"), (3, b"")),
    ]
    assert [record.whole for record in records] == [False, False, True, False]


def test_a_request_without_response_is_recorded():
    connection, records = tap()
    connection.sent(TWO_REQUESTS)
    connection.answered(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal")
    connection.closed("server")
    connection.closed("client")
    answers = [record for record in records if isinstance(record, Response)]
    assert [(a.number, a.status, bytes(a.body), a.ended) for a in answers] == [
        (0, 200, b"hal", "server"),
        (1, 0, b"", "server"),
    ]


def test_a_response_may_end_with_the_connection():
    connection, records = tap()
    connection.sent(TWO_REQUESTS)
    connection.answered(b"HTTP/1.1 200 OK\r\n\r\nall")
    connection.closed("server")
    assert (bytes(records[2].body), records[2].ended) == (b"all", "complete")


def test_an_incomplete_request_is_counted():
    connection, records = tap()
    connection.sent(TWO_REQUESTS[:60])
    connection.closed("client")
    assert not any(isinstance(record, Request) for record in records)
    assert records.counted == ["incomplete requests"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 this is TLS",
        b"HEAD /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x05hello",
    ],
)
def test_an_unreadable_connection_is_counted_once(sent):
    connection, records = tap()
    connection.sent(sent)
    connection.sent(TWO_REQUESTS)
    connection.answered(b"junk")
    connection.closed("client")
    assert records.counted == ["connections that could not be read as HTTP/1"]
