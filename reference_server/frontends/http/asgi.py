"""One request of an ASGI server: what it sends becomes a `Request`, what is answered its messages.

https://asgi.readthedocs.io/en/latest/specs/www.html, version 3.0. All on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

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
    """What a request has behind its head: its bytes, or how many they were if none was kept."""

    data: bytes
    dropped: int = 0


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], max_input: int | None
) -> Body | None:
    """The body of a request with these headers; None if the client leaves before it is whole.

    Of JSON that has more than `max_input` bytes nothing is kept, as over the server's own port.
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
    """A request and its reply. `receive` and `send` are those that the ASGI server has given."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self._request = Request(self, head_of(scope))
        self._receive = receive
        self._send = send
        self._outgoing: deque[Message] = deque()
        self._unsent = 0  # bytes of their bodies
        self._more = asyncio.Event()
        self._has_ended = False
        self._has_left = False

    async def run(self, handle: Callable[[Request], None], max_input: int | None) -> None:
        """Read the request, have it handled, and send what is answered until that is whole."""
        body = await read_body(self._receive, self._request.headers, max_input)
        if body is not None:
            await self.answer(body, handle)

    async def answer(self, body: Body, handle: Callable[[Request], None]) -> None:
        """Have the request handled, and send what is answered until that is whole.

        A client that leaves has its request cancelled.
        """
        self._request.body = memoryview(body.data)
        self._request.dropped = body.dropped
        handle(self._request)
        leaving = asyncio.ensure_future(self._notice_leaving())
        try:
            while not self._has_left and (self._outgoing or not self._has_ended):
                await self._more.wait()
                self._more.clear()
                await self._send_all()
        except OSError:  # as servers since version 2.4 tell that the client is gone
            self._leave()
        except asyncio.CancelledError:  # as others tell it
            self._leave()
            raise
        finally:
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving

    async def _notice_leaving(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        if self._has_ended and not self._outgoing:
            return
        self._has_left = True
        self._outgoing.clear()
        self._more.set()
        if self._request.cancellation is not None:
            self._request.cancellation.cancel()
        if self._request.backlog is not None:
            self._request.backlog.close()

    async def _send_all(self) -> None:
        """Send what waits; it takes as long as the client does to read."""
        while self._outgoing:
            message = self._outgoing.popleft()
            await self._send(message)
            self._unsent -= len(message.get("body", b""))
            self._tell_backlog()

    def _tell_backlog(self) -> None:
        backlog = self._request.backlog
        if backlog is not None and not (self._has_ended or self._has_left):
            backlog.keep(self._unsent)

    # -- what handlers answer

    def reply(
        self,
        request: Request,
        status: bytes,
        parts: Sequence[Part],
        headers: Sequence[Header],
        content_type: bytes | None,
    ) -> None:
        """The whole reply."""
        body = b"".join(parts)
        told = [(b"content-type", content_type or b"text/plain")]
        told += [(name.lower(), value) for name, value in headers]
        told.append((b"content-length", b"%d" % len(body)))
        self._begin(status, told)
        self._has_ended = True
        self._body(body, more=False)

    def begin_chunks(self, request: Request, status: bytes, content_type: bytes) -> None:
        """The head of a reply whose length is not known yet."""
        self._begin(status, [(b"content-type", content_type)])

    def send_chunk(self, data: bytes) -> None:
        """A piece of its body."""
        self._body(data, more=True)
        self._tell_backlog()

    def end_chunks(self, request: Request) -> None:
        """The end of it."""
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
        if not self._has_left:
            self._outgoing.append(message)
            self._more.set()


def head_of(scope: Message) -> RequestHead:
    """What a request says before its body."""
    fields: list[Header] = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        headers.setdefault(name.lower(), value)
    path = scope.get("raw_path") or scope["path"].encode()
    query = scope.get("query_string", b"")
    url = b"%b?%b" % (path, query) if query else path
    return RequestHead(url, scope["method"], "1.1", True, headers, fields, {})
