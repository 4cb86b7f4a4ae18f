"""gRPC calls of a replay, with a server in this process."""

import asyncio
import gzip
import itertools
import math
import struct
from dataclasses import replace

import grpc
import pytest
import uvloop
from replay.serving import listening
from support.http2 import GOAWAY, RST_STREAM, frame, message, settings
from support.servers import free_ports

from triton_replay.addresses import Address
from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request, StreamMessage
from triton_replay.replaying.clients import GrpcConnection, NotAnswered, _deadline
from triton_replay.wire.grpc_messages import split_messages, with_prefix

UNARY, STREAM = "/inference.GRPCInferenceService/ModelInfer", "/s.S/ModelStreamInfer"


class Handler(grpc.GenericRpcHandler):
    """Returns its messages; `fail` fails."""

    def __init__(self):
        self.metadata = []
        self.active = self.most = self.remaining = 0

    def service(self, details):
        self.metadata.append(details.invocation_metadata)
        if details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self.stream)
        return grpc.unary_unary_rpc_method_handler(self.unary)

    async def unary(self, request, context):
        if request == b"fail":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no 模型: 100%")
        self.remaining = context.time_remaining()
        self.active += 1
        self.most = max(self.most, self.active)
        await asyncio.sleep(0)  # other calls may start
        self.active -= 1
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


def asked(*calls, port=None, headers=(), options=()):
    """Make calls concurrently; return the first response, the streams' messages, the handler."""

    async def send():
        handler, records = Handler(), []
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), *options])
        server.add_generic_rpc_handlers((handler,))
        bound = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        address = Address("127.0.0.1", port or bound)
        clock = itertools.count(1).__next__
        client = GrpcConnection(address, clock, records.append, headers, 60, None)
        try:
            responses = await asyncio.gather(*map(client.send, calls))
            return responses[0], records, handler
        finally:
            client.close()
            await server.stop(None)

    return uvloop.run(send())


def test_a_call_returns_message_status_and_metadata():
    recorded = (("content-type", "application/grpc"), ("x-a", "1"), ("x-key", "redacted"))
    more = (("x-b-bin", "AP8"), ("grpc-timeout", "9H"))
    response, _, handler = asked(
        exchange(UNARY, b"hi", headers=recorded + more), headers=(("X-Key", "new"),)
    )
    assert bytes(response.body) == message(b"hi")
    assert response.status == 200
    assert dict(response.headers)["content-type"] == "application/grpc"
    assert response.trailers == (("grpc-status", "0"), ("grpc-message", ""), ("x-end", "1"))
    heard = dict(handler.metadata[0])
    assert (heard["x-a"], heard["x-key"], heard["x-b-bin"]) == ("1", "new", b"\0\xff")
    assert 0 < handler.remaining <= 9 * 3600


def test_an_error_status_is_a_response_with_the_text_of_the_wire():
    response, _, _ = asked(exchange(UNARY, b"fail"))
    pairs = dict((*response.headers, *response.trailers))
    assert (pairs["grpc-status"], pairs["grpc-message"]) == ("5", "no %E6%A8%A1%E5%9E%8B: 100%25")
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
    with pytest.raises(NotAnswered, match="no connection: "):
        asked(exchange(UNARY, b"hi"), port=port)


@pytest.mark.brute_force
def test_a_message_may_have_any_size():
    body = bytes(range(256)) * 2**16  # 16 MiB, in several frames
    response, _, _ = asked(exchange(UNARY, body))
    assert bytes(response.body) == message(body)


def test_compressed_messages_are_sent_as_recorded():
    sent = Request(7, 0, 0, 0, "POST", UNARY, (("grpc-encoding", "gzip"),), 0, protocol="grpc")
    body = with_prefix(gzip.compress(b"hi"), compressed=True)
    response, _, _ = asked(Exchange(replace(sent, body=body, body_size=len(body)), None))
    assert split_messages(response.body) == [b"hi"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2H", 7200), ("3M", 180), ("4S", 4), ("5m", 5e-3), ("6u", 6e-6), ("7n", 7e-9)],
)
def test_deadlines_have_units(value, seconds):
    assert _deadline((("grpc-timeout", value),)) == pytest.approx(seconds)
    assert _deadline((("grpc-timeout", value + "x"),)) == _deadline(()) == math.inf


def test_calls_wait_while_the_server_accepts_no_more():
    limit = (("grpc.max_concurrent_streams", 2),)
    response, _, handler = asked(*(exchange(UNARY, b"%d" % n) for n in range(9)), options=limit)
    assert bytes(response.body) == message(b"0")
    assert handler.most <= 2


def call(serve, timeout=60, **options):
    """Make a call to a server of raw bytes; return its response."""

    async def play():
        async with listening(serve) as (_, address):
            client = GrpcConnection(address, int, [].append, (), timeout, None)
            try:
                return await client.send(exchange(UNARY, b"hi", **options))
            finally:
                client.close()

    return asyncio.run(play())


def test_a_call_ends_at_its_recorded_deadline_or_after_the_timeout():
    received = []

    async def serve(reader, writer):
        writer.write(settings())
        received.append(await reader.read())  # to the end

    response = call(serve, headers=(("grpc-timeout", "50m"),))
    assert (response.status, response.ended) == (0, "client")
    with pytest.raises(NotAnswered, match=r"no response within 0\.05 s"):
        call(serve, timeout=0.05)
    cancelled = frame(RST_STREAM, 0, 1, struct.pack(">I", 8))
    # A busy machine may give up before the call was sent.
    assert all(cancelled in each for each in received if b"hi" in each)


def test_a_refused_call_is_sent_again():
    refusal = frame(RST_STREAM, 0, 1, struct.pack(">I", 7))
    ended = frame(RST_STREAM, 0, 3, struct.pack(">I", 2))

    async def serve(reader, writer):
        received = b""
        writer.write(settings())
        for calls, answer in ((1, refusal), (2, ended)):
            while received.count(b"hi") < calls:
                received += await reader.read(2**16)
            writer.write(answer)
        await writer.drain()

    with pytest.raises(NotAnswered, match="reset the call: HTTP/2 error 2"):
        call(serve)


def test_metadata_larger_than_a_frame_is_split():
    large = (("x-large", "v" * 20_000),)
    options = (("grpc.max_metadata_size", 2**20), ("grpc.absolute_max_metadata_size", 2**20))
    _, _, handler = asked(exchange(UNARY, b"hi", headers=large), options=options)
    assert dict(handler.metadata[0])["x-large"] == "v" * 20_000


@pytest.mark.parametrize(
    ("opening", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the response is not gRPC"),
        (settings() + frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)), "accepts no more calls"),
        (settings(), "the server closed the connection"),
    ],
)
def test_a_call_that_the_server_ends_raises_not_answered(opening, reason):
    async def serve(reader, writer):
        await reader.read(1)
        writer.write(opening)
        await writer.drain()

    with pytest.raises(NotAnswered, match=reason):
        call(serve)
