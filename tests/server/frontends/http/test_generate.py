"""The generate endpoints: chunks, events, errors, and further requests on the connection."""

from dataclasses import replace

import numpy as np
import pytest
from server.support.frontend import Frontend, Here, answering, served
from server.support.grpc import WaitingScheduler
from server.support.http import Client, get, post
from server.support.model_folders import VECTOR
from server.support.requests import array_tensor

from reference_server.core.errors import internal
from reference_server.frontends.http.request import Request

GENERATE = "/v2/models/m/generate"
STREAM = "/v2/models/m/generate_stream"
BODY = b'{"X":[1,2],"id":"q"}'
JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"
LIVE = get("/v2/health/live")
LIVE_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: text/plain\r\n\r\n"


@pytest.fixture
def frontend():
    return Frontend(served(VECTOR, answer=answering(Y=np.float32([1, 2]))))


def chunked(status, content_type, *chunks, version=b"1.1", connection=b""):
    """Return the bytes of a chunked reply."""
    head = b"HTTP/%b %b\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n%b\r\n" % (
        version,
        status,
        content_type,
        connection,
    )
    return head + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"


DECOUPLED = VECTOR + "model_transaction_policy { decoupled: true }"
GOOD, LAST, BAD, END = "good", "last", "bad", "end"


def object_of(number):
    return b'{"Y":%d.0,"id":"q","model_name":"m","model_version":"1"}' % number


class Speaking:
    """A frontend with one decoupled model, whose responses a test sends."""

    def __init__(self, path):
        self.scheduler = WaitingScheduler()
        self.frontend = Frontend(replace(served(DECOUPLED), scheduler=self.scheduler))
        self.client = self.frontend.client
        self.count = 0
        self.client.send(post(path, BODY))

    def say(self, *what):
        for each in what:
            self.count += 1
            tensors = [array_tensor("Y", np.float32([self.count]))]
            self.scheduler.answer(
                -1,
                outputs=() if each == END else tensors,
                error=internal("no") if each == BAD else None,
                empty=each == END,
                final=each in (LAST, END),
            )
            self.frontend.exchange(b"")
        return self.client.received()

    @property
    def is_cancelled(self):
        return self.scheduler.requests[-1].cancellation.is_cancelled


LONG = np.array([b"\n" * 100_000], object)


class Behind:
    """A stream whose long responses are encoded when the test says so."""

    def __init__(self, monkeypatch):
        self.jobs = []
        monkeypatch.setattr(Here, "run", lambda _, *job: self.jobs.append(job))
        self.speaking = Speaking(STREAM)

    @property
    def backlog(self):
        return self.speaking.scheduler.requests[-1].cancellation.backlog

    def say(self, *values, final=False):
        for value in values:
            outputs = [array_tensor("Y", value)]
            self.speaking.scheduler.answer(-1, outputs=outputs, final=final)
            self.speaking.frontend.exchange(b"")

    def encode(self):
        """Encode the long response, without a further iteration of the loop."""
        work, done, _ = self.jobs.pop(0)
        done(work())
        return self.speaking.client.received()

    def turn(self):
        self.speaking.frontend.exchange(b"")
        return self.speaking.client.received()


def test_responses_behind_one_that_takes_long_stay_in_order(monkeypatch):
    stream = Behind(monkeypatch)
    stream.say(np.float32([1]), LONG, np.float32([3]), LONG)
    stream.say(np.float32([5]), final=True)
    received = stream.turn()
    while stream.jobs:
        received += stream.encode() + stream.turn()
    escaped = b'"' + b"\\n" * 100_000 + b'"'
    expected = [
        object_of(1),
        object_of(0).replace(b"0.0", escaped),
        object_of(3),
        object_of(0).replace(b"0.0", escaped),
        object_of(5),
    ]
    assert received == chunked(b"200 OK", EVENTS, *(b"data: %b\n\n" % each for each in expected))


