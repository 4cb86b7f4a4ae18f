"""gRPC on one connection: HTTP/2 events to calls of methods, and what these say to HTTP/2.

No socket: bytes come in through `receive` and leave through `write`. All on the loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from reference_server.codecs.proto_wire import Parts
from reference_server.core.intake import Intake
from reference_server.frontends.connections import Patience, Phase, Report, Wait, report_nothing
from reference_server.frontends.grpc import headers, messages
from reference_server.frontends.grpc.calls import CallFailed, Method, Run, Status
from reference_server.frontends.grpc.headers import MalformedHeaders, RequestHeaders
from reference_server.frontends.grpc.http2.connection import Http2Connection
from reference_server.frontends.grpc.http2.frames import ErrorCode
from reference_server.frontends.grpc.http2.header_blocks import Fields
from reference_server.frontends.grpc.http2.receiving import (
    ConnectionFailed,
    DataCame,
    PingCame,
    PongCame,
    RequestBegan,
    RequestEnded,
    StreamGone,
)
from reference_server.frontends.grpc.http2.streams import Part
from reference_server.frontends.grpc.keepalive import Action, Keepalive, PingStrikes
from reference_server.frontends.grpc.served_call import Clock, ServedCall
from reference_server.options import GrpcOptions, TimeLimits

_KEEPALIVE_PING = b"keepaliv"
_LAST_PING = b"lastping"
#: Bytes of answers that a client leaves unread before nothing more is done for it.
_MOST_UNREAD = 1 << 26
#: Bytes of requests in work, apart from streams, above which a client sends no more than it may
#: already; and those that are worth counting.
_MOST_ASKED = 1 << 26
_COUNTED = 1 << 16
#: Bytes of a message that are worth a read of their own, since they are not copied.
_LONG_PIECE = 1 << 16


class Session:
    """The calls of one connection.

    `run` does on another thread what would hold up the loop; `write` sends bytes; `close` is called
    when nothing more will be sent; `report` is told what ends badly. Begins with
    the server's settings, which `receive` sends.
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
        self._patience = Patience(limits or TimeLimits())
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
        self._headers: RequestHeaders | None = None  # of `_fields`
        self._encoding = ""  # of the messages to who sends those headers
        self._parked: deque[ServedCall] = deque()  # until the client reads
        self._is_unparking = False
        self._asked_bytes = 0
        self._is_held = False
        self._has_told = False  # the client was sent something since pings were looked at
        self._is_receiving = False
        self._is_retiring = False
        self._is_ending = False

    def __repr__(self) -> str:
        return f"<Session {len(self._calls)} calls, {self._http2}>"

    # -- the transport's side

    def receive(self, data: memoryview) -> None:
        """Take bytes, which are no longer needed afterwards."""
        now_s = self._clock.time()
        self._keepalive.heard(now_s)
        self._is_receiving = True
        try:
            for event in self._http2.receive(data, now_s):
                _HANDLERS[type(event)](self, event)
        finally:
            self._is_receiving = False
        self.flush()

    def plain(self) -> int:
        """How many of the next bytes are a piece of one message, which is only to be gathered."""
        stream_id, lacking = self._http2.data_under_way
        call = self._calls.get(stream_id) if lacking else None
        return 0 if call is None else min(lacking, call.lacks)

    def place(self) -> memoryview | None:
        """Where the next bytes belong, if they are a long piece of one message; `receive` them."""
        size = self.plain()
        if size < _LONG_PIECE:
            return None
        return self._calls[self._http2.data_under_way[0]].place(size)

    def whole(self, data: memoryview) -> int:
        """How many bytes at its start are some whole frames, which are short; 0 if none are."""
        return self._http2.whole(data)

    def lost(self) -> None:
        """The connection is gone, and who waited for answers with it."""
        if self._calls:
            self._report("left", f"the client left with {len(self._calls)} calls in work")
        for call in tuple(self._calls.values()):
            call.cancel()
        self._calls.clear()
        self._parked.clear()
        self._http2.lost()

    def pause(self) -> None:
        """The transport has enough to send."""
        self._http2.pause()

    def resume(self) -> None:
        """The transport has sent what it had."""
        self._http2.resume()
        self.flush()

    def flush(self) -> None:
        """Send what is to be sent; close if that was all and the end is near."""
        if self._is_receiving:
            return
        output = self._http2.take_output()
        if output:
            self._write(output)
        for stream_id, unsent in self._http2.take_moved():
            call = self._calls.get(stream_id)
            if call is not None:
                call.moved(unsent)
        if self._parked and not self._is_unparking:
            self._unpark()
        if self._is_ending and not self._http2.open_streams:
            self._close()

    def watch(self) -> float | None:
        """Look after a client that is silent: the seconds after which to do so again.

        None if it is gone.
        """
        now_s = self._clock.time()
        self._forgive()
        action = self._keepalive.action(now_s, has_calls=bool(self._calls))
        if action is Action.GIVE_UP:
            self._report("silent", "the client did not answer a ping in time")
            return None
        if action is Action.PING:
            self._http2.ping(_KEEPALIVE_PING)
            self.flush()
        return self._keepalive.next_s(now_s) - now_s

    def look(self, unread: int, now_s: float) -> bool:
        """Give up calls whose clients take too long, or retire a connection without any.

        `unread` bytes wait in the transport. True if all of the connection is to be given up.
        """
        for phase, stream_id, _ in self._patience.over(self._waits(unread), now_s):
            call = self._calls.get(stream_id)
            if not (phase is Phase.REQUEST and self._is_retiring):  # which was told already
                self._report(phase.reason, f"{phase.value} for too long")
            if phase is Phase.READING and stream_id:
                self._http2.reset(stream_id, ErrorCode.CANCEL)
                self._cancelled(stream_id)
            elif phase is Phase.BODY and call is not None:
                call.give_up()
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
        """End the connection when its calls have ended; what the client sends meanwhile counts."""
        self._is_retiring = True
        # Twice, as RFC 9113, section 6.8 has it: requests that were on their way are served.
        self._http2.announce_end()
        self._http2.ping(_LAST_PING)  # its answer comes after all that the client sent before
        self.flush()

    def stop(self) -> None:
        """Take no new calls; end streams with what they have asked, and then the connection."""
        self._http2.end()
        self._is_ending = True
        for call in tuple(self._calls.values()):
            call.stop()
        self.flush()

    # -- what the client does

    def _on_request(self, event: RequestBegan) -> None:
        stream_id, fields, ended = event
        try:
            # A client that repeats itself gives the very same fields.
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
        except MalformedHeaders as fault:
            self._http2.reset(stream_id, fault.code)
            return
        except CallFailed as failure:
            self.fail(stream_id, failure.status, failure.message, opened=False)
            return
        call = self._calls[stream_id] = ServedCall(
            self, stream_id, request, self._encoding, self._run, self._intake
        )
        call.begin(method, self._clock)
        if ended:
            call.half_close()

    def _on_data(self, event: DataCame) -> None:
        call = self._calls.get(event.stream_id)
        if call is not None:
            if self._http2.answered_bytes > _MOST_UNREAD and not call.is_parked:
                call.park()
                self._parked.append(call)
                self._settle()
            call.receive(event.data)
            if event.ended:
                call.half_close()
            if call.asked_bytes >= _COUNTED and not call.is_counted:
                call.is_counted = event.stream_id in self._calls
                if call.is_counted:
                    self._asked_bytes += call.asked_bytes
                    self._settle()

    def _settle(self) -> None:
        """Let the client send on, or not: by what it asked for, and what it has not read."""
        part = 0.5 if self._is_held else 1
        held = bool(self._parked) or self._asked_bytes > _MOST_ASKED * part
        if held is not self._is_held:
            self._is_held = held
            self._http2.hold_all(held=held)

    def _unpark(self) -> None:
        """Do what was asked for by a client that had not read, as far as it has read since."""
        if self._http2.answered_bytes > _MOST_UNREAD:
            return
        self._is_unparking = True
        while self._parked and self._http2.answered_bytes <= _MOST_UNREAD:
            self._parked.popleft().unpark()
        self._is_unparking = False
        self._settle()
        self.flush()

    def _on_end(self, event: RequestEnded) -> None:
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.half_close()

    def _on_gone(self, event: StreamGone) -> None:
        if event.stream_id in self._calls:
            self._report("cancelled", "a call that had no answer yet")
            self._cancelled(event.stream_id)

    def _cancelled(self, stream_id: int) -> None:
        call = self._forget(stream_id)
        if call is not None:
            call.cancel()

    def _forget(self, stream_id: int) -> ServedCall | None:
        """A call is over, which may let the client go on."""
        call = self._calls.pop(stream_id, None)
        if call is not None and call.is_counted:
            self._asked_bytes -= call.asked_bytes
            self._settle()
        return call

    def _on_ping(self, _: PingCame) -> None:
        self._forgive()
        if self._strikes.is_too_much(self._clock.time(), has_calls=bool(self._calls)):
            self._report("pings", "the client pinged more often than it may")
            self._http2.end(ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
            self._write(self._http2.take_output())
            self._close()

    def _on_pong(self, event: PongCame) -> None:
        if event.payload == _LAST_PING and not self._is_ending:
            self._http2.end()
            self._is_ending = True

    def _on_failure(self, event: ConnectionFailed) -> None:
        self._report(event.reason.partition(":")[0].lower(), event.reason)
        self._is_ending = True

    # -- what the calls say

    def reply(self, stream_id: int, encoding: str, body: Parts) -> None:
        """Answer a call with one message, which is framed, and end it well."""
        self._has_told = True
        self._http2.reply(stream_id, headers.OPENING[encoding], body, headers.OK_TRAILERS)
        self._ended(stream_id)

    def open(self, stream_id: int, encoding: str) -> None:
        """Begin the response of a call that has several messages."""
        self._http2.headers(stream_id, headers.OPENING[encoding])

    def send(self, stream_id: int, encoding: str, message: Parts) -> int:
        """Send one of them; how many bytes of them wait for the client now."""
        self._has_told = True
        unsent = self._http2.data(stream_id, *messages.framed(message, encoding))
        self.flush()
        return unsent

    def hold(self, stream_id: int, *, held: bool) -> None:
        """Have its client send no more than it may already, or go on."""
        self._http2.hold(stream_id, held=held)
        self.flush()

    def finish(self, stream_id: int) -> None:
        """End such a call well."""
        self._has_told = True
        self._http2.finish(stream_id, headers.OK_TRAILERS)
        self._ended(stream_id)

    def fail(self, stream_id: int, status: Status, message: str, *, opened: bool) -> None:
        """End a call badly; `opened` if its response has begun."""
        self._has_told = True
        self._http2.finish(stream_id, headers.failure(status, message, opened=opened))
        self._ended(stream_id)

    def _forgive(self) -> None:
        """After an answer pings are no idle talk, on either side."""
        if self._has_told:
            self._has_told = False
            self._keepalive.answered()
            self._strikes.answered()

    def _ended(self, stream_id: int) -> None:
        self._forget(stream_id)
        self.flush()


_HANDLERS: dict[type, Callable[[Session, Any], None]] = {
    RequestBegan: Session._on_request,
    DataCame: Session._on_data,
    RequestEnded: Session._on_end,
    StreamGone: Session._on_gone,
    PingCame: Session._on_ping,
    PongCame: Session._on_pong,
    ConnectionFailed: Session._on_failure,
}
