"""A socket between gRPC's own client and scripted methods."""

import asyncio
import gc
import random
import weakref

import grpc
import pytest
from server.support.http2 import GREETING, Peer, frames_in
from server.support.requests import PATIENCE_S
from support.http2 import ACK, DATA, GOAWAY, PING, PREFACE, SETTINGS, frame, message
from support.servers import free_ports

from reference_server.core.errors import Code, ServerError
from reference_server.frontends.grpc.calls import Method
from reference_server.frontends.grpc.transport import GrpcListener
from reference_server.options import Compression, GrpcOptions, TimeLimits


class Scripted:
    """A call whose method is scripted by a test: it records the client's steps, and replies."""

    def __init__(self):
        self.call = None
        self.received = []
        self.events = asyncio.Queue()

    def start(self, call):
        self.call = call
        self.events.put_nowait("start")
        return self

    def receive(self, message):
        self.received.append(message)
        self.events.put_nowait("message")

    def half_close(self):
        self.events.put_nowait("half close")

    def cancel(self):
        self.events.put_nowait("cancel")

    async def until(self, event):
        while await asyncio.wait_for(self.events.get(), PATIENCE_S) != event:
            pass


def talk(scenario, limits=None, most_connections=0, **options):
    """Run `scenario(script, channel, listener)` over a unary method /u and a stream /s."""

    async def run():
        script = Scripted()
        table = {"/t.T/u": Method(script.start), "/t.T/s": Method(script.start, streams=True)}
        (port,) = free_ports(1)
        listener = GrpcListener(
            GrpcOptions("127.0.0.1", port, **options),
            *(table, limits),
            most_connections=most_connections,
        )
        await listener.open()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                return await scenario(script, channel, listener)
        finally:
            listener.stop_accepting()
            await listener.drained()
            listener.close()

    return asyncio.run(run())


