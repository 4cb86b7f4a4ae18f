"""gRPC calls with one complete message: the responses, and cancellation."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from reference_server.core.backlog import Backlog, Backlogs
from reference_server.core.errors import not_found
from reference_server.frontends.grpc.calls import Method, Status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"
    ),
]
FIELDS = [(b"of", b"interest")]


class Echo:
    """Answers with the message and a metadata value, and ends when the client half-closes."""

    def __init__(self, call):
        self.call = call
        self.was_cancelled = False

    def receive(self, message):
        self.call.send(message, self.call.metadata("of").encode())

    def half_close(self):
        self.call.end()

    def cancel(self):
        self.was_cancelled = True


class Waits(Echo):
    """Never ends."""

    def half_close(self):
        pass


class Refuses(Echo):
    def receive(self, message):
        self.call.end(not_found("absent"))
        self.call.send(b"too late")


def calls(handler):
    from reference_server.ray.calls import Calls

    made = []

    def start(call):
        made.append(handler(call))
        return made[0]

    return Calls({"/m": Method(start)}), made


def test_a_call_is_answered():
    served, _ = calls(Echo)
    answer, end = asyncio.run(served.whole("/m", FIELDS, b"all "))
    assert (answer, end.is_ok) == (b"all interest", True)


def test_a_failure_has_its_status():
    served, _ = calls(Refuses)
    answer, end = asyncio.run(served.whole("/m", FIELDS, b""))
    assert (answer, end) == (b"", (Status.NOT_FOUND, "absent"))


def test_closing_the_generator_cancels_the_call():
    served, made = calls(Waits)

    async def first() -> None:
        answers = served.stream("/m", FIELDS, b"")
        assert await answers.__anext__() == b"interest"
        assert not made[0].was_cancelled
        await answers.aclose()

    asyncio.run(first())
    assert made[0].was_cancelled


def test_queued_bytes_are_reported_to_the_backlog():
    served, made = calls(Waits)
    backlog = Backlog(Backlogs(), 1 << 20)

    async def watched() -> list[int]:
        answers = served.stream("/m", FIELDS, b"")
        await answers.__anext__()
        call = made[0].call
        call.watch(backlog)
        call.send(b"one")
        call.send(b"two")
        seen = [backlog.size]
        for _ in range(2):
            await answers.__anext__()
            seen.append(backlog.size)
        await answers.aclose()
        return [*seen, backlog.size]

    # A message counts as sent when the next one is requested.
    assert asyncio.run(watched()) == [6 + len(b"interest"), 6, 3, 0]
