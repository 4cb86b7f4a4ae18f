"""gRPC connections of a replay: recorded calls, and streams with their recorded timing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from triton_replay.addresses import Address
from triton_replay.capture.reader import Exchange
from triton_replay.capture.records import Request, Response, StreamMessage
from triton_replay.replaying.answers import REDACTED_VALUE, NotAnswered
from triton_replay.wire.bodies import Body, Headers, header
from triton_replay.wire.grpc_channel import ActiveCall, CallFailed, GrpcCall, GrpcChannel
from triton_replay.wire.grpc_messages import STREAMING, MessageSplitter

_OF_THE_CONNECTION: Final = frozenset(("content-type", "te", "user-agent", "grpc-timeout"))


class GrpcConnection:
    """A connection to the server for concurrent calls.

    Args:
        server: Address of the server.
        clock: Returns nanoseconds since the start of the replay.
        put: Receives the messages of streams in both directions.
        headers: Metadata that replace recorded ones of the same name.
        timeout: Seconds until a call is cancelled.
        speed: Factor of the speed within a stream; None sends without pauses.
    """

    def __init__(
        self,
        server: Address,
        clock: Callable[[], int],
        put: Callable[[StreamMessage], None],
        headers: Headers,
        timeout: float,
        speed: float | None,
    ) -> None:
        self._clock = clock
        self._put = put
        self._headers = headers
        self._timeout = timeout
        self._speed = speed
        self._channel = GrpcChannel(server)

    async def open(self) -> None:
        """Connect. Raise NotAnswered if that fails."""
        try:
            await self._channel.open()
        except CallFailed as error:
            raise NotAnswered(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    async def send(self, exchange: Exchange) -> Response:
        """Make a call and return its response. Raise NotAnswered without one."""
        try:
            call = await asyncio.wait_for(self._call(exchange), self._timeout)
        except asyncio.TimeoutError as error:
            raise NotAnswered(f"no response within {self._timeout:g} s") from error
        except CallFailed as error:
            raise NotAnswered(str(error)) from error
        end = self._clock()
        return Response(
            number=exchange.request.number,
            at=end,
            end=end,
            status=int(header(call.headers, ":status") or 0),
            headers=tuple(pair for pair in call.headers if pair[0] != ":status"),
            body_size=len(call.body),
            body=call.body,
            trailers=call.trailers,
        )

    async def _call(self, exchange: Exchange) -> GrpcCall:
        request = exchange.request
        metadata = _metadata(request, self._headers)
        if not request.target.endswith(STREAMING):
            active = await self._channel.start(request.target, metadata)
            active.send(request.body, ends=True)
            return await active.response()
        splitter = MessageSplitter()

        def receive(data: bytes) -> None:
            for message in splitter.feed(data):
                self._put(_message(request.number, False, self._clock(), message))

        active = await self._channel.start(request.target, metadata, receive)
        sending = asyncio.ensure_future(self._send_messages(exchange, active))
        try:
            return await active.response()
        finally:
            sending.cancel()

    async def _send_messages(self, exchange: Exchange, active: ActiveCall) -> None:
        """Send the client's messages of a stream, each at its recorded time after the first."""
        start = self._clock()
        request = exchange.request
        later = [message for message in exchange.messages if message.sent]
        active.send(request.body, ends=not later)
        for left, message in enumerate(later, 1 - len(later)):
            if self._speed is not None:
                wait = (message.at - request.at) / self._speed - (self._clock() - start)
                await asyncio.sleep(max(wait, 0) / 1e9)
            self._put(_message(request.number, True, self._clock(), message.body))
            active.send(message.body, ends=not left)


def _message(number: int, sent: bool, at: int, body: Body) -> StreamMessage:
    return StreamMessage(number, sent, at, len(body), body)


def _metadata(request: Request, headers: Headers) -> Headers:
    """Return the recorded metadata, without those of the connection, and the given ones."""
    given = {name.lower() for name, _ in headers}
    kept = (
        (name, value)
        for name, value in request.headers
        if name not in given and name not in _OF_THE_CONNECTION and value != REDACTED_VALUE
    )
    return (*kept, *headers)
