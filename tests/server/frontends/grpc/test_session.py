"""Calls on one connection, without a network: frames of the client, and the replies."""

import gc
import gzip
import random
import struct
import weakref

import numpy as np
import pytest
from hpack import Decoder
from server.support.http2 import GREETING, REQUEST, Peer, frames_in
from support.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    frame,
    message,
    settings,
)

from reference_server.core.backlog import Backlog, Backlogs
from reference_server.core.errors import Code, ServerError
from reference_server.frontends.grpc import served_call, session
from reference_server.frontends.grpc.calls import Method
from reference_server.frontends.grpc.session import Session
from reference_server.options import Compression, GrpcOptions

WHOLE = END_HEADERS | END_STREAM
STREAM = [(name, "/t.T/s" if name == ":path" else value) for name, value in REQUEST]


class ManualTimers:
    """A clock that a test advances, with the timers set on it."""

    def __init__(self):
        self.now_s = 0.0
        self.due = []

    def time(self):
        return self.now_s

    def call_later(self, delay, callback):
        timer = _Timer(self.now_s + delay, callback)
        self.due.append(timer)
        return timer

    def turn(self, seconds):
        self.now_s += seconds
        for timer in [timer for timer in self.due if timer.at_s <= self.now_s]:
            self.due.remove(timer)
            if not timer.is_cancelled:
                timer.callback()


class _Timer:
    def __init__(self, at_s, callback):
        self.at_s, self.callback, self.is_cancelled = at_s, callback, False

    def cancel(self):
        self.is_cancelled = True


class Client(Peer):
    """A client of a session with a unary method /t.T/u and a stream /t.T/s, which do not answer."""

    def __init__(self, limits=None, **options):
        self.clock = ManualTimers()
        self.calls, self.received_events, self.written = [], [], []
        self.is_closed = False
        table = {"/t.T/u": Method(self._start), "/t.T/s": Method(self._start, streams=True)}
        self.apart = []  # work for another thread
        self.reported = []
        self.session = Session(
            *(table, GrpcOptions(**options), self.clock),
            *(self._run, self.written.extend, self._close, limits),
            report=lambda reason, particulars: self.reported.append(reason),
        )
        super().__init__(greeting=b"")
        self.say(GREETING)
        self.take()
        self._decoder = Decoder()

    def _start(self, call):
        self.calls.append(call)
        return self

    def _run(self, *work_done_failed):
        self.apart.append(work_done_failed)

    def work(self):
        """Run the next work of another thread."""
        work, done, failed = self.apart.pop(0)
        try:
            result = work()
        except Exception as error:
            failed(error)
        else:
            done(result)

    def _close(self):
        self.is_closed = True

    def receive(self, data):
        self.received_events.append(bytes(data))

    def half_close(self):
        self.received_events.append("half close")

    def cancel(self):
        self.received_events.append("cancel")

    def say(self, *data):
        self.session.receive(memoryview(b"".join(data)))
        return []

    def take(self):
        found = frames_in(b"".join(self.written))
        self.written.clear()
        return found

    def fields(self):
        """Return the header fields that were sent since the last call."""
        found = {}
        for one in self.take():
            if one.kind == HEADERS:
                found.update(self._decoder.decode(one.payload))
        return found


def test_a_call_is_answered_in_one_write():
    client = Client()
    client.say(client.headers(1), frame(DATA, END_STREAM, 1, message(b"question")))
    (call,) = client.calls
    assert client.received_events == [b"question", "half close"]
    call.send(b"answer")
    assert client.written == []
    call.end()
    assert len(client.written) == 1
    assert [(one.kind, one.flags) for one in client.take()] == [
        (HEADERS, END_HEADERS),
        (DATA, 0),
        (HEADERS, WHOLE),
    ]


