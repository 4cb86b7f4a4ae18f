"""gRPC over grpc.aio: carries bytes between clients and methods, and knows no message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, NoReturn

import grpc

from reference_server.core.errors import ServerError, unavailable
from reference_server.fronts.grpc.calls import Method
from reference_server.fronts.grpc.errors import STATUS
from reference_server.options import GrpcOptions

log = logging.getLogger(__name__)

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_UNLIMITED = -1


class GrpcListener:
    """Serves the methods in `table` on one port, on the loop's thread.

    `open`, then `stop_accepting` and `drained`, then `close`. What is in flight `grace_s` seconds
    after `stop_accepting` is cancelled.
    """

    def __init__(
        self, options: GrpcOptions, table: Mapping[str, Method], *, grace_s: float
    ) -> None:
        self._options = options
        self._table = table
        self._grace_s = grace_s
        self._stopped: asyncio.Future[None] | None = None
        self._server: Any = None
        self._streams: set[_StreamingCall] = set()

    async def open(self) -> None:
        """Listen. Raises ServerError UNAVAILABLE if the port is taken."""
        address = f"{self._options.address}:{self._options.port}"
        self._server = grpc.aio.server(
            handlers=[_Router(self._table, self._streams)],
            options=_channel_arguments(self._options),
        )
        try:
            self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise unavailable(f"Socket '{address}' already in use ") from error
        await self._server.start()
        log.info("Started GRPCInferenceService at %s", address)

    def stop_accepting(self) -> None:
        """Refuse new connections and calls; those in flight go on."""
        if self._server is not None and self._stopped is None:
            self._stopped = asyncio.ensure_future(self._server.stop(self._grace_s))
            for stream in tuple(self._streams):
                stream.finish()

    async def drained(self) -> None:
        """Return when no call is left."""
        if self._stopped is not None:
            await self._stopped

    def close(self) -> None:
        """Give up the port; `stop_accepting` has done so."""


def _channel_arguments(options: GrpcOptions) -> list[tuple[str, int]]:
    """The options in the words of gRPC's library."""
    arguments = [
        ("grpc.max_receive_message_length", _UNLIMITED),
        ("grpc.max_send_message_length", _UNLIMITED),
        ("grpc.so_reuseport", int(options.reuse_port)),
        ("grpc.default_compression_level", options.compression.value),
        ("grpc.keepalive_time_ms", options.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", options.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", int(options.keepalive_permit_without_calls)),
        ("grpc.http2.max_pings_without_data", options.max_pings_without_data),
        (
            "grpc.http2.min_recv_ping_interval_without_data_ms",
            options.min_recv_ping_interval_without_data_ms,
        ),
        ("grpc.http2.max_ping_strikes", options.max_ping_strikes),
    ]
    if options.max_connection_age_ms:
        arguments.append(("grpc.max_connection_age_ms", options.max_connection_age_ms))
    if options.max_connection_age_grace_ms:
        arguments.append(("grpc.max_connection_age_grace_ms", options.max_connection_age_grace_ms))
    return arguments


class _Router(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Finds the method of a call by its full name; `streams` are those that are open."""

    def __init__(self, table: Mapping[str, Method], streams: set[_StreamingCall]) -> None:
        self._handlers = {name: _handler(method, streams) for name, method in table.items()}
        self._unknown = grpc.stream_stream_rpc_method_handler(_refuse)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """The method's handler; for an unknown one, that which refuses it without a word."""
        return self._handlers.get(details.method, self._unknown)


async def _refuse(_: object, context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "")


def _handler(method: Method, streams: set[_StreamingCall]) -> grpc.RpcMethodHandler:
    if method.streams:

        async def stream(_: object, context: grpc.aio.ServicerContext) -> None:
            call = _StreamingCall(context, method)
            streams.add(call)
            try:
                await call.run()
            finally:
                streams.discard(call)

        return grpc.stream_stream_rpc_method_handler(stream)

    async def unary(message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return await _UnaryCall(context).run(method, message)

    return grpc.unary_unary_rpc_method_handler(unary)


async def _abort(context: grpc.aio.ServicerContext, error: ServerError) -> NoReturn:
    await context.abort(_CODES[STATUS[error.code]], error.message)
    raise AssertionError("abort returned")


class _MetadataCall:
    """What both kinds of calls are."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context

    def metadata(self, name: str) -> str | None:
        """The first value under `name`."""
        for key, value in self._context.invocation_metadata():
            if key == name:
                return str(value)
        return None


class _UnaryCall(_MetadataCall):
    """One message in, one message or an error out."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        super().__init__(context)
        self._message = b""
        self._ended: asyncio.Future[ServerError | None] = asyncio.get_running_loop().create_future()

    def send(self, message: bytes) -> None:
        """Keep the message, which `end` lets go."""
        self._message = message

    def end(self, error: ServerError | None = None) -> None:
        """Let the call end."""
        if not self._ended.done():
            self._ended.set_result(error)

    async def run(self, method: Method, message: bytes) -> bytes:
        """The answer to `message`; aborts the call if it is an error."""
        running = method.start(self)
        running.receive(message)
        try:
            error = await self._ended
        except asyncio.CancelledError:
            running.cancel()
            raise
        if error is not None:
            await _abort(self._context, error)
        return self._message


class _StreamingCall(_MetadataCall):
    """Messages both ways, each at its own pace."""

    def __init__(self, context: grpc.aio.ServicerContext, method: Method) -> None:
        super().__init__(context)
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()  # None is the end
        self._has_ended = False
        self._error: ServerError | None = None
        self._running = method.start(self)

    def send(self, message: bytes) -> None:
        """Queue the message."""
        if not self._has_ended:
            self._messages.put_nowait(message)

    def end(self, error: ServerError | None = None) -> None:
        """Let the call end after the messages that are queued."""
        if not self._has_ended:
            self._has_ended = True
            self._error = error
            self._messages.put_nowait(None)

    def finish(self) -> None:
        """Take nothing more from the client; what it has asked is answered."""
        self._running.half_close()

    async def run(self) -> None:
        """Carry messages until the method ends the call; aborts it if it ends with an error."""
        reading = asyncio.ensure_future(self._read())
        try:
            while (message := await self._messages.get()) is not None:
                await self._context.write(message)
        except BaseException:  # cancelled, or the client can no longer be written to
            self._running.cancel()
            raise
        finally:
            reading.cancel()
        if self._error is not None:
            await _abort(self._context, self._error)

    async def _read(self) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            self._running.receive(message)
        self._running.half_close()
