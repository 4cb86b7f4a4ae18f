"""Requests that have come whole, and answers as the messages of ASGI."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from reference_server.frontends.http.asgi import AsgiExchange, Body, Message
from reference_server.frontends.http.request import Request

#: What is passed on of ASGI's scope.
_OF_REQUESTS = ("method", "path", "raw_path", "query_string", "headers")


class Exchanges:
    """Has requests answered by `handle`. On the loop's thread."""

    def __init__(self, handle: Callable[[Request], None]) -> None:
        self._handle = handle

    async def whole(self, scope: Message, body: Body) -> list[Message]:
        """The answer, when it is complete."""
        messages: list[Message] = []

        async def send(message: Message) -> None:
            messages.append(message)

        await AsgiExchange(scope, _stays, send).answer(body, self._handle)
        return messages

    async def stream(self, scope: Message, body: Body) -> AsyncIterator[Message]:
        """The answer, piece by piece; who does not want the rest closes it."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue(1)
        exchange = AsgiExchange(scope, _stays, messages.put)

        async def run() -> None:
            await exchange.answer(body, self._handle)
            await messages.put(None)

        running = asyncio.ensure_future(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def _stays() -> Message:
    """What is received behind a body that is there: who leaves has all else cancelled."""
    await asyncio.Event().wait()
    raise AssertionError("nothing sets it")


def request_of(scope: Message) -> Message:
    """What is sent of a request to whoever answers it."""
    return {name: scope[name] for name in _OF_REQUESTS}


def answer(status: int, body: bytes, content_type: bytes) -> list[Message]:
    """A whole answer."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    return [
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body, "more_body": False},
    ]
