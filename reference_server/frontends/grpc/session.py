"""gRPC on one connection: passes HTTP/2 events to calls, and replies of calls to HTTP/2.

Without a socket: bytes enter by `receive` and leave by `write`. Used on the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from reference_server.codecs.proto_wire import Parts
from reference_server.core.backlog import Intake
from reference_server.frontends.connections import (
    ClientTimeouts,
    Phase,
    Report,
    Wait,
    report_nothing,
)
from reference_server.frontends.grpc import headers, messages
from reference_server.frontends.grpc.calls import CallFailed, Method, Run, Status
from reference_server.frontends.grpc.headers import MalformedHeaders, RequestHeaders
from reference_server.frontends.grpc.http2.connection import Http2Connection
from reference_server.frontends.grpc.http2.frames import ErrorCode
from reference_server.frontends.grpc.http2.header_blocks import Fields
from reference_server.frontends.grpc.http2.receiving import (
    ConnectionFailed,
    DataReceived,
    PingReceived,
    PongReceived,
    RequestEnded,
    RequestStarted,
    StreamEnded,
)
from reference_server.frontends.grpc.http2.sending import Part
from reference_server.frontends.grpc.keepalive import Action, Keepalive, PingStrikes
from reference_server.frontends.grpc.served_call import Clock, ServedCall
from reference_server.options import GrpcOptions, TimeLimits

_KEEPALIVE_PING = b"keepaliv"
_LAST_PING = b"lastping"
#: With more unread bytes of replies than this, a client's further requests wait.
_MOST_UNREAD = 1 << 26
#: With more bytes of unary requests in flight than this, a client gets no further flow-control
#: window. Requests of less than `_COUNTED` bytes are not counted.
_MOST_REQUEST_BYTES = 1 << 26
_COUNTED = 1 << 16
#: From this size, the next bytes of a message are read directly into its buffer, without a copy.
_LONG_PIECE = 1 << 16


class Session:
    """The calls of one connection. Its output starts with the server's HTTP/2 settings.

    Args:
        table: the methods by full name.
        options: channel options.
        clock: the event loop's time and timers.
        run: runs blocking work on another thread.
        write: sends bytes.
        close: called when nothing more will be sent.
        limits: time limits for the client.
        report: called when the connection or a call ends abnormally.
        intake: the memory budget for long messages.
    """

    def __init__(
        self,
        table: Mapping[str, Method],
        options: GrpcOptions,
        clock: Clock,
        run: Run,
        write: Callable[[Sequence[Part]], None],
        close: Callable[[], None],
        limits: TimeLimits | None = None,
        report: Report = report_nothing,
        intake: Intake | None = None,
    ) -> None:
        self._report = report
        self._intake = intake
        self._table = table
        self._timeouts = ClientTimeouts(limits or TimeLimits())
        self._compression = options.compression
        self._clock = clock
        self._run = run
        self._write = write
        self._close = close
        self._http2 = Http2Connection()
        self._keepalive = Keepalive(options, clock.time())
        self._strikes = PingStrikes(options)
        self._calls: dict[int, ServedCall] = {}
        self._fields: Fields = ()
        self._headers: RequestHeaders | None = None  # parsed from `_fields`
        self._encoding = ""  # of replies to requests with `_headers`
        self._parked: deque[ServedCall] = deque()  # calls that wait until the client reads replies
        self._is_unparking = False
        self._request_bytes = 0
        self._is_held = False
        self._has_sent = False  # True if data was sent after the last `_reset_pings`
        self._is_receiving = False
        self._is_retiring = False
        self._is_ending = False

    def __repr__(self) -> str:
        return f"<Session {len(self._calls)} calls, {self._http2}>"

    # -- called by the transport

    def receive(self, data: memoryview) -> None:
        """Process received bytes; the memory of `data` may be reused afterwards."""
        now_s = self._clock.time()
        self._keepalive.heard(now_s)
        self._is_receiving = True
        try:
            for event in self._http2.receive(data, now_s):
                _HANDLERS[type(event)](self, event)
        finally:
            self._is_receiving = False
        self.flush()

    def opaque_bytes(self) -> int:
        """Return the number of upcoming bytes that belong to one message and need no parsing."""
        stream_id, missing = self._http2.unfinished_data
        call = self._calls.get(stream_id) if missing else None
        return 0 if call is None else min(missing, call.missing)

    def message_buffer(self) -> memoryview | None:
        """Return the buffer for the next bytes if they belong to a long message; else None.

        The bytes are still passed to `receive`.
        """
        size = self.opaque_bytes()
        if size < _LONG_PIECE:
            return None
        return self._calls[self._http2.unfinished_data[0]].buffer(size)

    def whole(self, data: memoryview) -> int:
        """Return the size of the short, complete frames at the start of `data`."""
        return self._http2.whole(data)

    def lost(self) -> None:
        """Cancel all calls: the connection is lost."""
        if self._calls:
            self._report("left", f"client disconnected with {len(self._calls)} calls in flight")
        for call in tuple(self._calls.values()):
            call.cancel()
        self._calls.clear()
        self._parked.clear()
        self._http2.lost()

    def pause(self) -> None:
        """Stop producing output: the transport's write buffer is full."""
        self._http2.pause()

    def resume(self) -> None:
        """Produce output again."""
        self._http2.resume()
        self.flush()

    def flush(self) -> None:
        """Send pending output; then close if the connection ends and no stream is open."""
        if self._is_receiving:
            return
        output = self._http2.take_output()
        if output:
            self._write(output)
        for stream_id, unsent in self._http2.take_progress():
            call = self._calls.get(stream_id)
            if call is not None:
                call.sent(unsent)
        if self._parked and not self._is_unparking:
            self._unpark()
        if self._is_ending and not self._http2.open_streams:
            self._close()

    def keep_alive(self) -> float | None:
        """Ping a silent client if that is due.

        Returns:
            The seconds until the next call; None if the client did not answer a ping in time.
        """
        now_s = self._clock.time()
        self._reset_pings()
        action = self._keepalive.action(now_s, has_calls=bool(self._calls))
        if action is Action.GIVE_UP:
            self._report("silent", "keepalive timeout: no answer to a ping")
            return None
        if action is Action.PING:
            self._http2.ping(_KEEPALIVE_PING)
            self.flush()
        return self._keepalive.next_s(now_s) - now_s

    def check_timeouts(self, unread: int, now_s: float) -> bool:
        """End calls whose client has exceeded a time limit. Retire an idle connection.

        Args:
            unread: bytes in the transport's write buffer.
            now_s: the time in seconds.

        Returns:
            True if the whole connection has to be aborted.
        """
        for phase, stream_id, _ in self._timeouts.expired(self._waits(unread), now_s):
            call = self._calls.get(stream_id)
            if not (phase is Phase.REQUEST and self._is_retiring):  # already reported
                self._report(phase.reason, phase.value)
            if phase is Phase.READING and stream_id:
                self._http2.reset(stream_id, ErrorCode.CANCEL)
                self._cancelled(stream_id)
            elif phase is Phase.BODY and call is not None:
                call.time_out()
            elif phase is Phase.REQUEST and not self._is_retiring:
                self.retire()
            else:
                return True
        self.flush()
        return False

    def _waits(self, unread: int) -> Iterator[Wait]:
        http2 = self._http2
        if unread:
            yield Wait(Phase.READING, 0, unread)
        if not http2.is_greeted or http2.unfinished_block:
            yield Wait(Phase.HEAD, http2.unfinished_block)
        elif not http2.open_streams:
            yield Wait(Phase.REQUEST, http2.opened)
        for stream_id, waiting in http2.unread():
            yield Wait(Phase.READING, stream_id, waiting)
        for stream_id, call in self._calls.items():
            received = call.received
            if received is not None:
                yield Wait(Phase.BODY, stream_id, received)

    # -- the end

    def retire(self) -> None:
        """End the connection after its calls and the requests that were already sent."""
        self._is_retiring = True
        # Two GOAWAY frames (RFC 9113, section 6.8), so that requests already sent are served.
        self._http2.announce_end()
        self._http2.ping(_LAST_PING)  # the answer follows all earlier requests
        self.flush()

    def stop(self) -> None:
        """Accept no new calls and no new requests on streams, then end the connection."""
        self._http2.end()
        self._is_ending = True
        for call in tuple(self._calls.values()):
            call.stop()
        self.flush()

    # -- events of the client

    def _on_request(self, event: RequestStarted) -> None:
        stream_id, fields, ended = event
        try:
            # Repeated headers of a client are the identical object.
            if fields is not self._fields or self._headers is None:
                self._headers = None
                self._headers, self._fields = headers.read_request(fields), fields
                self._encoding = headers.response_encoding(
                    self._compression, self._headers.accepted
                )
            request = self._headers
            method = self._table.get(request.path)
            if method is None:
                raise CallFailed(Status.UNIMPLEMENTED)
        except MalformedHeaders as error:
            self._http2.reset(stream_id, error.code)
            return
        except CallFailed as error:
            self.fail(stream_id, error.status, error.message, opened=False)
            return
        call = self._calls[stream_id] = ServedCall(
            self, stream_id, request, self._encoding, self._run, self._intake
        )
        call.begin(method, self._clock)
        if ended:
            call.half_close()

    def _on_data(self, event: DataReceived) -> None:
        call = self._calls.get(event.stream_id)
        if call is not None:
            if self._http2.answered_bytes > _MOST_UNREAD and not call.is_parked:
                call.park()
                self._parked.append(call)
                self._update_flow()
            call.receive(event.data)
            if event.ended:
                call.half_close()
            if call.request_bytes >= _COUNTED and not call.is_counted:
                call.is_counted = event.stream_id in self._calls
                if call.is_counted:
                    self._request_bytes += call.request_bytes
                    self._update_flow()

    def _update_flow(self) -> None:
        """Stop or resume granting flow-control window, as requests and unread replies require."""
        part = 0.5 if self._is_held else 1
        held = bool(self._parked) or self._request_bytes > _MOST_REQUEST_BYTES * part
        if held is not self._is_held:
            self._is_held = held
            self._http2.hold_all(held=held)

    def _unpark(self) -> None:
        """Process the waiting requests of a client that has read enough of its replies."""
        if self._http2.answered_bytes > _MOST_UNREAD:
            return
        self._is_unparking = True
        while self._parked and self._http2.answered_bytes <= _MOST_UNREAD:
            self._parked.popleft().unpark()
        self._is_unparking = False
        self._update_flow()
        self.flush()

    def _on_end(self, event: RequestEnded) -> None:
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.half_close()

    def _on_stream_end(self, event: StreamEnded) -> None:
        if event.stream_id in self._calls:
            self._report("cancelled", "call cancelled before the response was sent")
            self._cancelled(event.stream_id)

    def _cancelled(self, stream_id: int) -> None:
        call = self._forget(stream_id)
        if call is not None:
            call.cancel()

    def _forget(self, stream_id: int) -> ServedCall | None:
        """Remove an ended call; resume the flow of requests if the call's size had stopped it."""
        call = self._calls.pop(stream_id, None)
        if call is not None and call.is_counted:
            self._request_bytes -= call.request_bytes
            self._update_flow()
        return call

    def _on_ping(self, _: PingReceived) -> None:
        self._reset_pings()
        if self._strikes.count_ping(self._clock.time(), has_calls=bool(self._calls)):
            self._report("pings", "too many pings")
            self._http2.end(ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
            self._write(self._http2.take_output())
            self._close()

    def _on_pong(self, event: PongReceived) -> None:
        if event.payload == _LAST_PING and not self._is_ending:
            self._http2.end()
            self._is_ending = True

    def _on_failure(self, event: ConnectionFailed) -> None:
        self._report(event.reason.partition(":")[0].lower(), event.reason)
        self._is_ending = True

    # -- called by calls

    def reply(self, stream_id: int, encoding: str, body: Parts) -> None:
        """Answer a call with one framed message, and end it with status OK."""
        self._has_sent = True
        self._http2.reply(stream_id, headers.OPENING[encoding], body, headers.OK_TRAILERS)
        self._ended(stream_id)

    def open(self, stream_id: int, encoding: str) -> None:
        """Start the response of a call with several messages."""
        self._http2.headers(stream_id, headers.OPENING[encoding])

    def send(self, stream_id: int, encoding: str, message: Parts) -> int:
        """Send a message. Return the number of bytes that wait for the client."""
        self._has_sent = True
        unsent = self._http2.data(stream_id, *messages.framed(message, encoding))
        self.flush()
        return unsent

    def hold(self, stream_id: int, *, held: bool) -> None:
        """Stop or resume granting flow-control window to the call's client."""
        self._http2.hold(stream_id, held=held)
        self.flush()

    def finish(self, stream_id: int) -> None:
        """End a call with several messages with status OK."""
        self._has_sent = True
        self._http2.finish(stream_id, headers.OK_TRAILERS)
        self._ended(stream_id)

    def fail(self, stream_id: int, status: Status, message: str, *, opened: bool) -> None:
        """End a call with an error; `opened` if its response has started."""
        self._has_sent = True
        self._http2.finish(stream_id, headers.failure(status, message, opened=opened))
        self._ended(stream_id)

    def _reset_pings(self) -> None:
        """Allow pings again on both sides once a response was sent."""
        if self._has_sent:
            self._has_sent = False
            self._keepalive.answered()
            self._strikes.answered()

    def _ended(self, stream_id: int) -> None:
        self._forget(stream_id)
        self.flush()


_HANDLERS: dict[type, Callable[[Session, Any], None]] = {
    RequestStarted: Session._on_request,
    DataReceived: Session._on_data,
    RequestEnded: Session._on_end,
    StreamEnded: Session._on_stream_end,
    PingReceived: Session._on_ping,
    PongReceived: Session._on_pong,
    ConnectionFailed: Session._on_failure,
}
