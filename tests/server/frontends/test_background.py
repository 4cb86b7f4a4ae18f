"""Work on other threads, answered on the loop's thread: in order, in shares, in few wake-ups."""

import asyncio
import threading

import pytest
from server.support.http import HandCrankedLoop
from server.support.requests import PATIENCE_S

from reference_server.core.errors import Code
from reference_server.frontends import event_loop
from reference_server.frontends.event_loop import (
    MAX_COLLECTING_ITERATIONS,
    SHARE_S,
    Background,
    LoopIterationEnds,
    Mailbox,
    SharedWork,
)


def run(work):
    """Return what `done` or `failed` got, and whether it and `work` ran on the right thread."""

    async def scene():
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        here = threading.current_thread()
        worked_on = []

        def noted():
            worked_on.append(threading.current_thread())
            return work()

        def end(result):
            ended.set_result((result, threading.current_thread() is here))

        Background(loop).run(noted, end, end)
        result, answered_here = await ended
        return result, answered_here, worked_on[0] is not here

    return asyncio.run(scene())


def test_the_result_comes_back():
    assert run(lambda: 7) == (7, True, True)


def test_a_result_for_a_closed_loop_is_dropped():
    may_end, called = threading.Event(), threading.Event()

    class Noted:
        """A loop that is closed before the result is posted."""

        def __init__(self, loop):
            self.loop = loop

        def call_soon_threadsafe(self, *call):
            try:
                self.loop.call_soon_threadsafe(*call)
            finally:
                called.set()

    async def scene():
        Background(Noted(asyncio.get_running_loop())).run(may_end.wait, print, print)

    asyncio.run(scene())
    may_end.set()
    assert called.wait(PATIENCE_S)


@pytest.mark.parametrize("most", [None, 1])
def test_work_fails_if_no_thread_can_be_started(monkeypatch, most):
    def start(work, arguments):
        raise RuntimeError("can't start new thread")

    async def scene():
        loop = asyncio.get_running_loop()
        background = Background(loop, most)
        ends = [loop.create_future() for _ in range(3)]
        monkeypatch.setattr(event_loop, "start_new_thread", start)
        for end in ends:
            background.run(int, end.set_result, end.set_result)
        found = await asyncio.gather(*ends)
        monkeypatch.undo()
        later = loop.create_future()
        background.run(int, later.set_result, later.set_result)
        return found, await later

    found, later = asyncio.run(scene())
    assert [error.code for error in found] == [Code.UNAVAILABLE] * 3
    assert later == 0


class Later:
    """A background whose work runs when the test says so."""

    def __init__(self):
        self.queued = []

    def run(self, *work_and_callbacks):
        self.queued.append(work_and_callbacks)

    def finish(self):
        work, done, failed = self.queued.pop(0)
        try:
            result = work()
        except ValueError as error:
            failed(error)
        else:
            done(result)


def test_callers_share_one_run_that_starts_after_their_call():
    background, runs, found = Later(), iter(range(9)), []
    shared = SharedWork(background, lambda: next(runs))

    def call(name):
        shared.run(lambda result: found.append((name, result)), found.append)

    call("first")
    call("second")  # the first run may have read its values before
    call("third")
    assert len(background.queued) == 1
    background.finish()
    assert (found, len(background.queued)) == ([("first", 0)], 1)
    call("fourth")
    background.finish()
    background.finish()
    assert found[1:] == [("second", 1), ("third", 1), ("fourth", 2)]
    assert background.queued == []


def test_all_callers_get_the_exception_and_the_next_call_runs_again():
    background, found = Later(), []
    shared = SharedWork(background, lambda: int("x"))
    for _ in range(3):
        shared.run(print, lambda error: found.append(type(error)))
    background.finish()
    assert found == [ValueError]
    background.finish()
    assert found == [ValueError] * 3
    shared.run(print, print)
    assert len(background.queued) == 1


@pytest.fixture
def loop():
    return HandCrankedLoop()


def test_a_failing_item_does_not_stop_the_others(loop, caplog):
    received = []

    def receive(item):
        if item == "bad":
            raise ValueError(item)
        received.append(item)

    mailbox = Mailbox(loop, receive)
    for item in ("bad", "good"):
        mailbox.post(item)
    loop.turn()
    assert received == ["good"]
    assert "An answer could not be delivered" in caplog.text


