"""One HTTP/1.1 connection: receives requests, and writes the replies in order.

Requests of one connection are handled one after the other, as in Triton; pipelined requests wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from reference_server.core.backlog import Intake
from reference_server.frontends.connections import (
    ClientTimeouts,
    Incoming,
    Phase,
    Report,
    Wait,
    report_nothing,
)
from reference_server.frontends.event_loop import SHARE_S
from reference_server.frontends.http import status_codes
from reference_server.frontends.http.origins import is_loopback
from reference_server.frontends.http.reading import KnownHeads, RequestReader
from reference_server.frontends.http.request import (
    Header,
    Part,
    Request,
    RequestHead,
    chunked_reply_headers,
    reply_headers,
)
from reference_server.options import TimeLimits

_NOTHING = memoryview(b"")
#: Reading pauses at this number of waiting requests.
_MAX_PIPELINED = 32
#: Reading pauses at this number of bytes in the waiting requests' bodies.
_MAX_PIPELINED_BYTES = 1 << 20
#: A reply up to this size is joined into one buffer: that costs less than sending several buffers.
_JOINED_BYTES = 1 << 14


class HttpConnection(asyncio.BufferedProtocol):
    """One client's connection. Used on the event loop's thread.

    No bytes are read from a client that does not read its replies.

    Args:
        handle: answers a complete request.
        call_soon: schedules a call for the next loop iteration.
        scratch: a read buffer shared by all connections; its content is consumed before the next
            read.
        opened: called when the connection is made.
        closed: called when the connection is lost.
        max_input: the limit in bytes for bodies of JSON or raw tensors; longer bodies are not kept.
        clock: the time in seconds.
        limits: time limits for the client.
        heads: the heads that the port has parsed so far.
        report: called when the connection ends abnormally.
        intake: the memory budget for long bodies.
    """

    def __init__(
        self,
        handle: Callable[[Request], None],
        call_soon: Callable[[Callable[[], None]], object],
        scratch: memoryview,
        opened: Callable[[HttpConnection], None],
        closed: Callable[[HttpConnection], None],
        max_input: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        limits: TimeLimits | None = None,
        heads: KnownHeads | None = None,
        report: Report = report_nothing,
        intake: Intake | None = None,
    ) -> None:
        self._report = report
        self._timeouts = ClientTimeouts(limits or TimeLimits())
        self._handle = handle
        self._clock = clock
        self._call_soon = call_soon
        self._scratch = scratch
        self._opened = opened
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._current: Request | None = None  # the request being handled
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0  # in the bodies of `_waiting`
        self._is_crowded = False  # `_waiting` is full
        self._rejected: tuple[Request, str] | None = None  # the last request, and its error
        self._advancing = False
        self._is_unread = False  # the transport's write buffer is full
        self._closing = False
        self._reader = RequestReader(self, max_input, heads or KnownHeads(), intake)
        self._incoming = Incoming(self._take, self._reader.opaque_bytes, call_soon, clock)

    @property
    def is_idle(self) -> bool:
        """True if no request is handled or waiting."""
        return self._current is None and not self._waiting and self._rejected is None

    @property
    def is_local(self) -> bool:
        """True if the client reached the server at a loopback address."""
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        return name is not None and is_loopback(str(name[0]))

    def close(self) -> None:
        """Accept no more requests, and close after the replies to those in flight."""
        self._closing = True
        if self.is_idle:
            self._end()

    def check_timeouts(self, now_s: float) -> None:
        """End the connection if its client has exceeded a time limit."""
        expired = self._timeouts.expired(self._waits(), now_s)
        if expired and self._transport is not None:
            phase = expired[0].phase
            self._report(phase.reason, phase.value)
            self._transport.abort()

    def _waits(self) -> Sequence[Wait]:
        if self._transport is None:
            return ()
        unread = self._transport.get_write_buffer_size()
        if unread:
            return (Wait(Phase.READING, 0, unread),)
        if not self.is_idle and not self._closing:
            return ()  # the client waits for the server
        return (self._reader.missing,)

    def _end(self) -> None:
        """Close after everything is sent. Further bytes of the client are ignored."""
        self._incoming.end()
        if self._transport is not None:
            self._transport.close()

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._incoming.begin(self._transport)
        self._opened(self)
        if self._closing:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._incoming.end()
        self._reader.end()
        if self._current is not None:
            self._report("left", "client disconnected before the response was sent")
        self._forget_waiting()
        self._cancel_current()
        self._closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        body = self._reader.body_buffer
        return self._scratch if body is None else body

    def buffer_updated(self, nbytes: int) -> None:
        if self._reader.body_buffer is None:
            self._incoming.receive(self._scratch[:nbytes])
        else:
            self._reader.filled(nbytes)
            self._advance()
            if self._waiting:
                self._update_reading()

    def _take(self, data: memoryview) -> None:
        self._reader.take(data)
        self._advance()
        if self._waiting:
            self._update_reading()

    def _update_reading(self) -> None:
        """Pause or resume reading, as unread replies and waiting requests require."""
        self._is_crowded = (
            len(self._waiting) >= _MAX_PIPELINED or self._waiting_bytes >= _MAX_PIPELINED_BYTES
        )
        if self._is_crowded or self._is_unread:
            self._incoming.hold()
        else:
            self._incoming.release()

    def pause_writing(self) -> None:
        self._is_unread = True
        self._update_reading()
        self._update_backlog()

    def resume_writing(self) -> None:
        self._is_unread = False
        self._update_backlog()
        self._advance()
        self._update_reading()

    def eof_received(self) -> bool:
        # A client that closes cannot be distinguished from a client that only stops sending: no
        # further request is started, and the current request is answered.
        self._closing = True
        self._forget_waiting()
        self._cancel_current()
        return not self.is_idle

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def _cancel_current(self) -> None:
        current = self._current
        if current is not None and current.cancellation is not None:
            current.cancellation.cancel()
            if current.backlog is not None:
                current.backlog.close()

    def _update_backlog(self) -> None:
        current = self._current
        if current is not None and current.backlog is not None and self._transport is not None:
            unread = self._transport.get_write_buffer_size() if self._is_unread else 0
            current.backlog.keep(unread)

    # -- called by the reader

    @property
    def is_closing(self) -> bool:
        return self._closing or self._rejected is not None

    def begin(self, head: RequestHead | None = None) -> Request:
        return Request(self, head)

    def send_continue(self) -> None:
        self._write([b"HTTP/1.1 100 Continue\r\n\r\n"])

    def reject(self, request: Request, reason: str) -> None:
        """Reply with `reason` after the earlier replies, then end the connection."""
        if self._rejected is None:
            self._rejected = request, reason
        self._report("refused", reason)

    def malformed(self, reason: str) -> None:
        """End the connection after the earlier replies."""
        self._report("unreadable", reason)
        self.close()

    def complete(self, request: Request) -> None:
        """Queue a request. Requests after a rejected request are ignored."""
        if self._rejected is None:
            self._waiting.append(request)
            self._waiting_bytes += len(request.body)

    def _start(self, request: Request) -> None:
        self._current = request
        if request.method == "CONNECT" or request.url == b"*":
            self._drop()  # names no resource; Triton's library drops it too
            return
        self._handle(request)

    def _drop(self) -> None:
        """Close without a further reply; waiting requests are discarded."""
        self._forget_waiting()
        self._rejected = None
        self._end()

    # -- writing

    def reply(
        self,
        request: Request,
        status: bytes,
        parts: Sequence[Part],
        headers: Sequence[Header],
        content_type: bytes | None,
    ) -> None:
        """Write the reply to the current request, then continue with the next one."""
        self._current = None
        request.body = _NOTHING  # a reference cycle would keep it until the next collection
        if self._transport is None:
            return
        length = sum(map(len, parts))
        written = reply_headers(
            request.version, request.keep_alive, status, content_type, tuple(headers), length
        )
        if length <= _JOINED_BYTES:
            self._transport.write(b"".join((written, *parts)))
        else:
            self._transport.writelines((written, *parts))
        self._replied(request)

    def begin_chunks(
        self, request: Request, status: bytes, content_type: bytes, headers: Sequence[Header]
    ) -> None:
        """Write the headers of a chunked reply to the current request."""
        version, keep_alive = request.version, request.keep_alive
        self._write([chunked_reply_headers(version, keep_alive, status, content_type, headers)])

    def send_chunk(self, data: bytes) -> None:
        """Write one chunk of the body."""
        self._write([b"%x\r\n%b\r\n" % (len(data), data)])
        if self._is_unread:
            self._update_backlog()

    def end_chunks(self, request: Request) -> None:
        """Write the end of the body, then continue with the next request."""
        self._current = None
        request.body = _NOTHING
        if request.backlog is not None:
            request.backlog.close()
        if self._transport is not None:
            self._write([b"0\r\n\r\n"])
            self._replied(request)

    def _replied(self, request: Request) -> None:
        if not request.keep_alive:
            self._drop()
        elif not self._advancing and (self._waiting or self.is_closing):
            self._advance()

    def _advance(self) -> None:
        """Handle waiting requests until a request takes longer, or the share is used up.

        A loop, because recursion would be as deep as the number of pipelined requests.
        """
        waiting = self._waiting
        over_s = self._clock() + SHARE_S if len(waiting) > 1 else math.inf
        self._advancing = True
        try:
            while waiting and self._current is None and not self._is_unread:
                request = waiting.popleft()
                self._waiting_bytes -= len(request.body)
                self._start(request)
                if waiting and self._clock() >= over_s:
                    self._call_soon(self._advance)
                    return
        finally:
            self._advancing = False
            if self._is_crowded:
                self._update_reading()
        if self._rejected is not None and self._current is None and not waiting:
            request, reason = self._rejected
            self._current = request
            request.keep_alive = False
            request.reply_error(status_codes.BAD_REQUEST, reason, as_json=True)
        elif self._closing and self.is_idle:
            self._end()

    def _write(self, parts: Sequence[Part]) -> None:
        if self._transport is not None:
            self._transport.writelines(parts)