def test_a_long_piece_of_a_message_is_received_in_place():
    client, body = Client(), message(random.Random(0).randbytes(300_000))
    wire = client.headers(1) + frame(DATA, END_STREAM, 1, body)
    assert client.session.message_buffer() is None
    client.say(wire[:1_000])
    place = client.session.message_buffer()
    assert len(place) == len(wire) - 1_000
    place[:100_000] = wire[1_000:101_000]
    client.session.receive(place[:100_000])
    client.say(wire[101_000:102_000])  # a part may be received elsewhere
    place = client.session.message_buffer()
    place[:] = wire[102_000:]
    client.session.receive(place)
    assert client.received_events == [body[5:], "half close"]
    assert client.session.message_buffer() is None


def test_a_message_of_an_ended_call_is_not_received_in_place():
    client = Client()
    headers = client.headers(1, [*REQUEST, ("grpc-timeout", "1S")])
    client.say(headers, frame(DATA, 0, 1, message(bytes(300_000)))[:1_000])
    assert client.session.message_buffer() is not None
    client.clock.turn(2)
    assert client.session.message_buffer() is None


@pytest.mark.parametrize("body", [b"", b"\0\0", message(b"1234")[:-1]])
def test_a_call_without_a_message_fails(body):
    client = Client()
    client.say(client.headers(1), frame(DATA, END_STREAM, 1, body))
    assert client.fields()["grpc-message"] == "Unable to parse request"
    assert client.received_events == ["cancel"]


def test_a_deadline_ends_the_call_and_cancels_its_method():
    client = Client()
    client.say(client.headers(1, [*REQUEST, ("grpc-timeout", "2S")], WHOLE ^ END_STREAM))
    client.clock.turn(1.9)
    assert client.take() == []
    client.clock.turn(0.2)
    fields = client.fields()
    assert (fields["grpc-status"], fields["grpc-message"]) == ("4", "Deadline Exceeded")
    assert client.received_events == ["cancel"]
    client.calls[0].send(b"too late")
    client.calls[0].end()
    assert client.take() == []


def test_an_answer_cancels_the_deadline():
    client = Client()
    client.say(client.headers(1, [*REQUEST, ("grpc-timeout", "2S")]))
    client.say(frame(DATA, END_STREAM, 1, message(b"")))
    client.calls[0].end(ServerError(Code.NOT_FOUND, "gone"))
    assert client.fields()["grpc-status"] == "5"
    client.clock.turn(3)
    assert client.take() == []
    assert client.clock.due == []