async def failed(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def test_messages_of_all_lengths_arrive_unchanged():
    sizes = [10, 300_000, 5, 0, 2_000_000, 100_000, 20_000, 1_000_000, 1, 65_536, 70_000]
    sent = [random.Random(size).randbytes(size) for size in sizes * 2]

    async def scenario(script, channel, listener):
        stream = channel.stream_unary("/t.T/s")(iter(sent))
        await script.until("half close")
        assert script.received == sent
        script.call.send(b"answer")
        script.call.end()
        assert await stream == b"answer"

    talk(scenario)


@pytest.mark.parametrize("code", [Code.INVALID_ARG, Code.UNSUPPORTED])
def test_an_error_is_a_status(code):
    async def scenario(script, channel, listener):
        answer = channel.unary_unary("/t.T/u")(b"")
        await script.until("message")
        script.call.end(ServerError(code, "naïve\n数字"))
        return await failed(answer)

    error = talk(scenario)
    expected = {"INVALID_ARG": "INVALID_ARGUMENT", "UNSUPPORTED": "UNIMPLEMENTED"}
    assert error.code().name == expected.get(code.name, code.name)
    assert error.details() == "naïve\n数字"


def test_a_client_that_cancels_cancels_the_call():
    async def scenario(script, channel, listener):
        answer = channel.unary_unary("/t.T/u")(b"")
        await script.until("message")
        answer.cancel()
        await script.until("cancel")
        script.call.send(b"too late")
        script.call.end()

    talk(scenario)


def test_a_stream_is_bidirectional():
    async def scenario(script, channel, listener):
        stream = channel.stream_stream("/t.T/s")()
        await script.until("start")
        script.call.send(b"before any question")
        assert await stream.read() == b"before any question"
        for sent in (b"a", b"b"):
            await stream.write(sent)
            await script.until("message")
        script.call.send(b"c")
        assert await stream.read() == b"c"
        await stream.done_writing()
        await script.until("half close")
        script.call.send(b"d")
        script.call.end()
        assert [await stream.read(), await stream.read()] == [b"d", grpc.aio.EOF]
        assert await stream.code() is grpc.StatusCode.OK
        assert script.received == [b"a", b"b"]

    talk(scenario)


def test_calls_in_flight_are_answered_when_the_server_stops():
    async def scenario(script, channel, listener):
        answer = channel.unary_unary("/t.T/u")(b"")
        await script.until("message")
        listener.stop_accepting()
        script.call.send(b"last")
        script.call.end()
        assert await answer == b"last"
        await listener.drained()
        error = await failed(channel.unary_unary("/t.T/u")(b""))
        assert error.code() is grpc.StatusCode.UNAVAILABLE

    talk(scenario)


def test_closing_the_port_cancels_calls_in_flight():
    async def scenario(script, channel, listener):
        answer = channel.unary_unary("/t.T/u")(b"")
        await script.until("message")
        listener.stop_accepting()
        listener.close()
        await script.until("cancel")
        await listener.drained()
        assert (await failed(answer)).code() is grpc.StatusCode.UNAVAILABLE

    talk(scenario)


def test_a_port_in_use_is_an_error():
    async def scenario(script, channel, listener):
        second = GrpcListener(listener._options, {})
        with pytest.raises(ServerError, match="already in use") as caught:
            await second.open()
        assert caught.value.code is Code.UNAVAILABLE

    talk(scenario)


@pytest.mark.parametrize("level", [Compression.NONE, Compression.HIGH])
def test_clients_read_compressed_messages(level):
    async def scenario(script, channel, listener):
        answer = channel.unary_unary("/t.T/u")(b"", compression=grpc.Compression.Gzip)
        await script.until("message")
        script.call.send(bytes(10_000))
        script.call.end()
        assert await answer == bytes(10_000)

    talk(scenario, compression=level, max_connection_age_ms=60_000, max_connection_age_grace_ms=1)


@pytest.mark.brute_force
def test_a_closed_connection_is_freed():
    async def scenario(script, channel, listener):
        port = listener._options.port
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GREETING + Peer(greeting=b"").headers(1))
        writer.write(frame(DATA, 0, 1, message(b"question")))
        await script.until("message")
        connections = [weakref.ref(one) for one in listener._connections]
        writer.close()
        await asyncio.wait_for(listener.drained(), PATIENCE_S)
        await script.until("cancel")
        script.call = None
        await asyncio.sleep(0)  # the loop's own last reference
        gc.collect()
        assert [one() for one in connections] == [None]

    talk(scenario)


def test_a_connection_beyond_the_limit_gets_goaway():
    async def scenario(script, channel, listener):
        answer = channel.unary_unary("/t.T/u")(b"")
        await script.until("message")
        port = listener._options.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        frames = frames_in(await asyncio.wait_for(reader.read(), PATIENCE_S))
        assert [kind for kind, *_ in frames][-1] == GOAWAY
        writer.close()
        script.call.send(b"answer")
        script.call.end()
        assert await answer == b"answer"

    talk(scenario, most_connections=1)


@pytest.mark.brute_force
def test_a_connection_without_a_preface_is_closed():
    async def scenario(script, channel, listener):
        port = listener._options.port
        greeted, said = await asyncio.open_connection("127.0.0.1", port)
        said.write(GREETING)
        opening = await asyncio.wait_for(greeted.readuntil(frame(SETTINGS, ACK)), PATIENCE_S)
        for start in (b"", PREFACE[:10], PREFACE):
            silent, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            assert opening.startswith(await asyncio.wait_for(silent.read(), PATIENCE_S))
            writer.close()
        said.write(frame(PING, 0, 0, b"12345678"))
        answer = frame(PING, ACK, 0, b"12345678")
        assert await asyncio.wait_for(greeted.readexactly(len(answer)), PATIENCE_S) == answer
        said.close()

    talk(scenario, TimeLimits(head_s=0.01))
