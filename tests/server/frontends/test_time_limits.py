"""How long clients may take: what is waited for, when that is over, and that answers are not."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.frontends.grpc.test_session import STREAM
from server.frontends.grpc.test_session import Client as GrpcClient
from server.support.http import Client, get, post
from server.support.http2 import REQUEST
from support.http2 import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    WINDOW_UPDATE,
    frame,
    message,
    settings,
)

from reference_server.frontends.connections import OpenConnections, Patience, Phase, Sweep, Wait
from reference_server.frontends.event_loop import SHARE_S
from reference_server.frontends.http.status_codes import OK
from reference_server.options import TimeLimits

LIMITS = TimeLimits(idle_s=40.0, head_s=10.0, body_s=20.0, unread_s=30.0)
LIMIT_S = {Phase.REQUEST: 40, Phase.HEAD: 10, Phase.BODY: 20, Phase.READING: 30}
ENOUGH = 20 * 1024  # bytes of a body in its limit


# ------------------------------------------------------------------------------------ the decider


@given(
    st.sampled_from(Phase),
    st.lists(st.tuples(st.floats(0, 15), st.integers(0, 2), st.sampled_from((0, 1, ENOUGH)))),
)
def test_a_wait_is_over_when_it_was_seen_for_its_limit_and_did_not_go_on(phase, looks):
    patience, now_s, done = Patience(LIMITS), 0.0, 0
    seen = None  # the subject, when it was first seen or went on, and how far it was then
    for later_s, subject, more in looks:
        now_s += later_s
        done += more
        goes_on = seen and (done - seen[2] >= ENOUGH if phase is Phase.BODY else done != seen[2])
        if seen is None or seen[0] != subject or goes_on:
            seen = subject, now_s, done
        wait = Wait(phase, subject, done)
        over = patience.over([wait], now_s)
        assert over == ([wait] if now_s - seen[1] >= LIMIT_S[phase] else [])


def test_without_a_limit_nothing_is_ever_over():
    patience = Patience(TimeLimits(0, 0, 0, 0))
    for now_s in (0.0, 1e9):
        assert patience.over([Wait(phase, 1) for phase in Phase], now_s) == []


class Loop:
    """A loop whose time goes by with each look."""

    def __init__(self):
        self.now_s, self.later, self.soon = 0.0, [], []

    def time(self):
        return self.now_s

    def call_later(self, delay, callback):
        self.later.append((delay, callback))
        return self

    def call_soon(self, callback, *arguments):
        self.soon.append((callback, arguments))
        return self

    def cancel(self):
        self.later.clear()


def test_a_sweep_looks_at_all_connections_in_shares_of_the_loop():
    loop, looked, connections = Loop(), [], OpenConnections(lambda connection: None)

    def look(connection, now_s):
        looked.append(connection)
        loop.now_s += SHARE_S / 2

    for number in range(10):
        connections.opened(number)
    sweep = Sweep(connections, look, LIMITS, loop)
    sweep.start()
    (first,) = loop.later
    assert first[0] == 10 / 4
    loop.later.clear()
    first[1]()
    turns = 1
    while loop.soon:
        assert len(looked) < 10
        callback, arguments = loop.soon.pop()
        callback(*arguments)
        turns += 1
    assert (sorted(looked), turns > 2, len(loop.later)) == (list(range(10)), True, 1)
    sweep.stop()
    assert loop.later == []


# ------------------------------------------------------------------------------------------- HTTP


def ends_after(client, seconds):
    """Whether the client's connection is ended by a second look `seconds` after the first."""
    client.connection.look(100.0)
    assert not client.is_closed
    client.connection.look(100.0 + seconds)
    return client.is_closed


LENGTH = "Content-Length: 100000"
OWED = {
    "nothing": ((), 40),
    "an answered request": ((get("/"),), 40),
    "a part of a head": ((b"GET / HT",), 10),
    "a head behind a request": ((get("/"), b"GET / HT"), 10),
    "a part of a body": ((get("/", LENGTH, method="POST"), b"x" * 10_000), 20),
    "a part of a short body": ((get("/", "Content-Length: 9", method="POST"), b"x"), 20),
    "a chunk": ((get("/", "Transfer-Encoding: chunked", method="POST"), b"1\r\nx\r\n"), 20),
    "the request behind a long body": ((post("/", b"x" * 100_000),), 40),
}


@pytest.mark.parametrize(("pieces", "limit_s"), OWED.values(), ids=OWED)
def test_an_http_client_has_its_time(pieces, limit_s):
    for seconds, ended in ((limit_s - 1, False), (limit_s, True)):
        client = Client(lambda request: request.reply(OK), limits=LIMITS)
        client.send(*pieces)
        assert ends_after(client, seconds) is ended
        reasons = {40: "idle", 10: "head", 20: "body"}
        assert client.reported == [reasons[limit_s]] * ended


