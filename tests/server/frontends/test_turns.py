"""The turns of the event loop: what is to be done once at the end of each."""

import asyncio
import threading

import pytest

from reference_server.frontends.event_loop import LoopTurns


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_a_call_is_made_once_after_all_that_came_in_the_turn(loop):
    turns, seen = LoopTurns(), []
    turns.begin(loop)

    def settle():
        seen.append("settled")

    def came(name):
        seen.append(name)
        assert turns.at_end(settle)

    async def two_turns():
        loop.call_soon(came, "a")
        loop.call_soon(came, "b")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loop.call_soon(came, "c")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop.run_until_complete(two_turns())
    assert seen == ["a", "b", "settled", "c", "settled"]


def test_other_threads_have_no_turn(loop):
    turns, said = LoopTurns(), []
    turns.begin(loop)

    async def from_a_thread():
        thread = threading.Thread(target=lambda: said.append(turns.at_end(said.clear)))
        thread.start()
        thread.join()

    loop.run_until_complete(from_a_thread())
    assert said == [False]


def test_before_the_loop_is_known_there_is_no_turn():
    assert not LoopTurns().at_end(lambda: None)


def test_a_call_that_fails_leaves_the_others_to_be_made(loop, caplog):
    turns, seen = LoopTurns(), []
    turns.begin(loop)

    def fails():
        raise ValueError("broken")

    async def one_turn():
        turns.at_end(fails)
        turns.at_end(lambda: seen.append("made"))
        await asyncio.sleep(0)

    loop.run_until_complete(one_turn())
    assert seen == ["made"]
    assert "at the end of a turn" in caplog.text
