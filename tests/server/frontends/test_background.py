"""Work beside the loop: done on another thread, answered on the loop's."""

import asyncio
import threading

import pytest
from server.support.requests import PATIENCE_S

from reference_server.core.errors import Code
from reference_server.frontends import event_loop
from reference_server.frontends.event_loop import Background


def run(work):
    """What `done` or `failed` is called with, and whether each is on its right thread."""

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


def test_so_does_a_failure():
    def fail():
        raise ValueError("no")

    error, answered_here, worked_aside = run(fail)
    assert isinstance(error, ValueError)
    assert answered_here
    assert worked_aside


def test_an_answer_that_comes_too_late_is_lost():
    may_end, told = threading.Event(), threading.Event()

    class Noted:
        """A loop that is closed by the time that anything is to be done on it."""

        def __init__(self, loop):
            self.loop = loop

        def call_soon_threadsafe(self, *call):
            try:
                self.loop.call_soon_threadsafe(*call)
            finally:
                told.set()

    async def scene():
        Background(Noted(asyncio.get_running_loop())).run(may_end.wait, print, print)

    asyncio.run(scene())
    may_end.set()
    assert told.wait(PATIENCE_S)


@pytest.mark.parametrize("most", [None, 1])
def test_who_finds_no_thread_left_is_told_and_so_is_who_waits(monkeypatch, most):
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