def test_a_reset_stream_is_cancelled_once():
    client = Client()
    client.say(client.headers(1, STREAM), frame(DATA, 0, 1, message(b"a")))
    client.say(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
    client.session.lost()
    assert client.received_events == [b"a", "cancel"]
    assert client.reported == ["cancelled"]


def test_a_lost_connection_cancels_all_calls():
    client = Client()
    client.say(client.headers(1), client.headers(3, STREAM))
    client.session.lost()
    assert client.received_events == ["cancel", "cancel"]
    assert client.reported == ["left"]


def test_a_connection_error_cancels_its_calls():
    client = Client()
    client.say(client.headers(1), frame(DATA, 0, 0, b"x"))
    assert client.received_events == ["cancel"]
    assert client.take()[-1].kind == GOAWAY
    assert client.is_closed


def test_malformed_headers_reset_only_their_stream():
    client = Client()
    client.say(client.headers(1), client.headers(3, [*REQUEST, ("connection", "close")]))
    assert [(one.kind, one.stream) for one in client.take()] == [(RST_STREAM, 3)]


def test_a_stream_sends_each_message_at_once():
    client = Client()
    client.say(client.headers(1, STREAM))
    (call,) = client.calls
    call.send(b"a")
    assert [one.kind for one in client.take()] == [HEADERS, DATA]
    call.send(b"b")
    assert [one.kind for one in client.take()] == [DATA]
    call.end()
    assert [(one.kind, one.flags) for one in client.take()] == [(HEADERS, WHOLE), (RST_STREAM, 0)]


def test_too_many_pings_end_the_connection():
    client = Client()
    for _ in range(3):
        client.say(frame(PING, 0, 0, bytes(8)))
    assert not client.is_closed
    client.say(frame(PING, 0, 0, bytes(8)))
    *_, last = client.take()
    assert (last.kind, last.payload[8:]) == (GOAWAY, b"too_many_pings")
    assert client.is_closed
    assert client.reported == ["pings"]


def test_an_old_connection_ends_after_its_calls():
    client = Client()
    client.say(client.headers(1))
    client.session.retire()
    goaway, ping = client.take()
    assert goaway.payload[:4] == struct.pack(">I", 2**31 - 1)
    client.say(client.headers(3, flags=WHOLE), frame(PING, ACK, 0, ping.payload))
    (last,) = [one for one in client.take() if one.kind == GOAWAY]
    assert last.payload[:4] == struct.pack(">I", 3)
    client.say(client.headers(5))
    assert len(client.calls) == 2
    client.calls[0].end(ServerError(Code.INTERNAL, ""))
    assert client.is_closed  # the other call had no message, and has failed


def test_a_stopping_server_answers_the_calls_in_flight():
    client = Client()
    client.say(client.headers(1), frame(DATA, END_STREAM, 1, message(b"a")))
    client.say(client.headers(3, STREAM), frame(DATA, 0, 3, message(b"b")))
    client.received_events.clear()
    client.session.stop()
    assert client.received_events == ["half close"]
    client.say(client.headers(5))
    assert len(client.calls) == 2
    for call in client.calls:
        assert not client.is_closed
        call.send(b"answer")
        call.end()
    assert client.is_closed


class Answering:
    """A method that answers with its message, and is referenced as long as the call is."""

    def __init__(self, call):
        self.call = call

    def receive(self, message):
        self.message = message

    def half_close(self):
        self.call.send(self.message)
        self.call.end()

    def cancel(self):
        pass


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("end", ["answer", "reset", "deadline", "lost"])
@pytest.mark.usefixtures("no_collector")
def test_an_ended_call_is_freed_without_the_garbage_collector(end):
    client = Client()
    running = []

    def start(call):
        method = Answering(call)
        running.append(weakref.ref(method))
        return method

    client.session._table = {"/t.T/u": Method(start)}
    client.say(client.headers(1, [*REQUEST, ("grpc-timeout", "1S")]))
    client.say(frame(DATA, 0, 1, message(b"question")))
    assert running[0]() is not None
    if end == "answer":
        client.say(frame(DATA, END_STREAM, 1))
    elif end == "reset":
        client.say(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
    elif end == "deadline":
        client.clock.turn(2)
    else:
        client.session.lost()
    client.clock.due.clear()  # a timer that is cancelled keeps nothing, but this one does
    assert running[0]() is None


@pytest.mark.usefixtures("no_collector")
def test_answers_to_a_lost_connection_are_freed():
    client = Client()
    client.say(client.headers(1, STREAM))
    answer = np.zeros(1 << 20, np.uint8)
    is_kept = weakref.ref(answer)
    client.calls[0].send(answer.data)
    client.written.clear()
    del answer
    client.session.lost()
    assert is_kept() is None


def test_a_unary_call_decompresses_one_message():
    client = Client()
    client.say(client.headers(1, [*REQUEST, ("grpc-encoding", "gzip")]))
    first, broken = message(gzip.compress(b"question"), 1), message(b"no gzip", 1)
    client.say(frame(DATA, 0, 1, first + broken), frame(DATA, END_STREAM, 1, broken))
    assert client.received_events == [b"question", "half close"]
    assert client.take() == []


def packed(size, fill):
    """Return a message that is too long to be decompressed on the loop, and its compressed form."""
    plain = fill + np.random.default_rng(1).bytes(size)
    return plain, message(gzip.compress(plain), 1)


def test_long_messages_are_decompressed_on_another_thread_in_order():
    client = Client()
    client.say(client.headers(1, [*STREAM, ("grpc-encoding", "gzip")]))
    (a, a_sent), (c, c_sent) = packed(5_000, b"a"), packed(6_000, b"c")
    short = message(gzip.compress(b"b"), 1)
    client.say(frame(DATA, END_STREAM, 1, a_sent + short + c_sent + message(b"d")))
    assert client.received_events == []
    client.work()
    assert client.received_events == [a, b"b"]
    client.work()
    assert client.received_events == [a, b"b", c, b"d", "half close"]
    assert client.apart == []


def test_a_malformed_long_message_ends_its_call():
    client = Client()
    client.say(client.headers(1, [*STREAM, ("grpc-encoding", "gzip")]))
    client.say(frame(DATA, 0, 1, message(b"\x1f\x8b" + bytes(2_000), 1) + message(b"d")))
    client.work()
    assert client.received_events == ["cancel"]
    assert client.fields()["grpc-status"] == "13"


def test_a_call_cancelled_during_decompression_gets_no_message():
    client = Client()
    client.say(client.headers(1, [*STREAM, ("grpc-encoding", "gzip")]))
    client.say(frame(DATA, 0, 1, packed(5_000, b"a")[1]), frame(RST_STREAM, 0, 1, bytes(4)))
    client.work()
    assert client.received_events == ["cancel"]


def test_a_method_gets_no_messages_after_it_has_ended_the_stream():
    client = Client()
    client.receive = lambda data: (
        client.received_events.append(bytes(data)),
        client.calls[0].end(),
    )
    client.say(client.headers(1, STREAM), frame(DATA, 0, 1, message(b"a") + message(b"b")))
    client.say(frame(DATA, END_STREAM, 1, message(b"c")))
    assert client.received_events == [b"a"]


def test_queued_bytes_are_reported_until_the_call_ends():
    client = Client()
    client.say(settings(_4=10), client.headers(1, STREAM))
    (call,) = client.calls
    backlog = Backlog(Backlogs())
    call.watch(backlog)
    call.send(b"x" * 95)
    assert backlog.size == 90
    client.say(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 30)))
    assert backlog.size == 60
    client.session.pause()
    client.say(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 10)))
    assert backlog.size == 60
    client.session.resume()
    assert backlog.size == 50
    client.say(frame(RST_STREAM, 0, 1, bytes(4)))
    assert backlog.size == 0


