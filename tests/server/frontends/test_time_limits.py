"""Time limits of clients: the waits that count, and when they expire."""

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

from reference_server.frontends.connections import (
    ClientTimeouts,
    OpenConnections,
    Phase,
    Sweep,
    Wait,
)
from reference_server.frontends.event_loop import SHARE_S
from reference_server.frontends.http.status_codes import OK
from reference_server.options import TimeLimits

LIMITS = TimeLimits(idle_s=40.0, head_s=10.0, body_s=20.0, unread_s=30.0)
LIMIT_S = {Phase.REQUEST: 40, Phase.HEAD: 10, Phase.BODY: 20, Phase.READING: 30}
ENOUGH = 20 * 1024  # bytes of a body in its limit


@given(
    st.sampled_from(Phase),
    st.lists(st.tuples(st.floats(0, 15), st.integers(0, 2), st.sampled_from((0, 1, ENOUGH)))),
)
def test_a_wait_expires_when_its_limit_has_passed_without_progress(phase, steps):
    timeouts, now_s, done = ClientTimeouts(LIMITS), 0.0, 0
    seen = None  # the subject, the time of its last progress, and how far it was then
    for later_s, subject, more in steps:
        now_s += later_s
        done += more
        has_progress = seen and (
            done - seen[2] >= ENOUGH if phase is Phase.BODY else done != seen[2]
        )
        if seen is None or seen[0] != subject or has_progress:
            seen = subject, now_s, done
        wait = Wait(phase, subject, done)
        expired = timeouts.expired([wait], now_s)
        assert expired == ([wait] if now_s - seen[1] >= LIMIT_S[phase] else [])


def test_without_a_limit_no_wait_expires():
    timeouts = ClientTimeouts(TimeLimits(0, 0, 0, 0))
    for now_s in (0.0, 1e9):
        assert timeouts.expired([Wait(phase, 1) for phase in Phase], now_s) == []


class Loop:
    """A loop whose time only advances with the checks."""

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


def test_a_sweep_checks_all_connections_in_shares_of_the_loop():
    loop, checked, connections = Loop(), [], OpenConnections(lambda connection: None)

    def check(connection, now_s):
        checked.append(connection)
        loop.now_s += SHARE_S / 2

    for number in range(10):
        connections.opened(number)
    sweep = Sweep(connections, check, LIMITS, loop)
    sweep.start()
    (first,) = loop.later
    assert first[0] == 10 / 4
    loop.later.clear()
    first[1]()
    iterations = 1
    while loop.soon:
        assert len(checked) < 10
        callback, arguments = loop.soon.pop()
        callback(*arguments)
        iterations += 1
    assert (sorted(checked), iterations > 2, len(loop.later)) == (list(range(10)), True, 1)
    sweep.stop()
    assert loop.later == []


def ends_after(client, seconds):
    """Return True if a second check, `seconds` after the first one, ends the connection."""
    client.connection.check_timeouts(100.0)
    assert not client.is_closed
    client.connection.check_timeouts(100.0 + seconds)
    return client.is_closed


LENGTH = "Content-Length: 100000"
INCOMPLETE = {
    "nothing": ((), 40),
    "an answered request": ((get("/"),), 40),
    "a part of a head": ((b"GET / HT",), 10),
    "a head behind a request": ((get("/"), b"GET / HT"), 10),
    "a part of a body": ((get("/", LENGTH, method="POST"), b"x" * 10_000), 20),
    "a part of a short body": ((get("/", "Content-Length: 9", method="POST"), b"x"), 20),
    "a chunk": ((get("/", "Transfer-Encoding: chunked", method="POST"), b"1\r\nx\r\n"), 20),
    "the request behind a long body": ((post("/", b"x" * 100_000),), 40),
}


@pytest.mark.parametrize(("pieces", "limit_s"), INCOMPLETE.values(), ids=INCOMPLETE)
def test_an_http_client_has_the_time_of_its_phase(pieces, limit_s):
    for seconds, ended in ((limit_s - 1, False), (limit_s, True)):
        client = Client(lambda request: request.reply(OK), limits=LIMITS)
        client.send(*pieces)
        assert ends_after(client, seconds) is ended
        reasons = {40: "idle", 10: "head", 20: "body"}
        assert client.reported == [reasons[limit_s]] * ended


def test_a_client_that_waits_for_an_answer_is_not_idle():
    waiting = []
    client = Client(waiting.append, limits=LIMITS)
    client.send(get("/"), b"GET /next HT")
    assert not ends_after(client, 1e6)
    waiting.pop().reply(OK)
    assert ends_after(client, 10)


