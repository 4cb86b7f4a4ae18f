"""One request of an ASGI server: converts its messages to a `Request`, and the reply to messages.

https://asgi.readthedocs.io/en/latest/specs/www.html, version 3.0. Used on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from reference_server.frontends.http.origins import is_loopback
from reference_server.frontends.http.request import (
    Header,
    Part,
    Request,
    RequestHead,
    may_be_larger,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Body(NamedTuple):
    """The body of a request: its bytes, or their number if they were not kept."""

    data: bytes
    dropped: int = 0


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], max_input: int | None
) -> Body | None:
    """Receive the body of a request with these headers.

    Args:
        receive: returns the next message of the ASGI server.
        headers: the headers by lower-case name.
        max_input: the limit in bytes for bodies of JSON or raw tensors; longer bodies are not kept.

    Returns:
        The body; None if the client disconnected before it was complete.
    """
    limit = math.inf if max_input is None else max_input
    chunks: list[bytes] = []
    size = dropped = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        more = message.get("more_body", False)
        if size <= limit or may_be_larger(headers, limit):
            chunks.append(chunk)
        else:
            chunks.clear()
            dropped = size
    return Body(chunks[0] if len(chunks) == 1 else b"".join(chunks), dropped)


class AsgiExchange:
    """A request and its reply, between an ASGI server and a handler."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self._request = Request(self, head_of(scope))
        self.is_local = is_loopback(str((scope.get("server") or ("",))[0]))
        self._receive = receive
        self._send = send
        self._outgoing: deque[Message] = deque()
        self._unsent = 0  # body bytes in `_outgoing`
        self._more = asyncio.Event()
        self._has_ended = False
        self._is_disconnected = False

    async def run(self, handle: Callable[[Request], None], max_input: int | None) -> None:
        """Receive the request, let `handle` answer it, and send the reply until it is complete."""
        body = await read_body(self._receive, self._request.headers, max_input)
        if body is not None:
            await self.answer(body, handle)

    async def answer(self, body: Body, handle: Callable[[Request], None]) -> None:
        """Let `handle` answer the request, and send the reply until it is complete.

        The request is cancelled when the client disconnects.
        """
        self._request.body = memoryview(body.data)
        self._request.dropped = body.dropped
        handle(self._request)
        disconnect = asyncio.ensure_future(self._watch_disconnect())
        try:
            while not self._is_disconnected and (self._outgoing or not self._has_ended):
                await self._more.wait()
                self._more.clear()
                await self._send_all()
        except OSError:  # ASGI 2.4 and later: the client is disconnected
            self._disconnected()
        except asyncio.CancelledError:  # earlier versions
            self._disconnected()
            raise
        finally:
            disconnect.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await disconnect

    async def _watch_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._disconnected()

    def _disconnected(self) -> None:
        if self._has_ended and not self._outgoing:
            return
        self._is_disconnected = True
        self._outgoing.clear()
        self._more.set()
        if self._request.cancellation is not None:
            self._request.cancellation.cancel()
        if self._request.backlog is not None:
            self._request.backlog.close()

    async def _send_all(self) -> None:
        """Send the queued messages, as fast as the client reads."""
        while self._outgoing:
            message = self._outgoing.popleft()
            await self._send(message)
            self._unsent -= len(message.get("body", b""))
            self._update_backlog()

    def _update_backlog(self) -> None:
        backlog = self._request.backlog
        if backlog is not None and not (self._has_ended or self._is_disconnected):
            backlog.keep(self._unsent)

    # -- called by handlers

    def reply(
        self,
        request: Request,
        status: bytes,
        parts: Sequence[Part],
        headers: Sequence[Header],
        content_type: bytes | None,
    ) -> None:
        """Send the whole reply."""
        body = b"".join(parts)
        fields = [(b"content-type", content_type or b"text/plain")]
        fields += [(name.lower(), value) for name, value in headers]
        fields.append((b"content-length", b"%d" % len(body)))
        self._begin(status, fields)
        self._has_ended = True
        self._body(body, more=False)

    def begin_chunks(self, request: Request, status: bytes, content_type: bytes) -> None:
        """Start a reply of unknown length."""
        self._begin(status, [(b"content-type", content_type)])

    def send_chunk(self, data: bytes) -> None:
        """Send a piece of the body."""
        self._body(data, more=True)
        self._update_backlog()

    def end_chunks(self, request: Request) -> None:
        """End the body."""
        self._has_ended = True
        if request.backlog is not None:
            request.backlog.close()
        self._body(b"", more=False)

    def _begin(self, status: bytes, headers: list[Header]) -> None:
        code = int(status.partition(b" ")[0])
        self._put({"type": "http.response.start", "status": code, "headers": headers})

    def _body(self, data: bytes, *, more: bool) -> None:
        self._unsent += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": more})

    def _put(self, message: Message) -> None:
        if not self._is_disconnected:
            self._outgoing.append(message)
            self._more.set()


def head_of(scope: Message) -> RequestHead:
    """Return the head of the request in an ASGI scope."""
    fields: list[Header] = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        headers.setdefault(name.lower(), value)
    path = scope.get("raw_path") or scope["path"].encode()
    query = scope.get("query_string", b"")
    url = b"%b?%b" % (path, query) if query else path
    return RequestHead(url, scope["method"], "1.1", True, headers, fields, {})
