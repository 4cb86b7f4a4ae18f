"""Calls at the end of event loop iterations."""

import asyncio
import threading

import pytest

from reference_server.frontends.event_loop import MAX_COLLECTING_ITERATIONS, LoopTurns


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def sequence(loop, *turns_of_names):
    """Return the names of each iteration, with `settled` where the call is made for them."""
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
        for _ in range(MAX_COLLECTING_ITERATIONS):
            await asyncio.sleep(0)

    loop.run_until_complete(all_turns())
    return " ".join(seen)


def test_a_single_request_does_not_wait(loop):
    assert sequence(loop, "a", "", "b") == "a settled b settled"


def test_requests_of_one_iteration_share_one_call(loop):
    assert sequence(loop, "ab", "", "c") == "a b settled c settled"


def test_after_several_requests_the_next_iterations_are_waited_for(loop):
    assert sequence(loop, "ab", "cd", "e", "f") == "a b c d e settled f settled"


def test_the_number_of_collecting_iterations_is_limited(loop):
    turns_of_two = ["ab"] * (MAX_COLLECTING_ITERATIONS + 1)
    before = " ".join(["a b"] * MAX_COLLECTING_ITERATIONS)
    assert sequence(loop, *turns_of_two) == f"{before} settled a b settled"


def test_other_threads_are_not_served(loop):
    turns, said = LoopTurns(), []
    turns.begin(loop)

    async def from_a_thread():
        thread = threading.Thread(target=lambda: said.append(turns.at_end(said.clear)))
        thread.start()
        thread.join()

    loop.run_until_complete(from_a_thread())
    assert said == [False]


def test_without_a_loop_no_call_is_made():
    assert not LoopTurns().at_end(lambda: None)


def test_a_failed_call_does_not_stop_the_others(loop, caplog):
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
    assert "at the end of a loop iteration" in caplog.text
