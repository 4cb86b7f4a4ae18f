"""The proxy forwards all bytes at once, and taps read them later, in order."""

import asyncio
import itertools
import os
import socket

import pytest
import uvloop
from replay.serving import listening
from replay.traffic import Records

from triton_replay.addresses import Address, look_for_server
from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.recording import proxy
from triton_replay.recording.http_tap import HttpTap
from triton_replay.recording.proxy import Proxy, Reading

REQUEST = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def played(serve, ask):
    """Run `serve` behind a proxy and `ask` as its client; return the result and the records."""

    async def play():
        records, numbers, clock = Records(), itertools.count(), itertools.count().__next__
        async with listening(serve) as (server, address):
            proxy = Proxy(
                address, records.count, lambda: HttpTap(0, numbers, clock, records, 2**24)
            )
            front = await proxy.listen(Address("127.0.0.1", 0))
            reader, writer = await asyncio.open_connection(*front)
            try:
                return await asyncio.wait_for(ask(reader, writer, server), 60), records
            finally:
                writer.close()
                await proxy.close()

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


# -- reading


class Seen(list):
    """A tap that stores its calls with the time."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def sent(self, data):
        self.append(("sent", data, self.clock()))

    def answered(self, data):
        self.append(("answered", data, self.clock()))

    def closed(self, by):
        self.append(("closed", by, self.clock()))


@pytest.fixture
def counted():
    return []


@pytest.fixture
def later(counted):
    return Reading(itertools.count(7).__next__, counted.append)


def test_a_tap_reads_later_in_order_and_with_the_original_times(later):
    tap = Seen(later.clock)
    front = later.beside(tap)
    front.sent(b"a")
    front.answered(b"b")
    front.closed("client")
    assert tap == []
    later.read_noted()
    assert tap == [("sent", b"a", 7), ("answered", b"b", 8), ("closed", "client", 9)]


def test_close_waits_for_the_reading_thread(later):
    tap = Seen(later.clock)
    front = later.beside(tap)
    later.start()
    for number in range(1000):
        front.sent(number)
    later.close()
    assert [data for _, data, _ in tap] == list(range(1000))
    assert [at for _, _, at in tap] == list(range(7, 1007))


def test_a_full_queue_is_read_at_once(later, monkeypatch):
    monkeypatch.setattr(proxy, "MAX_NOTED", 2)
    tap = Seen(later.clock)
    front = later.beside(tap)
    for data in (b"a", b"b", b"c"):
        front.sent(data)
    assert len(tap) == 3


def test_a_tap_that_raises_is_counted_and_others_go_on(later, counted):
    tap = Seen(later.clock)
    front = later.beside(tap)
    later.note(int, "no number")
    front.sent(b"a")
    later.read_noted()
    assert len(tap) == 1
    (reported,) = counted
    assert reported.startswith("pieces that could not be read: ValueError(")
