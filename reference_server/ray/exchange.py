"""Requests that have come whole, and answers as the messages of ASGI."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from reference_server.frontends.http.asgi import AsgiExchange, Message, Receive
from reference_server.frontends.http.request import Request

#: What is passed on of ASGI's scope.
_OF_REQUESTS = ("method", "path", "raw_path", "query_string", "headers")


class Exchanges:
    """Has requests answered by `handle`. On the loop's thread.

    Of JSON that has more than `max_input` bytes nothing is kept.
    """

    def __init__(self, handle: Callable[[Request], None], max_input: int | None) -> None:
        self._handle = handle
        self._max_input = max_input

    async def whole(self, scope: Message, body: bytes) -> list[Message]:
        """The answer, when it is complete."""
        messages: list[Message] = []

        async def send(message: Message) -> None:
            messages.append(message)

        exchange = AsgiExchange(scope, _Received(body), send, self._max_input)
        await exchange.run(self._handle)
        return messages

    async def stream(self, scope: Message, body: bytes) -> AsyncIterator[Message]:
        """The answer, piece by piece; who does not want the rest closes it."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue(1)
        exchange = AsgiExchange(scope, _Received(body), messages.put, self._max_input)

        async def run() -> None:
            await exchange.run(self._handle)
            await messages.put(None)

        running = asyncio.ensure_future(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


class _Received:
    """What an application receives of a body that is there; who leaves has all else cancelled."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body, "more_body": False}


def request_of(scope: Message) -> Message:
    """What is sent of a request to whoever answers it."""
    return {name: scope[name] for name in _OF_REQUESTS}


async def body_of(receive: Receive) -> bytes | None:
    """The body of a request; None if the client leaves before it is whole."""
    chunks: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


def answer(status: int, body: bytes, content_type: bytes) -> list[Message]:
    """A whole answer."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    return [
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body, "more_body": False},
    ]
