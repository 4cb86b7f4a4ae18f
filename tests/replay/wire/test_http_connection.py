"""HTTP connections of a load, with scripted servers."""

import pytest
from replay.wire.peers import asked, http_loop

from triton_replay.wire.http_connection import HttpConnection

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_responses_are_counted_in_any_pieces():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" + OK
    with http_loop([OK, chunked, interim, OK]) as loop:
        assert asked(loop, 1, 4) == [""] * 4


def test_a_connection_closed_by_the_server_is_opened_again():
    closing = OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    with http_loop([closing], [OK]) as loop:
        assert asked(loop, 1, 2) == ["", ""]


def test_a_failure_is_reported_with_the_servers_text():
    refused = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 9\r\n\r\n" + b'{"error"}'
    with http_loop([refused, OK[:-1]], [b"SSH-2.0\r\n"], [OK]) as loop:
        assert asked(loop, 1, 4)[:2] == ['400: {"error"}', "the server closed the connection"]
        assert loop.record.failed[2].startswith("the response is not HTTP")
        assert 3 not in loop.record.failed


@pytest.mark.parametrize("callback", ["on_body", "on_message_complete"])
def test_an_interrupt_in_a_parser_callback_is_raised(callback, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(HttpConnection, callback, interrupt)
    with http_loop([OK]) as loop, pytest.raises(KeyboardInterrupt):
        asked(loop, 1, 1)
