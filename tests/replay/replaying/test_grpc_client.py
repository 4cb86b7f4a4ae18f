"""gRPC calls of a replay, with a server in this process."""

import itertools

import grpc
import pytest
import uvloop
from support.http2 import message
from support.servers import free_ports

from triton_replay.addresses import Address
from triton_replay.capture.reader import Exchange
from triton_replay.capture.records import Request, StreamMessage
from triton_replay.replaying.answers import NotAnswered
from triton_replay.replaying.grpc_client import GrpcConnection

UNARY, STREAM = "/inference.GRPCInferenceService/ModelInfer", "/s.S/ModelStreamInfer"


class Handler(grpc.GenericRpcHandler):
    """Returns its messages; `fail` fails, and a stream skips the message `drop`."""

    def __init__(self):
        self.metadata = []

    def service(self, details):
        self.metadata.append(details.invocation_metadata)
        if details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self.stream)
        return grpc.unary_unary_rpc_method_handler(self.unary)

    async def unary(self, request, context):
        if request == b"fail":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no 模型: 100%")
        context.set_trailing_metadata((("x-end", "1"),))
        return request

    async def stream(self, requests, context):
        async for request in requests:
            yield request
            yield request + b"!"


def exchange(target, *bodies, headers=()):
    first, *others = map(message, bodies)
    sent = Request(7, 0, 0, 0, "POST", target, headers, len(first), first, protocol="grpc")
    later = tuple(StreamMessage(7, True, 0, len(body), body) for body in others)
    return Exchange(sent, None, later)


def asked(one, *, port=None, headers=()):
    """Return the response, the stream's messages, and the handler."""

    async def send():
        handler, records = Handler(), []
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handler,))
        bound = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        address = Address("127.0.0.1", port or bound)
        clock = itertools.count(1).__next__
        client = GrpcConnection(address, clock, records.append, headers, 60, None)
        try:
            return await client.send(one), records, handler
        finally:
            await client.close()
            await server.stop(None)

    return uvloop.run(send())


def test_a_call_returns_message_status_and_metadata():
    recorded = (("content-type", "application/grpc"), ("x-a", "1"), ("x-key", "redacted"))
    binary = (("x-b-bin", "AP8"),)
    response, _, handler = asked(
        exchange(UNARY, b"hi", headers=recorded + binary), headers=(("X-Key", "new"),)
    )
    assert bytes(response.body) == message(b"hi")
    assert response.trailers == (("grpc-status", "0"), ("x-end", "1"))
    heard = dict(handler.metadata[0])
    assert (heard["x-a"], heard["x-key"], heard["x-b-bin"]) == ("1", "new", b"\0\xff")


def test_an_error_status_is_a_response_with_the_text_of_the_wire():
    response, _, _ = asked(exchange(UNARY, b"fail"))
    assert response.trailers[:2] == (
        *(("grpc-status", "5"), ("grpc-message", "no %E6%A8%A1%E5%9E%8B: 100%25")),
    )
    assert (response.ended, bytes(response.body)) == ("complete", b"")


def test_a_stream_sends_and_records_all_messages():
    response, records, _ = asked(exchange(STREAM, b"one", b"two"))
    assert [bytes(r.body) for r in records if r.sent] == [message(b"two")]
    assert [bytes(r.body) for r in records if not r.sent] == [
        *map(message, (b"one", b"one!", b"two", b"two!")),
    ]
    assert response.trailers[0] == ("grpc-status", "0")


def test_a_missing_server_raises_not_answered():
    (port,) = free_ports(1)
    with pytest.raises(NotAnswered, match="no connection: failed to connect"):
        asked(exchange(UNARY, b"hi"), port=port)