def test_a_client_that_has_left_does_not_keep_its_connection_for_ever():
    """A client that closes cannot be distinguished from one that only stops sending."""
    client = Client(lambda request: None, limits=LIMITS)
    client.send(get("/"))
    client.half_close()
    for now_s, closed in ((0.0, False), (39.0, False), (40.0, True)):
        client.connection.check_timeouts(now_s)
        assert client.is_closed is closed
    assert client.reported == ["idle"]


@pytest.mark.parametrize(("left", "ended"), [(5000, True), (4999, False)])
def test_a_client_that_reads_nothing_for_too_long_is_disconnected(left, ended):
    client = Client(lambda request: request.reply(OK), limits=LIMITS)
    client.transport.unread = 5000
    client.connection.check_timeouts(0.0)
    client.transport.unread = left
    client.connection.check_timeouts(30.0)
    assert client.transport.is_aborted is ended


@pytest.fixture
def client():
    return GrpcClient(limits=LIMITS)


def is_aborted_after(client, seconds, unread=0):
    """Return True if a second check, `seconds` after the first one, ends the whole connection."""
    assert not client.session.check_timeouts(unread, 100.0)
    return client.session.check_timeouts(unread, 100.0 + seconds)


def test_an_idle_connection_gets_goaway_and_is_then_aborted(client):
    assert not is_aborted_after(client, 39)
    assert client.take() == []
    assert not client.session.check_timeouts(0, 140.0)
    assert next(one.kind for one in client.take()) == GOAWAY
    assert client.session.check_timeouts(0, 141.0)


def test_a_call_keeps_its_connection(client):
    client.say(client.headers(1), frame(DATA, END_STREAM, 1, message(b"question")))
    client.say(client.headers(3, STREAM), frame(DATA, 0, 3, message(b"question")))
    assert not is_aborted_after(client, 1e6)
    assert (client.take(), client.received_events.count("cancel")) == ([], 0)


def test_a_part_of_a_header_block(client):
    client.say(client.headers(1, flags=0))
    assert is_aborted_after(client, 10)


PARTS = {
    "no message": (REQUEST, b""),
    "a part of a prefix": (STREAM, b"\0\0"),
    "a part of a message": (STREAM, message(b"question")[:-1]),
    "a part of the next message": (STREAM, message(b"question") + message(b"next")[:-1]),
}


@pytest.mark.parametrize(("fields", "body"), PARTS.values(), ids=PARTS)
def test_a_call_without_its_message_ends(client, fields, body):
    client.say(client.headers(1, fields), frame(DATA, 0, 1, body))
    assert not is_aborted_after(client, 19)
    assert client.received_events[-1:] != ["cancel"]
    assert not client.session.check_timeouts(0, 120.0)
    assert client.received_events[-1] == "cancel"
    assert client.fields()["grpc-status"] == "4"


def test_a_message_with_progress_is_waited_for(client):
    client.say(client.headers(1, STREAM), frame(DATA, 0, 1, struct.pack(">BI", 0, 2**30)))
    for now_s in range(0, 100, 19):
        client.say(*(frame(DATA, 0, 1, bytes(1 << 14)) for _ in range(2)))
        client.session.check_timeouts(0, float(now_s))
    assert "cancel" not in client.received_events


def test_an_unread_answer_is_dropped_with_its_stream():
    client = GrpcClient(limits=LIMITS)
    client.say(settings(_4=0), client.headers(1), frame(DATA, END_STREAM, 1, message(b"question")))
    client.say(client.headers(3), frame(DATA, END_STREAM, 3, message(b"question")))
    for call in client.calls:
        call.send(b"answer")
        call.end()
    client.take()
    assert not client.session.check_timeouts(0, 0.0)
    client.say(frame(WINDOW_UPDATE, 0, 3, struct.pack(">I", 1)))
    assert not client.session.check_timeouts(0, 30.0)
    assert [(one.kind, one.stream) for one in client.take() if one.kind not in (HEADERS, DATA)] == [
        (RST_STREAM, 1)
    ]


def test_a_connection_that_takes_no_bytes_is_aborted(client):
    client.say(client.headers(1), frame(DATA, END_STREAM, 1, message(b"question")))
    assert is_aborted_after(client, 30, unread=100)


@pytest.mark.parametrize(
    ("pieces", "reported"),
    [
        ((get("/"),), ["left"]),
        ((b"no HTTP\r\n\r\n",), ["unreadable"]),
        ((b"GET / HT",), []),
        ((), []),
    ],
)
def test_a_malformed_or_abandoned_request_is_reported(pieces, reported):
    client = Client(lambda request: None, limits=LIMITS)
    client.send(*pieces)
    client.connection.connection_lost(None)
    assert client.reported == reported


def test_an_idle_grpc_connection_is_reported_once(client):
    assert not is_aborted_after(client, 40)
    client.session.check_timeouts(0, 200.0)
    assert client.reported == ["idle"]
