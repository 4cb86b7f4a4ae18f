"""Requests to two virtual servers: order, number of asks, sequences, and lost answers."""

import asyncio
import contextlib
import itertools
import json
import random
from collections import defaultdict
from functools import partial

import pytest
import uvloop
from replay.serving import listening

from triton_replay.addresses import Server
from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request
from triton_replay.capture.renaming import Names
from triton_replay.replaying.asking import SideBySide, comparable
from triton_replay.replaying.plan import plan_replay

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def infer(number, sequence=0, target="/v2/models/m/infer"):
    parameters = {"parameters": {"sequence_id": sequence}} if sequence else {}
    body = json.dumps({"n": number, **parameters}).encode()
    return Request(number, 0, number, number, "POST", target, (), len(body), body)


paths = defaultdict(set)
"""Paths that each server has seen in the last round of `asked`."""


def asked(requests, *, servers=2, rounds=1, in_flight=1, silent=(), timeout=60.0, names=None):
    """Ask virtual servers. Return what they saw as (server, number), the results, what is left out.

    A server in `silent` closes each connection instead of answering.
    """
    seen = []
    paths.clear()

    async def serve(name, reader, writer):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = head.partition("Content-Length: ")[2].split("\r\n")[0]
            body = await reader.readexactly(int(length))
            seen.append((name, json.loads(body)["n"]))
            paths[name].add(head.split()[1])
            if name in silent:
                return
            writer.write(OK)

    async def ask():
        async with contextlib.AsyncExitStack() as stack:
            targets = []
            for name in range(servers):
                _, address = await stack.enter_async_context(listening(partial(serve, name)))
                targets.append(Server(address, address))
            a, b, *others = targets
            asker = SideBySide(
                *(a, b, others[0] if others else None),
                headers=(),
                timeout=timeout,
                clock=itertools.count(1).__next__,
                order=random.Random(4),
                names=names,
            )
            plan = plan_replay([Exchange(request, None) for request in requests], None)
            steps, left_out = comparable(plan, rounds)
            results = []
            running = asker.run(steps, in_flight, lambda *each: results.append(each))
            await asyncio.wait_for(running, timeout)
            return results, left_out

    return seen, *uvloop.run(ask())


def test_both_servers_are_asked_twice_in_random_order():
    seen, results, _ = asked([infer(n) for n in range(40)])
    assert [number for _, number in seen] == [n for n in range(40) for _ in range(4)]
    orders = {tuple(name for name, number in seen if number == n) for n in range(40)}
    assert len(orders) == 6  # all orders of two asks of A and two of B
    assert all((len(a), len(b)) == (2, 2) and again == a[1] for a, b, again in results)
    assert all(exchange.status == "200" and took > 0 for a, b, _ in results for exchange, took in a)


def test_a_second_copy_is_asked_once_like_the_others():
    seen, results, _ = asked([infer(n) for n in range(10)], servers=3)
    assert sorted(seen) == sorted((name, n) for name in range(3) for n in range(10))
    asked([infer(0)], servers=3, names=Names({"m": "n"}))
    assert dict(paths) == {
        0: {"/v2/models/m/infer"},
        1: {"/v2/models/n/infer"},
        2: {"/v2/models/m/infer"},
    }
    assert all((len(a), len(b)) == (1, 1) and again is not a[0] for a, b, again in results)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_requests_of_a_sequence_are_asked_once_and_in_order(in_flight):
    requests = [infer(n, sequence=1 + n % 2) for n in range(12)]
    seen, results, _ = asked(requests, in_flight=in_flight)
    for name, first in itertools.product((0, 1), (0, 1)):
        numbers = [n for server, n in seen if server == name and n % 2 == first]
        assert numbers == list(range(first, 12, 2))
    assert [again for *_, again in results] == [None] * 12


def test_rounds_repeat_the_capture_and_requests_that_change_the_server_are_left_out():
    load = infer(1, target="/v2/repository/models/m/load")
    seen, results, left_out = asked([infer(0), load, infer(2)], rounds=3)
    assert len(results) == 6
    assert {number for _, number in seen} == {0, 2}
    assert left_out == {"requests that change the server": 1}


def test_a_server_that_closes_connections_has_no_answers():
    _, results, _ = asked([infer(n) for n in range(3)], silent={1})
    for a, b, _ in results:
        assert {exchange.status for exchange, _ in a} == {"200"}
        assert {exchange.response for exchange, _ in b} == {None}
