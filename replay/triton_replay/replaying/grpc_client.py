"""gRPC connections of a replay: recorded calls, and streams with their recorded timing."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import quote

import grpc
import grpc.aio

from triton_replay.addresses import Address
from triton_replay.capture.reader import Exchange
from triton_replay.capture.records import Request, Response, StreamMessage
from triton_replay.replaying.answers import REDACTED_VALUE, NotAnswered
from triton_replay.wire.bodies import Body, Headers
from triton_replay.wire.grpc_messages import PREFIX, STREAMING, with_prefix

_PRINTABLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if code != ord("%"))
_OF_THE_CONNECTION: Final = frozenset(("content-type", "te", "user-agent", "grpc-timeout"))
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Channels to one address would share a connection otherwise.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
_LIBRARY_ERRORS: Final = (
    "failed to connect",
    "Socket closed",
    "recvmsg",
    "sendmsg",
    "GOAWAY",
    "Broken pipe",
    "Connection reset",
)
"""Starts of error texts that gRPC's library itself reports with status UNAVAILABLE."""


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
        self._channel = grpc.aio.insecure_channel(str(server), options=_OPTIONS)

    async def open(self) -> None:
        """Connect. Raise NotAnswered if that takes longer than 0.1 s."""
        try:
            await asyncio.wait_for(self._channel.channel_ready(), 0.1)
        except asyncio.TimeoutError as error:
            raise NotAnswered("no connection") from error

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def send(self, exchange: Exchange) -> Response:
        """Make a call and return its response. Raise NotAnswered without one."""
        request = exchange.request
        metadata = _metadata(request, self._headers)
        streaming = request.target.endswith(STREAMING)
        if streaming:
            method = self._channel.stream_stream(request.target)
            call = method(self._messages(exchange), metadata=metadata, timeout=self._timeout)
        else:
            method = self._channel.unary_unary(request.target)
            call = method(bytes(request.body[PREFIX:]), metadata=metadata, timeout=self._timeout)
        body = b""
        try:
            if streaming:
                async for message in call:
                    self._put(_message(request.number, False, self._clock(), with_prefix(message)))
            else:
                body = with_prefix(await call)
        except grpc.aio.AioRpcError as error:
            self._check_response(error)
        end = self._clock()
        code, details = await call.code(), await call.details()
        trailers = [("grpc-status", str(code.value[0]))]
        if details:
            # Encoded as on the wire and in a recording: printable ASCII as it is, other bytes
            # percent-encoded.
            trailers.append(("grpc-message", quote(details, safe=_PRINTABLE)))
        return Response(
            number=request.number,
            at=end,
            end=end,
            status=200,
            headers=_pairs(await call.initial_metadata()),
            body_size=len(body),
            body=body,
            trailers=(*trailers, *_pairs(await call.trailing_metadata())),
        )

    def _check_response(self, error: grpc.aio.AioRpcError) -> None:
        """Raise NotAnswered unless the error is a response of the server."""
        details = error.details() or ""
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise NotAnswered(f"no response within {self._timeout:g} s") from error
        if error.code() == grpc.StatusCode.UNAVAILABLE and details.startswith(_LIBRARY_ERRORS):
            raise NotAnswered(f"no connection: {details[:200]}") from error

    async def _messages(self, exchange: Exchange) -> AsyncIterator[bytes]:
        """Yield the client's messages of a stream, each at its recorded time after the first."""
        start = self._clock()
        request = exchange.request
        yield bytes(request.body[PREFIX:])
        for message in exchange.messages:
            if not message.sent:
                continue
            if self._speed is not None:
                wait = (message.at - request.at) / self._speed - (self._clock() - start)
                await asyncio.sleep(max(wait, 0) / 1e9)
            self._put(_message(request.number, True, self._clock(), message.body))
            yield bytes(message.body[PREFIX:])


def _message(number: int, sent: bool, at: int, body: Body) -> StreamMessage:
    return StreamMessage(number, sent, at, len(body), body)


def _metadata(request: Request, headers: Headers) -> tuple[tuple[str, str | bytes], ...]:
    """Return the recorded metadata, without those that gRPC's library sets."""
    given = {name.lower(): value for name, value in headers}
    kept = [
        (name, _decoded(value) if name.endswith("-bin") else value)
        for name, value in request.headers
        if name not in given
        and name not in _OF_THE_CONNECTION
        and value != REDACTED_VALUE
        and not name.startswith("grpc-")
    ]
    return (*kept, *given.items())


def _decoded(value: str) -> bytes:
    """Decode binary metadata, whose base64 has no padding on the wire."""
    return base64.b64decode(value + "=" * (-len(value) % 4))


def _pairs(metadata: Any) -> Headers:  # noqa: ANN401  of grpc, which has no types
    pairs = metadata or ()
    return tuple(
        (str(name), value if isinstance(value, str) else value.hex()) for name, value in pairs
    )
