"""The gRPC tap: records the calls of one proxied HTTP/2 connection.

A request is recorded when it is complete, a response when the call has ended. A stream
(ModelStreamInfer) may last for hours. Its request is therefore recorded with the first message, and
every further message in either direction becomes a separate record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from triton_replay.capture.records import Request, Response, StreamMessage
from triton_replay.recording.http_tap import ConnectionTap
from triton_replay.wire.bodies import Headers, header
from triton_replay.wire.grpc_messages import STREAMING, MessageSplitter
from triton_replay.wire.http2 import (
    DataEvent,
    Event,
    FrameReader,
    HeadersEvent,
    NotHttp2,
    ResetEvent,
)
from triton_replay.wire.http_messages import Message


@dataclass(eq=False)
class _Call:
    """A call in progress."""

    number: int
    request: Message
    response: Message
    target: str
    streaming: bool
    recorded: bool = False
    """True once the request is recorded."""
    trailers: Headers = ()
    sent: MessageSplitter = field(default_factory=MessageSplitter)
    received: MessageSplitter = field(default_factory=MessageSplitter)


class GrpcTap(ConnectionTap):
    """Records one connection over gRPC."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._client = FrameReader(from_client=True)
        self._server = FrameReader(from_client=False)
        self._calls: dict[int, _Call] = {}

    def sent(self, data: bytes) -> None:
        """Read bytes from the client."""
        self._read(self._client, data, self._of_client)

    def answered(self, data: bytes) -> None:
        """Read bytes from the server."""
        self._read(self._server, data, self._of_server)

    def closed(self, by: str) -> None:
        """End all calls after "client" or "server" closed the connection."""
        if self._readable:
            self._readable = False
            for stream in list(self._calls):
                self._end(stream, by)

    def _read(self, reader: FrameReader, data: bytes, take: Callable[[Event], None]) -> None:
        if not self._readable:
            return
        try:
            for event in reader.feed(data):
                take(event)
        except NotHttp2:
            self._unreadable("gRPC")

    def _of_client(self, event: Event) -> None:
        if isinstance(event, HeadersEvent) and event.stream not in self._calls:
            self._begin(event)
        call = self._calls.get(event.stream)
        if call is None:
            return
        if isinstance(event, ResetEvent):
            self._end(event.stream, "client")
            return
        if isinstance(event, DataEvent):
            if call.streaming:
                self._stream(call, call.sent.feed(event.data), sent=True)
            else:
                call.request.add(event.data)
        if event.ends and not call.recorded:
            self._put_request(call)

    def _begin(self, event: HeadersEvent) -> None:
        if not header(event.headers, "content-type").startswith("application/grpc"):
            self.sink.count("requests over HTTP/2 that are not gRPC")
            return
        now, target = self.clock(), header(event.headers, ":path")
        request = Message(self.max_body, now)
        request.headers = [pair for pair in event.headers if not pair[0].startswith(":")]
        self._calls[event.stream] = _Call(
            number=next(self.numbers),
            request=request,
            response=Message(self.max_body, now),
            target=target,
            streaming=target.endswith(STREAMING),
        )

    def _of_server(self, event: Event) -> None:
        call = self._calls.get(event.stream)
        if call is None:
            return
        if isinstance(event, ResetEvent):
            self._end(event.stream, "server")
            return
        if isinstance(event, DataEvent):
            if call.streaming:
                self._stream(call, call.received.feed(event.data), sent=False)
            else:
                call.response.add(event.data)
        elif not call.response.status:
            call.response.at = self.clock()
            call.response.status = int(header(event.headers, ":status") or 0)
            call.response.headers = [pair for pair in event.headers if pair[0] != ":status"]
        else:
            call.trailers = event.headers
        if event.ends:
            self._end(event.stream, "complete")

    def _stream(self, call: _Call, messages: Iterable[bytes], *, sent: bool) -> None:
        """Record complete messages of a stream."""
        for message in messages:
            if sent and not call.recorded:
                call.request.add(message)
                self._put_request(call)
                continue
            kept = message if len(message) <= self.max_body else b""
            record = StreamMessage(call.number, sent, self.clock(), len(message), kept)
            self.sink.put(record)

    def _put_request(self, call: _Call) -> None:
        call.recorded = True
        end, route = self.clock(), ("POST", call.target)
        request = Request.of(call.number, self.connection, call.request, end, *route)
        self.sink.put(replace(request, protocol="grpc"))

    def _end(self, stream: int, ended: str) -> None:
        call = self._calls.pop(stream)
        if not call.recorded:
            self.sink.count("incomplete requests")
            return
        if not call.response.status:
            call.response.at = self.clock()
        response = Response.of(call.number, call.response, self.clock(), ended)
        self.sink.put(replace(response, trailers=call.trailers))
