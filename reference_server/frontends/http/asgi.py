"""One request of an ASGI server: converts its messages to a `Request`, and the reply to messages.

https://asgi.readthedocs.io/en/latest/specs/www.html, version 3.0. Used on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from reference_server.core.backlog import Intake
from reference_server.frontends.connections import ClientTimeouts, Phase, Wait
from reference_server.frontends.http import status_codes
from reference_server.frontends.http.origins import is_loopback
from reference_server.frontends.http.request import Body as ReceivedBody
from reference_server.frontends.http.request import (
    Header,
    Part,
    Request,
    RequestHead,
    RequestRejected,
)
from reference_server.options import TimeLimits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_BAD_REQUEST = 400
_TOO_SLOW = "body timeout"


class Body(NamedTuple):
    """The body of a request: its bytes, or their number if they were not kept."""

    data: bytes | memoryview
    dropped: int = 0


class BodyLimits(NamedTuple):
    """The limits for bodies, the same as at the server's own port.

    `max_input` is the limit in bytes for JSON and raw tensors, `intake` the memory budget of long
    bodies, and `time` has the limit for slow clients.
    """

    max_input: int | None
    intake: Intake
    time: TimeLimits


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], limits: BodyLimits
) -> Body | None:
    """Receive the body of a request with these headers.

    Args:
        receive: returns the next message of the ASGI server.
        headers: the headers by lower-case name.
        limits: the limits for the body.

    Returns:
        The body; None if the client disconnected before it was complete.

    Raises:
        RequestRejected: the memory budget is exhausted, or the client is too slow.
    """
    body = ReceivedBody(limits.intake, limits.max_input)
    timeouts = ClientTimeouts(limits.time)
    while not timeouts.expired([Wait(Phase.BODY, 0, body.received)], time.monotonic()):
        try:
            message = await asyncio.wait_for(receive(), limits.time.body_s or None)
        except asyncio.TimeoutError:
            break
        if message["type"] == "http.disconnect":
            return None
        body.receive(message.get("body", b""), headers)
        if not message.get("more_body", False):
            return Body(b"", body.received) if body.exceeds(headers) else Body(body.whole())
    raise RequestRejected(_TOO_SLOW)


def answer(
    status: int, body: bytes, content_type: bytes, headers: Iterable[Header] = ()
) -> list[Message]:
    """Return a complete reply."""
    fields = [(b"content-type", content_type), *headers, (b"content-length", b"%d" % len(body))]
    return [
        {"type": "http.response.start", "status": status, "headers": fields},
        {"type": "http.response.body", "body": body, "more_body": False},
    ]


async def reject(send: Send, error: RequestRejected) -> None:
    """Reply to a request whose body was not received; the ASGI server ends the connection."""
    text = status_codes.body(str(error))
    with contextlib.suppress(OSError):
        for message in answer(_BAD_REQUEST, text, b"application/json", [(b"connection", b"close")]):
            await _send(send, message)


async def _send(send: Send, message: Message) -> None:
    """Send a message. Raises OSError if the client is disconnected."""
    try:
        await send(message)
    except RuntimeError as error:  # of uvloop, before uvicorn notices the close
        if "closed" not in str(error):
            raise
        raise ConnectionResetError(str(error)) from error


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

    async def run(self, handle: Callable[[Request], None], limits: BodyLimits) -> None:
        """Receive the request, let `handle` answer it, and send the reply until it is complete."""
        try:
            body = await read_body(self._receive, self._request.headers, limits)
        except RequestRejected as error:
            await reject(self._send, error)
            return
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
        except asyncio.CancelledError:  # earlier versions of ASGI
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
            await _send(self._send, message)
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
        fields = ((name.lower(), value) for name, value in headers)
        self._has_ended = True
        self._unsent += len(body)
        for message in answer(_code(status), body, content_type or b"text/plain", fields):
            self._put(message)

    def begin_chunks(
        self, request: Request, status: bytes, content_type: bytes, headers: Sequence[Header]
    ) -> None:
        """Start a reply of unknown length."""
        fields = [(b"content-type", content_type), *((name.lower(), own) for name, own in headers)]
        self._put({"type": "http.response.start", "status": _code(status), "headers": fields})

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

    def _body(self, data: bytes, *, more: bool) -> None:
        self._unsent += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": more})

    def _put(self, message: Message) -> None:
        if not self._is_disconnected:
            self._outgoing.append(message)
            self._more.set()


def _code(status: bytes) -> int:
    return int(status.partition(b" ")[0])


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
