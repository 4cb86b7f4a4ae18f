"""The end of a server: drained, finalized, and over when the time is up."""

import asyncio
import logging
import re
import threading

import pytest

from reference_server.server import ExitTimeout, shut_down

LONG_S = 30


class Port:
    """A port with one request in flight until `answer`; tells what is done with it."""

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


def logged(caplog):
    """What the shutdown told, without how many seconds were left."""
    return [
        re.sub("^Timeout \\d+", "Timeout", record.getMessage())
        for record in caplog.records
        if record.name == "reference_server.server"
    ]


def test_requests_are_answered_before_models_are_finalized(caplog):
    told = []

    async def run():
        ports = {"one": Port(told, "one"), "two": Port(told, "two")}
        ending = asyncio.ensure_future(
            shut_down(ports, lambda: told.append("models are finalized"), lambda: 0, LONG_S)
        )
        for name, port in ports.items():
            await asyncio.sleep(0)
            told.append(f"{name} answers")
            port.answer()
        await ending

    with caplog.at_level(logging.INFO, "reference_server.server"):
        asyncio.run(run())
    assert told == [
        *("one refuses", "two refuses", "one answers", "two answers"),
        *("one is closed", "two is closed", "models are finalized"),
    ]
    assert logged(caplog) == [
        "Waiting for in-flight requests to complete.",
        "Timeout: Found 1 one connections",
        "Timeout: Found 1 two connections",
        "All models are stopped, unloading models",
        "Timeout: Found 0 live models",
        "Timeout: Found 0 live models",
    ]


def test_models_are_finalized_though_a_request_is_in_flight():
    told = []

    async def run():
        port = Port(told)
        loop = asyncio.get_running_loop()

        def finalize():
            told.append("models are finalized")
            loop.call_soon_threadsafe(port.answer)

        await shut_down({"port": port}, finalize, lambda: 0, LONG_S, draining=0)

    asyncio.run(run())
    assert told == ["port refuses", "models are finalized", "port is closed"]


def test_a_request_that_is_never_answered_is_left():
    told = []

    async def run():
        await shut_down({"port": Port(told)}, lambda: None, lambda: 0, 0.01)

    with pytest.raises(ExitTimeout):
        asyncio.run(run())
    assert told == ["port refuses", "port is closed"]


def test_a_model_that_hangs_is_left(caplog):
    released = threading.Event()

    async def run():
        await shut_down({}, released.wait, lambda: 1, 0.01)

    with pytest.raises(ExitTimeout):
        asyncio.run(run())
    released.set()
    assert logged(caplog)[-1] == (
        "failed to stop server: Internal - Exit timeout expired. Exiting immediately."
    )