def test_many_threads_lose_nothing_and_keep_their_order(loop):
    received = []
    mailbox = Mailbox(loop, received.append)
    senders = [
        threading.Thread(target=lambda name=name: [mailbox.post((name, n)) for n in range(200)])
        for name in "abcd"
    ]
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        loop.turn()
    for sender in senders:
        sender.join(PATIENCE_S)
    loop.turn()
    for name in "abcd":
        assert [n for sender, n in received if sender == name] == list(range(200))


def test_many_items_are_received_in_shares(loop):
    now_s = [0.0]
    received = []

    def receive(item):
        now_s[0] += SHARE_S / 2
        received.append(item)

    mailbox = Mailbox(loop, receive, lambda: now_s[0])
    for item in range(5):
        mailbox.post(item)
    assert len(loop.calls) == 1
    ends = []
    while loop.calls:
        loop.calls.pop(0)()
        ends.append(len(received))
    assert ends == [2, 4, 5]


def test_items_posted_during_long_shares_do_not_add_calls(loop):
    """Each call would take its share, and other clients would wait for all calls."""
    now_s = [0.0]

    def receive(item):
        now_s[0] += SHARE_S  # the share is used up
        for _ in range(3):
            mailbox.post(item)

    mailbox = Mailbox(loop, receive, lambda: now_s[0])
    mailbox.post("a")
    received = []
    for _ in range(20):
        calls, loop.calls = loop.calls, []
        before_s = now_s[0]
        for call in calls:  # one iteration of the loop
            mailbox.post("from another thread")
            call()
        received.append(now_s[0] - before_s)
    assert max(received) == pytest.approx(SHARE_S)
    assert len(loop.calls) == 1


@pytest.fixture
def asyncio_loop():
    asyncio_loop = asyncio.new_event_loop()
    yield asyncio_loop
    asyncio_loop.close()


def sequence(asyncio_loop, *turns_of_names):
    """Return the names of each iteration, with `settled` where the call is made for them."""
    ends, seen = LoopIterationEnds(), []
    ends.begin(asyncio_loop)

    def settle():
        seen.append("settled")

    def came(names):
        for name in names:
            seen.append(name)
            assert ends.at_end(settle)

    async def all_turns():
        for names in turns_of_names:
            asyncio_loop.call_soon(came, names)
            await asyncio.sleep(0)
        for _ in range(MAX_COLLECTING_ITERATIONS):
            await asyncio.sleep(0)

    asyncio_loop.run_until_complete(all_turns())
    return " ".join(seen)


def test_a_single_request_does_not_wait(asyncio_loop):
    assert sequence(asyncio_loop, "a", "", "b") == "a settled b settled"


def test_requests_of_one_iteration_share_one_call(asyncio_loop):
    assert sequence(asyncio_loop, "ab", "", "c") == "a b settled c settled"


def test_after_several_requests_the_next_iterations_are_waited_for(asyncio_loop):
    assert sequence(asyncio_loop, "ab", "cd", "e", "f") == "a b c d e settled f settled"


def test_the_number_of_collecting_iterations_is_limited(asyncio_loop):
    turns_of_two = ["ab"] * (MAX_COLLECTING_ITERATIONS + 1)
    before = " ".join(["a b"] * MAX_COLLECTING_ITERATIONS)
    assert sequence(asyncio_loop, *turns_of_two) == f"{before} settled a b settled"


def test_other_threads_are_not_served(asyncio_loop):
    ends, said = LoopIterationEnds(), []
    ends.begin(asyncio_loop)

    async def from_a_thread():
        thread = threading.Thread(target=lambda: said.append(ends.at_end(said.clear)))
        thread.start()
        thread.join()

    asyncio_loop.run_until_complete(from_a_thread())
    assert said == [False]


def test_a_failed_call_does_not_stop_the_others(asyncio_loop, caplog):
    ends, seen = LoopIterationEnds(), []
    ends.begin(asyncio_loop)

    def fails():
        raise ValueError("broken")

    async def one_turn():
        ends.at_end(fails)
        ends.at_end(lambda: seen.append("made"))
        await asyncio.sleep(0)

    asyncio_loop.run_until_complete(one_turn())
    assert seen == ["made"]
    assert "at the end of a loop iteration" in caplog.text