def test_who_waits_for_an_answer_is_not_idle():
    waiting = []
    client = Client(waiting.append, limits=LIMITS)
    client.send(get("/"), b"GET /next HT")
    assert not ends_after(client, 1e6)
    waiting.pop().reply(OK)
    assert ends_after(client, 10)


def test_a_new_request_is_a_new_wait():
    client = Client(lambda request: request.reply(OK), limits=LIMITS)
    for now_s in range(0, 1000, 39):
        client.send(get("/"))
        client.connection.look(float(now_s))
    assert not client.is_closed


@pytest.mark.parametrize(("left", "ended"), [(5000, True), (4999, False)])
def test_who_reads_nothing_for_too_long_is_sent_away(left, ended):
    client = Client(lambda request: request.reply(OK), limits=LIMITS)
    client.transport.unread = 5000
    client.connection.look(0.0)
    client.transport.unread = left
    client.connection.look(30.0)
    assert client.transport.is_aborted is ended


# ------------------------------------------------------------------------------------------- gRPC


@pytest.fixture
def client():
    return GrpcClient(limits=LIMITS)


def given_up(client, seconds, unread=0):
    """Whether the whole connection is to be given up by a second look `seconds` after the first."""
    assert not client.session.look(unread, 100.0)
    return client.session.look(unread, 100.0 + seconds)


def test_a_connection_without_calls_is_asked_to_leave_and_then_given_up(client):
    assert not given_up(client, 39)
    assert client.take() == []
    assert not client.session.look(0, 140.0)
    assert next(one.kind for one in client.take()) == GOAWAY
    assert client.session.look(0, 141.0)


def test_a_call_keeps_its_connection(client):
    client.say(client.headers(1), frame(DATA, END_STREAM, 1, message(b"question")))
    client.say(client.headers(3, STREAM), frame(DATA, 0, 3, message(b"question")))
    assert not given_up(client, 1e6)
    assert (client.take(), client.told.count("cancel")) == ([], 0)


def test_a_part_of_a_header_block(client):
    client.say(client.headers(1, flags=0))
    assert given_up(client, 10)


PARTS = {
    "no message": (REQUEST, b""),
    "a part of a prefix": (STREAM, b"\0\0"),
    "a part of a message": (STREAM, message(b"question")[:-1]),
    "a part of the next message": (STREAM, message(b"question") + message(b"next")[:-1]),
}


@pytest.mark.parametrize(("fields", "body"), PARTS.values(), ids=PARTS)
def test_a_call_without_its_message_ends(client, fields, body):
    client.say(client.headers(1, fields), frame(DATA, 0, 1, body))
    assert not given_up(client, 19)
    assert client.told[-1:] != ["cancel"]
    assert not client.session.look(0, 120.0)
    assert client.told[-1] == "cancel"
    assert client.fields()["grpc-status"] == "4"


def test_a_message_that_goes_on_is_waited_for(client):
    client.say(client.headers(1, STREAM), frame(DATA, 0, 1, struct.pack(">BI", 0, 2**30)))
    for now_s in range(0, 100, 19):
        client.say(*(frame(DATA, 0, 1, bytes(1 << 14)) for _ in range(2)))
        client.session.look(0, float(now_s))
    assert "cancel" not in client.told


def test_an_answer_that_nobody_reads_is_dropped_with_its_stream():
    client = GrpcClient(limits=LIMITS)
    client.say(settings(_4=0), client.headers(1), frame(DATA, END_STREAM, 1, message(b"question")))
    client.say(client.headers(3), frame(DATA, END_STREAM, 3, message(b"question")))
    for call in client.calls:
        call.send(b"answer")
        call.end()
    client.take()
    assert not client.session.look(0, 0.0)
    client.say(frame(WINDOW_UPDATE, 0, 3, struct.pack(">I", 1)))
    assert not client.session.look(0, 30.0)
    assert [(one.kind, one.stream) for one in client.take() if one.kind not in (HEADERS, DATA)] == [
        (RST_STREAM, 1)
    ]


def test_a_connection_that_takes_no_bytes_is_given_up(client):
    client.say(client.headers(1), frame(DATA, END_STREAM, 1, message(b"question")))
    assert given_up(client, 30, unread=100)


# ----------------------------------------------------------------------------- what is reported


@pytest.mark.parametrize(
    ("pieces", "reported"),
    [
        ((get("/"),), ["left"]),
        ((b"no HTTP\r\n\r\n",), ["unreadable"]),
        ((b"GET / HT",), []),
        ((), []),
    ],
)
def test_a_request_that_is_refused_or_left_alone_is_reported(pieces, reported):
    client = Client(lambda request: None, limits=LIMITS)
    client.send(*pieces)
    client.connection.connection_lost(None)
    assert client.reported == reported


def test_a_flood_of_grpc_is_reported_by_its_error_code(client):
    client.say(frame(DATA, 0, 0, b"x"))
    assert client.reported == ["protocol_error"]


def test_a_grpc_connection_that_stays_idle_is_reported_once(client):
    assert not given_up(client, 40)
    client.session.look(0, 200.0)
    assert client.reported == ["idle"]
