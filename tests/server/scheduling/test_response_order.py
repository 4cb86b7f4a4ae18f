"""Responses in the order of their requests."""

import threading

from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import Answers, BrokenSink, NullSink, a_request

from reference_server.core.request import InferResponse
from reference_server.scheduling.response_order import OrderedQueue, ResponseOrder
from reference_server.scheduling.work_queue import Fifo


class Noted:
    """A sink that notes in a common list what it is sent."""

    def __init__(self, notes):
        self.notes = notes

    def send(self, response):
        self.notes.append(response.id)


def response(id, *, final=True):
    return InferResponse("m", 1, id, final=final)


def places(count):
    """The sinks of so many requests in a row, and what they were sent in the end."""
    order, notes = ResponseOrder(), []
    return [order.append(Noted(notes)) for _ in range(count)], notes


def test_an_answer_waits_for_those_before_it():
    (first, second, third), notes = places(3)
    third.send(response("c"))
    second.send(response("b"))
    assert notes == []
    first.send(response("a"))
    assert notes == ["a", "b", "c"]


def test_the_first_request_streams_and_the_others_are_kept_until_its_last():
    (first, second), notes = places(2)
    second.send(response("b1", final=False))
    first.send(response("a1", final=False))
    assert notes == ["a1"]
    second.send(response("b2"))
    first.send(response("a2"))
    assert notes == ["a1", "a2", "b1", "b2"]


def test_a_sink_that_fails_holds_nobody_up():
    order, notes = ResponseOrder(), []
    first, second = order.append(BrokenSink()), order.append(Noted(notes))
    second.send(response("b"))
    first.send(response("a"))
    assert notes == ["b"]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.randoms())
def test_in_whatever_order_they_come_they_go_in_order(counts, random):
    sinks, notes = places(len(counts))
    coming = [index for index, count in enumerate(counts) for _ in range(count)]
    random.shuffle(coming)
    left = list(counts)
    for index in coming:
        left[index] -= 1
        sinks[index].send(response(f"{index}.{counts[index] - left[index]}", final=not left[index]))
    assert notes == [f"{i}.{n + 1}" for i, count in enumerate(counts) for n in range(count)]


def test_any_number_of_threads_may_answer():
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


def test_a_request_has_its_place_from_when_it_leaves_the_queue():
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


def test_who_is_refused_never_had_a_place():
    work = OrderedQueue(Fifo())
    assert work.refused(0) == ()
    assert work.next_deadline_ns() is None
    work.flush()
    request = a_request(sink=NullSink())
    work.offer(request, 0)
    assert isinstance(request.sink, NullSink)
