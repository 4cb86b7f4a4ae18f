"""HTTP requests with complete bodies, and replies as ASGI messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from reference_server.frontends.http.asgi import AsgiExchange, Body, Message
from reference_server.frontends.http.request import Request

#: The fields of the ASGI scope that are passed to a replica.
_REQUEST_FIELDS = ("method", "path", "raw_path", "query_string", "headers")


class Exchanges:
    """Answers requests with `handle`. Used on the event loop's thread."""

    def __init__(self, handle: Callable[[Request], None]) -> None:
        self._handle = handle

    async def whole(self, scope: Message, body: Body) -> list[Message]:
        """Return the complete reply."""
        messages: list[Message] = []

        async def send(message: Message) -> None:
            messages.append(message)

        await AsgiExchange(scope, _never_disconnects, send).answer(body, self._handle)
        return messages

    async def stream(self, scope: Message, body: Body) -> AsyncIterator[Message]:
        """Yield the reply as it is written. Closing the generator cancels the request."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue(1)
        exchange = AsgiExchange(scope, _never_disconnects, messages.put)

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


async def _never_disconnects() -> Message:
    """Wait for ever: a disconnect cancels the caller instead."""
    await asyncio.Event().wait()
    raise AssertionError("the event is never set")


def request_of(scope: Message) -> Message:
    """Return the fields of a request that are sent to a replica."""
    return {name: scope[name] for name in _REQUEST_FIELDS}


def answer(status: int, body: bytes, content_type: bytes) -> list[Message]:
    """Return a complete reply."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    return [
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body, "more_body": False},
    ]
