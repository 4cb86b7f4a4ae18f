"""The player with virtual servers: sent requests and recorded responses."""

import asyncio
import itertools
import json

import uvloop
from replay.serving import listening

from triton_replay.addresses import Address, Server
from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request, Response
from triton_replay.replaying.plan import plan_replay
from triton_replay.replaying.player import Player

SEQUENCE = b'{"parameters": {"sequence_id": 7}}'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def infer(number, connection=0, headers=(), body=b"{}"):
    at = number * 1000
    target = "/v2/models/m/infer"
    return Request(number, connection, at, at, "POST", target, headers, len(body), body)


def played(serve, requests, *, tick=1, speed=None, loop="open", **options):
    """Play requests to the server `serve(reader, writer)`; return the records and the outcome."""

    async def play():
        records = []
        clock = itertools.count(tick, tick).__next__
        plan = plan_replay([Exchange(request, None) for request in requests], speed, loop)
        async with listening(serve) as (_, address):
            player = Player(plan, Server(address, address), clock, records.append, **options)
            return records, await asyncio.wait_for(player.play(), 60)

    return uvloop.run(play())


async def read_request(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(int(line[16:]) for line in head.split("\r\n") if "Content-Length: " in line)
    return head, await reader.readexactly(length)


def test_requests_of_a_connection_are_sent_on_one_connection_in_order():
    seen = []

    async def serve(reader, writer):
        connection = []
        seen.append(connection)
        while True:
            _, body = await read_request(reader)
            connection.append(json.loads(body)["n"])
            writer.write(OK)

    requests = [infer(n, connection=n % 2, body=b'{"n": %d}' % n) for n in range(10)]
    records, outcome = played(serve, requests)
    assert sorted(seen) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert outcome.statuses == {"200": 10}
    assert not outcome.unanswered
    answers = {r.number: bytes(r.body) for r in records if isinstance(r, Response)}
    assert answers == dict.fromkeys(range(10), b"ok")


def test_headers_are_the_recorded_ones_except_those_of_the_connection():
    heads = []

    async def serve(reader, writer):
        heads.append((await read_request(reader))[0])
        writer.write(OK)

    recorded = (
        *(("Host", "old:1"), ("Content-Length", "99"), ("Transfer-Encoding", "chunked")),
        *(("X-Trace", "1"), ("Authorization", "redacted"), ("X-Key", "redacted")),
    )
    played(serve, [infer(0, headers=recorded)], headers=(("authorization", "Bearer new"),))
    typed = (("content-type", "text/json"),)
    played(serve, [infer(0, headers=typed)], headers=(("host", "virtual"),))
    head, other = heads
    assert other.rstrip().split("\r\n")[1:3] == ["content-type: text/json", "host: virtual"]
    lines = head.rstrip().split("\r\n")
    assert lines[0] == "POST /v2/models/m/infer HTTP/1.1"
    assert lines[1].startswith("Host: 127.0.0.1:")
    assert lines[2:] == [
        *("X-Trace: 1", "authorization: Bearer new"),
        *("Content-Type: application/json", "Content-Length: 2"),
    ]


def test_a_connection_closed_by_the_server_is_opened_again():
    async def serve(reader, writer):
        await read_request(reader)
        writer.write(OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))

    _, outcome = played(serve, [infer(n) for n in range(3)])
    assert outcome.statuses == {"200": 3}


def test_an_incomplete_response_is_recorded():
    async def serve(reader, writer):
        await read_request(reader)
        writer.write(OK[:-1])

    records, outcome = played(serve, [infer(0)])
    assert dict(outcome.unanswered) == {"the server closed the connection": 1}
    assert (records[1].status, bytes(records[1].body), records[1].ended) == (200, b"o", "server")


def test_a_response_that_is_not_http_is_reported():
    async def serve(reader, writer):
        await read_request(reader)
        writer.write(b"SSH-2.0\r\n")

    _, outcome = played(serve, [infer(0)])
    assert next(iter(outcome.unanswered)).startswith("the response is not HTTP")


def test_a_request_times_out_and_the_next_one_is_sent():
    async def serve(reader, writer):
        _, body = await read_request(reader)
        if body == b"{}":
            await reader.read()  # until the client gives up
        writer.write(OK)

    records, outcome = played(serve, [infer(0), infer(1, body=b"[1]")], timeout=0.05)
    assert dict(outcome.unanswered) == {"no response within 0.05 s": 1}
    assert outcome.statuses == {"200": 1}
    assert [r.ended for r in records if isinstance(r, Response)] == ["client", "complete"]


def test_a_passed_deadline_is_an_outcome():
    class Client:
        async def open(self):
            """Do nothing."""

        async def send(self, exchange):
            return Response(exchange.request.number, 9, 9, 0, (), 0, ended="client")

    address, records = Address("h", 1), []
    plan = plan_replay([Exchange(infer(0), None)], None)
    player = Player(plan, Server(address, address), lambda: 5, records.append)
    assert asyncio.run(player._send(Client(), plan.steps[0], 0, 0)) == 9
    assert player.outcome.statuses == {"deadline exceeded": 1}
    assert not player.outcome.unanswered


def timed(loop):
    """Play three requests to a slow server; return the requests, the responses and the outcome."""

    async def serve(reader, writer):
        while True:
            await read_request(reader)
            writer.write(OK)

    # An answer takes a million ticks, the gap between requests 1,000.
    requests = [infer(number) for number in range(3)]
    records, outcome = played(serve, requests, tick=1_000_000, speed=1, loop=loop)
    return records[::2], records[1::2], outcome


def test_latency_counts_from_the_due_time():
    (first, second, third), _, outcome = timed("open")
    assert (second.at, third.at) == (1000, 2000)
    assert second.end > 1_000_000
    assert first.at == first.end
    assert outcome.lateness == {"requests": 0, "late": 0, "largest": 0}


def test_a_closed_loop_counts_latency_from_the_sending_after_other_connections():
    answered = asyncio.Event()

    async def serve(reader, writer):
        while True:
            _, body = await read_request(reader)
            if body == SEQUENCE[:-1] + b" }":
                await answered.wait()
            writer.write(OK)
            answered.set()

    first, other = infer(0), infer(1, connection=1, body=SEQUENCE[:-1] + b" }")
    last = infer(2, body=SEQUENCE)  # of the same sequence as `other`
    options = {"tick": 1_000_000, "speed": 1, "loop": "closed"}
    records, _ = played(serve, [first, other, last], **options)
    sent = {record.number: record for record in records if isinstance(record, Request)}
    assert sent[2].at == sent[2].end


def test_a_closed_loop_waits_for_the_response_and_the_think_time():
    requests, responses, outcome = timed("closed")
    assert all(request.at == request.end for request in requests)
    dues = [response.end + 1000 for response in responses[:2]]
    delays = [request.at - due for request, due in zip(requests[1:], dues, strict=True)]
    assert list(outcome.delays) == delays
    outcome.delays.extend([9_999_999, 10_000_000, 30_000_000])
    assert outcome.lateness == {"requests": 5, "late": 2, "largest": 30_000_000}