def test_responses_behind_one_that_takes_long_count_as_unread(monkeypatch):
    stream = Behind(monkeypatch)
    stream.say(LONG, *[np.zeros(1 << 12, np.float32)] * 4)
    assert stream.backlog.size > 16 << 12
    while stream.jobs:
        stream.encode()
        stream.turn()
    assert stream.backlog.size == 0


def test_a_second_wake_up_does_not_overtake_a_response_that_is_encoded(monkeypatch):
    stream = Behind(monkeypatch)
    stream.say(LONG, np.float32([2]))
    stream.speaking.scheduler.requests[-1].sink.deliver_waiting()
    assert stream.turn() == b""
    assert stream.encode().count(b"data: ") == 1
    assert stream.turn().count(b"data: ") == 1


def test_a_response_does_not_wait_for_many_of_another_stream(monkeypatch):
    flood, order = Speaking(STREAM), []
    other = Client(flood.frontend.handle)
    other.send(post(STREAM, BODY))
    flood.frontend.exchange(b"")
    outputs = [array_tensor("Y", np.float32([1]))]
    for index in [*[0] * 50, 1]:
        flood.scheduler.answer(index, outputs=outputs)
    monkeypatch.setattr(Request, "send_chunk", lambda request, data: order.append(request))
    flood.frontend.exchange(b"")
    assert len(order) == 51
    assert order[1] is not order[0]
    assert len({id(each) for each in order[2:]}) == 1


def test_responses_to_a_client_that_has_left_are_dropped(monkeypatch):
    stream = Behind(monkeypatch)
    stream.say(np.float32([1]))
    stream.speaking.client.leave()
    loop = stream.speaking.frontend._loop
    for final in (False, True):
        outputs = [array_tensor("Y", np.float32([2]))]
        stream.speaking.scheduler.answer(-1, outputs=outputs, final=final)
        assert len(loop.calls) == final


def test_events_are_sent_at_once():
    speaking = Speaking(STREAM)
    head = chunked(b"200 OK", EVENTS)[: -len(b"0\r\n\r\n")]
    event = b"data: %b\n\n"
    assert speaking.say(GOOD) == head + b"3f\r\n%b\r\n" % (event % object_of(1))
    assert speaking.say(GOOD) == b"3f\r\n%b\r\n" % (event % object_of(2))
    assert speaking.say(END) == b"0\r\n\r\n"


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_the_next_request_waits_for_the_last_response(path):
    speaking = Speaking(path)
    speaking.client.send(LIVE)
    assert LIVE_REPLY not in speaking.say(GOOD)
    assert speaking.say(END).endswith(b"0\r\n\r\n" + LIVE_REPLY)


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize("said", [[], [GOOD]], ids=["before", "between"])
def test_a_disconnected_client_cancels_its_request(path, said):
    speaking = Speaking(path)
    speaking.say(*said)
    assert not speaking.is_cancelled
    speaking.client.leave()
    assert speaking.is_cancelled
    assert speaking.say(GOOD, END) == b""


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_a_half_closed_client_before_the_first_response_counts_as_disconnected(path):
    speaking = Speaking(path)
    speaking.client.half_close()
    assert speaking.is_cancelled
    assert speaking.say(LAST).endswith(b"0\r\n\r\n")
    assert speaking.client.is_closed


def test_unread_events_are_reported_to_the_backlog():
    speaking = Speaking(STREAM)
    backlog = speaking.scheduler.requests[-1].cancellation.backlog
    connection, transport = speaking.client.connection, speaking.client.transport
    speaking.say(GOOD)
    assert backlog.size == 0
    transport.unread = 70_000
    connection.pause_writing()
    assert backlog.size == 70_000
    transport.unread = 80_000
    speaking.say(GOOD)
    assert backlog.size == 80_000
    connection.resume_writing()
    assert backlog.size == 0
    connection.pause_writing()
    speaking.client.leave()
    assert backlog.size == 0


def test_a_single_response_does_not_wait():
    (request,) = Speaking(GENERATE).scheduler.requests
    assert request.cancellation.backlog is None
