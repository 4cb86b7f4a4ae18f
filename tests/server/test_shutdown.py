"""The shutdown: ports drained, models finalized, within the timeout."""

import asyncio
import logging
import re
import threading

import pytest

from reference_server.shutdown import ExitTimeout, shut_down

LONG_S = 30


class Port:
    """A port with one request in flight until `answer`; records its calls."""

    def __init__(self, told, name="port"):
        self.connections = 1
        self._told = told
        self._name = name
        self._empty = asyncio.Event()

    def answer(self):
        self.connections = 0
        self._empty.set()

    def stop_accepting(self):
        self._told.append(f"{self._name} refuses")

    async def drained(self):
        await self._empty.wait()

    def close(self):
        self._told.append(f"{self._name} is closed")


class Models:
    """The models behind the ports; records the calls."""

    def __init__(self, told, waiting=(), unload=lambda: None, live=0):
        self.live = live
        self._told = told
        self._waiting = list(waiting)
        self._unload = unload

    def refuse(self):
        self._told.append("models refuse")

    def in_flight(self):
        """Return one request less at each call."""
        return [self._waiting.pop()] if self._waiting else []

    def unload(self):
        self._told.append("models are unloaded")
        self._unload()


def logged(caplog):
    """Return the log of the shutdown without the remaining seconds."""
    return [
        re.sub("^Timeout \\d+", "Timeout", record.getMessage())
        for record in caplog.records
        if record.name == "reference_server.shutdown"
    ]


def test_the_first_ports_close_before_the_models_and_the_last_ports_after(caplog):
    told = []

    async def run():
        one, two = Port(told, "one"), Port(told, "two")
        models = Models(
            told, waiting=[("M", 1, 3)], unload=lambda: loop.call_soon_threadsafe(two.answer)
        )
        loop = asyncio.get_running_loop()
        ending = asyncio.ensure_future(shut_down({"one": one}, models, {"two": two}, LONG_S))
        await asyncio.sleep(0)
        told.append("one answers")
        one.answer()
        await ending

    with caplog.at_level(logging.INFO, "reference_server.shutdown"):
        asyncio.run(run())
    assert told == [
        *("one refuses", "one answers", "one is closed", "models refuse", "models are unloaded"),
        *("two refuses", "two is closed"),
    ]
    assert logged(caplog) == [
        "Timeout: Found 1 one connections",
        "Waiting for in-flight requests to complete.",
        "Timeout: Found 1 model versions that have in-flight inferences",
        "Model 'M' (version 1) has 3 in-flight inferences",
        "All models are stopped, unloading models",
        "Timeout: Found 0 live models",
        "Timeout: Found 0 live models",
    ]


def test_models_are_unloaded_although_a_request_is_in_flight():
    told = []

    async def run():
        port = Port(told)
        loop = asyncio.get_running_loop()
        models = Models(told, unload=lambda: loop.call_soon_threadsafe(port.answer))
        await shut_down({"port": port}, models, {}, LONG_S, draining=0)

    asyncio.run(run())
    assert told == ["port refuses", "models refuse", "models are unloaded", "port is closed"]


def test_an_unanswered_request_raises_exit_timeout():
    told = []

    async def run():
        await shut_down({"port": Port(told)}, Models(told), {}, 0.01)

    with pytest.raises(ExitTimeout):
        asyncio.run(run())
    assert told == ["port refuses", "models refuse", "models are unloaded", "port is closed"]


def test_a_hanging_model_raises_exit_timeout(caplog):
    released = threading.Event()

    async def run():
        await shut_down({}, Models([], unload=released.wait, live=1), {}, 0.01)

    with pytest.raises(ExitTimeout):
        asyncio.run(run())
    released.set()
    assert logged(caplog)[-1] == (
        "failed to stop server: Internal - Exit timeout expired. Exiting immediately."
    )
