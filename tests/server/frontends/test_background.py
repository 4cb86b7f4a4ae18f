"""Work on other threads, answered on the loop's thread."""

import asyncio
import threading

import pytest
from server.support.requests import PATIENCE_S

from reference_server.core.errors import Code
from reference_server.frontends import event_loop
from reference_server.frontends.event_loop import Background, SharedWork


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


def test_the_error_comes_back():
    def fail():
        raise ValueError("no")

    error, answered_here, worked_aside = run(fail)
    assert isinstance(error, ValueError)
    assert answered_here
    assert worked_aside


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
