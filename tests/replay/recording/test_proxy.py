"""The proxy forwards all bytes, back pressure, and the end of connections."""

import asyncio
import contextlib
import itertools
import os
import socket

import pytest
import uvloop

from triton_replay.addresses import Address, look_for_server
from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.recording.http_tap import HttpTap
from triton_replay.recording.proxy import Proxy

REQUEST = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Records(list):
    """A sink that collects records."""

    def __init__(self):
        super().__init__()
        self.counted = []

    put = list.append

    def count(self, reason):
        self.counted.append(reason)


def played(serve, ask):
    """Run `serve` behind a proxy and `ask` as its client; return the result and the records."""

    async def play():
        tasks = []

        async def one(reader, writer):
            tasks.append(asyncio.current_task())
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await serve(reader, writer)
            writer.close()

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        records = Records()
        address = Address(*server.sockets[0].getsockname())
        clock = itertools.count().__next__

        def new_tap():
            return HttpTap(0, numbers, clock, records, 2**24)

        numbers = itertools.count()
        proxy = Proxy(address, records.count, new_tap)
        front = await proxy.listen(Address("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(*front)
        try:
            return await asyncio.wait_for(ask(reader, writer, server), 60), records
        finally:
            writer.close()
            await proxy.close()
            server.close()
            await asyncio.gather(*tasks)

    return uvloop.run(play())


async def answer(reader, writer):
    while await reader.readexactly(len(REQUEST)):
        writer.write(RESPONSE)


def test_requests_on_one_connection_are_answered_and_recorded_in_order():
    async def ask(reader, writer, server):
        writer.write(REQUEST * 3)
        return await reader.readexactly(len(RESPONSE) * 3)

    answers, records = played(answer, ask)
    assert answers == RESPONSE * 3
    assert sorted(record.number for record in records) == [0, 0, 1, 1, 2, 2]
    assert {record.connection for record in records if hasattr(record, "connection")} == {0}


@pytest.mark.brute_force
def test_megabytes_arrive_complete_although_reading_starts_late():
    body = os.urandom(8 * 2**20)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def serve(reader, writer):
        # Nothing is taken before all has been offered.
        await reader.readexactly(len(REQUEST))
        writer.write(head + body)
        await writer.drain()
        await reader.read()

    async def ask(reader, writer, server):
        writer.write(REQUEST)
        return await reader.readexactly(len(head) + len(body))

    answers, records = played(serve, ask)
    assert answers == head + body
    assert records[1].body == body


def test_a_client_that_half_closes_gets_its_response():
    async def serve(reader, writer):
        await reader.read()  # to the end
        writer.write(RESPONSE)

    async def ask(reader, writer, server):
        writer.write(REQUEST)
        writer.write_eof()
        return await reader.read()

    assert played(serve, ask)[0] == RESPONSE


def test_a_server_that_exits_during_a_response_ends_the_clients_connection():
    async def serve(reader, writer):
        await reader.readexactly(len(REQUEST))
        writer.write(RESPONSE[:-1])

    async def ask(reader, writer, server):
        writer.write(REQUEST)
        return await reader.read()

    answers, records = played(serve, ask)
    assert answers == RESPONSE[:-1]
    assert (records[1].ended, bytes(records[1].body)) == ("server", b"o")


def test_bytes_that_are_not_http_are_forwarded():
    async def serve(reader, writer):
        writer.write(b"\0" + await reader.readexactly(3))

    async def ask(reader, writer, server):
        writer.write(b"\x16\x03\x01")
        return await reader.read()

    answers, records = played(serve, ask)
    assert answers == b"\0\x16\x03\x01"
    assert records.counted == ["connections that could not be read as HTTP/1"]


def test_a_missing_server_ends_the_connection_and_is_counted():
    async def ask(reader, writer, server):
        writer.write(REQUEST)
        await reader.readexactly(len(RESPONSE))
        server.close()
        front = writer.get_extra_info("peername")
        late_reader, late_writer = await asyncio.open_connection(*front)
        late_writer.write(REQUEST)
        try:
            return await late_reader.read()
        except ConnectionError:
            return b""
        finally:
            late_writer.close()

    answers, records = played(answer, ask)
    assert answers == b""
    assert records.counted == ["connections that the server did not accept"]


def test_a_missing_server_and_a_port_in_use_are_reported():
    async def play():
        await Proxy(address, print, int).listen(address)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
        look_for_server(address, "--server")
        with pytest.raises(ReplayError, match="--listen"):
            asyncio.run(play())
    with pytest.raises(ServerUnreachable, match=r"--server .*: no server listens there"):
        look_for_server(address, "--server")
