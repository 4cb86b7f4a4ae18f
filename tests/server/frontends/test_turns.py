"""The turns of the event loop: what is to be done once at the end of each."""

import asyncio
import threading

import pytest

from reference_server.frontends.event_loop import LOOKS, LoopTurns


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def what_is_seen(loop, *turns_of_names):
    """The names that come in each turn, and `settled` where the call is made for them."""
    turns, seen = LoopTurns(), []
    turns.begin(loop)

    def settle():
        seen.append("settled")

    def came(names):
        for name in names:
            seen.append(name)
            assert turns.at_end(settle)

    async def all_turns():
        for names in turns_of_names:
            loop.call_soon(came, names)
            await asyncio.sleep(0)
        for _ in range(LOOKS):
            await asyncio.sleep(0)

    loop.run_until_complete(all_turns())
    return " ".join(seen)


def test_who_comes_alone_does_not_wait(loop):
    assert what_is_seen(loop, "a", "", "b") == "a settled b settled"


def test_a_call_is_made_once_for_all_that_came_in_the_turn(loop):
    assert what_is_seen(loop, "ab", "", "c") == "a b settled c settled"


def test_where_several_came_those_of_the_next_turns_are_waited_for(loop):
    assert what_is_seen(loop, "ab", "cd", "e", "f") == "a b c d e settled f settled"


def test_who_keeps_coming_is_not_waited_for_without_end(loop):
    turns_of_two = ["ab"] * (LOOKS + 1)
    before = " ".join(["a b"] * LOOKS)
    assert what_is_seen(loop, *turns_of_two) == f"{before} settled a b settled"


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
