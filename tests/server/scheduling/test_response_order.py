"""Responses in the order of their requests."""

import threading

from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import Answers, BrokenSink, NullSink, a_request

from reference_server.core.request import InferResponse
from reference_server.scheduling.response_order import OrderedQueue, ResponseOrder
from reference_server.scheduling.work_queue import Fifo


class Noted:
    """A sink that appends the ids of its responses to a shared list."""

    def __init__(self, notes):
        self.notes = notes

    def send(self, response):
        self.notes.append(response.id)


def response(id, *, final=True):
    return InferResponse("m", 1, id, final=final)


def places(count):
    """Return the ordered sinks of `count` requests, and the list of sent ids."""
    order, notes = ResponseOrder(), []
    return [order.append(Noted(notes)) for _ in range(count)], notes


def test_first_request_streams_and_others_are_buffered():
    (first, second), notes = places(2)
    second.send(response("b1", final=False))
    first.send(response("a1", final=False))
    assert notes == ["a1"]
    second.send(response("b2"))
    first.send(response("a2"))
    assert notes == ["a1", "a2", "b1", "b2"]


def test_failing_sink_does_not_block_others():
    order, notes = ResponseOrder(), []
    first, second = order.append(BrokenSink()), order.append(Noted(notes))
    second.send(response("b"))
    first.send(response("a"))
    assert notes == ["b"]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.randoms())
def test_responses_are_sent_in_request_order(counts, random):
    sinks, notes = places(len(counts))
    coming = [index for index, count in enumerate(counts) for _ in range(count)]
    random.shuffle(coming)
    left = list(counts)
    for index in coming:
        left[index] -= 1
        sinks[index].send(response(f"{index}.{counts[index] - left[index]}", final=not left[index]))
    assert notes == [f"{i}.{n + 1}" for i, count in enumerate(counts) for n in range(count)]


def test_responses_of_many_threads():
    sinks, notes = places(60)
    barrier = threading.Barrier(6)

    def answer(mine):
        barrier.wait()
        for index in mine:
            sinks[index].send(response(index))

    threads = [threading.Thread(target=answer, args=(range(n, 60, 6),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notes == list(range(60))


def test_order_is_set_when_requests_leave_the_queue():
    work = OrderedQueue(Fifo())
    answers = [Answers(), Answers()]
    for id, sink in zip("ab", answers, strict=True):
        work.offer(a_request(id=id, sink=sink), 0)
    (first,), (second,) = work.take(0, 0), work.take(1, 0)
    assert len(work) == 0
    second.sink.send(response("b"))
    assert answers[1].is_empty
    first.sink.send(response("a"))
    assert [answer.wait().id for answer in answers] == ["a", "b"]


def test_refused_request_has_no_place_in_the_order():
    work = OrderedQueue(Fifo())
    assert work.refused(0) == ()
    assert work.next_deadline_ns() is None
    work.flush()
    request = a_request(sink=NullSink())
    work.offer(request, 0)
    assert isinstance(request.sink, NullSink)