def test_a_held_client_gets_no_window():
    client = Client()
    client.say(client.headers(1, STREAM), frame(DATA, 0, 1, struct.pack(">BI", 0, 2**30)))
    (call,) = client.calls

    def allowed():
        return [one.stream for one in client.take() if one.kind == WINDOW_UPDATE and one.stream]

    half = [frame(DATA, 0, 1, bytes(1 << 14))] * 128
    call.hold(held=True)
    client.say(*half)
    assert allowed() == []
    call.hold(held=False)
    assert allowed() == [1]
    client.say(*half)
    assert allowed() == [1]


def widened(client, stream=0):
    """Return the window granted on a stream, or on the connection, since the last call."""
    return sum(
        int.from_bytes(one.payload, "big")
        for one in client.take()
        if (one.kind, one.stream) == (WINDOW_UPDATE, stream)
    )


def send_call(client, stream, body):
    """Send one unary call with this message, in frames."""
    data = message(body)
    pieces = [data[start : start + 16_384] for start in range(0, len(data), 16_384)]
    client.say(client.headers(stream), *(frame(DATA, 0, stream, piece) for piece in pieces))
    client.say(frame(DATA, END_STREAM, stream))


@pytest.fixture
def unread(monkeypatch):
    """A client that reads nothing, with more unread replies than the limit."""
    monkeypatch.setattr(session, "_MOST_UNREAD", 10_000)
    client = Client()
    client.say(settings(_4=0))
    send_call(client, 1, b"first")
    client.calls[0].send(bytes(20_000))
    client.calls[0].end()
    client.received_events.clear()
    return client


def test_requests_wait_while_a_client_does_not_read(unread):
    send_call(unread, 3, b"second")
    send_call(unread, 5, b"third")
    assert unread.received_events == []
    unread.say(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 15_000)))
    assert unread.received_events == [b"second", "half close", b"third", "half close"]


def test_unread_messages_of_open_streams_stop_no_other_call(monkeypatch):
    monkeypatch.setattr(session, "_MOST_UNREAD", 10_000)
    client = Client()
    client.say(settings(_4=0))
    client.say(client.headers(1, STREAM))
    client.calls[0].send(bytes(20_000))
    send_call(client, 3, b"question")
    assert client.received_events == [b"question", "half close"]


@pytest.mark.brute_force
def test_many_waiting_calls_are_processed_one_after_the_other(unread):
    for stream in range(3, 6003, 2):
        unread.say(unread.headers(stream), frame(DATA, END_STREAM, stream, message(b"x")))

    def answers_at_once(message):
        unread.calls[len(unread.received_events) + 1].send(b"y")
        unread.calls[len(unread.received_events) + 1].end()
        unread.received_events.append(bytes(message))

    unread.receive, unread.half_close = answers_at_once, lambda: None
    unread.say(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 20_000)))
    assert 1500 < len(unread.received_events) < 2000  # and then too much is unread again


def test_a_waiting_call_may_be_cancelled(unread):
    send_call(unread, 3, b"second")
    unread.say(frame(RST_STREAM, 0, 3, struct.pack(">I", 8)))
    unread.say(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 20_000)))
    assert unread.received_events == ["cancel"]


def test_a_client_with_many_bytes_in_flight_gets_no_window(monkeypatch):
    monkeypatch.setattr(session, "_MOST_REQUEST_BYTES", 5 << 20)
    client = Client()
    client.take()
    send_call(client, 1, bytes(4 << 20))
    send_call(client, 3, bytes(3 << 20))  # from here on
    send_call(client, 5, bytes(3 << 20))
    assert widened(client) == 0
    client.calls[2].end(ServerError(Code.INTERNAL, "x"))
    assert widened(client) == 0
    client.calls[1].end(ServerError(Code.INTERNAL, "x"))
    assert widened(client) == 0
    client.calls[0].end(ServerError(Code.INTERNAL, "x"))
    assert widened(client) > 10 << 20
    send_call(client, 7, bytes(9 << 20))
    assert widened(client) >= 8 << 20


def test_waiting_compressed_messages_stop_their_client(monkeypatch):
    monkeypatch.setattr(served_call, "_MAX_WAITING_BYTES", 500_000)
    client = Client()
    client.say(client.headers(1, [*STREAM, ("grpc-encoding", "gzip")]))
    packed = gzip.compress(random.Random(0).randbytes(700_000), 0)
    for _ in range(4):
        data = message(packed, 1)
        pieces = [data[start : start + 16_384] for start in range(0, len(data), 16_384)]
        client.say(*(frame(DATA, 0, 1, piece) for piece in pieces))
    for _ in range(3):
        assert widened(client, 1) == 0
        client.work()
    assert widened(client, 1) > 2 << 20
    client.work()
    assert len(client.received_events) == 4


@pytest.mark.parametrize("leaves", [False, True])
def test_long_answers_are_compressed_on_another_thread(leaves):
    client = Client(compression=Compression.HIGH)
    client.say(client.headers(1, [*REQUEST, ("grpc-accept-encoding", "gzip")]))
    client.say(frame(DATA, END_STREAM, 1, message(b"question")))
    client.take()
    client.calls[0].send(bytes(100_000))
    client.calls[0].end()
    assert client.take() == []
    if leaves:
        client.say(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
    client.work()
    answer = b"".join(one.payload for one in client.take() if one.kind == DATA)
    assert answer[:1] == (b"" if leaves else b"\1")
    assert leaves or gzip.decompress(answer[5:]) == bytes(100_000)


def test_a_deadline_of_zero():
    client = Client()
    client.say(client.headers(1, [*REQUEST, ("grpc-timeout", "0m")]))
    assert client.fields()["grpc-status"] == "4"
