"""Send each request of a capture to two servers in random order, as a closed loop.

Each request goes to A and B within milliseconds, so that delays of this machine or the network
affect both sides. The random order removes the advantage of being first or last.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import count

from triton_replay.addresses import Server
from triton_replay.capture.files import Asked, Exchange
from triton_replay.capture.records import StreamMessage
from triton_replay.capture.renaming import Names
from triton_replay.replaying.clients import Client, GrpcConnection, HttpConnection, NotAnswered
from triton_replay.replaying.plan import Plan, Step, changes_the_server, in_sequence
from triton_replay.wire.bodies import Headers

Put = Callable[[Sequence[Asked], Sequence[Asked], Asked | None], None]
"""Receives the asks of A, the same number of asks of B, and one more ask of A (or its copy) or
None. An ask is one sending of a request to one server."""


def comparable(plan: Plan, rounds: int) -> tuple[list[Step], Counter[str]]:
    """Return the steps that servers can execute repeatedly, and count the other steps by reason.

    Args:
        plan: The plan of a capture.
        rounds: Number of repetitions. The indexes in `Step.after` count through all rounds.
    """
    left_out: Counter[str] = Counter(plan.left_out)
    kept: dict[int, int] = {}
    for index, step in enumerate(plan.steps):
        if changes_the_server(step.exchange.request):
            left_out["requests that change the server"] += 1
        else:
            kept[index] = len(kept)
    steps = []
    for number in range(rounds):
        first = number * len(kept)
        for index in kept:
            step = plan.steps[index]
            after = tuple(first + kept[earlier] for earlier in step.after if earlier in kept)
            steps.append(step._replace(after=after))
    return steps, left_out


@dataclass(eq=False)
class SideBySide:
    """Sends steps to A and B.

    Args:
        a: The server A.
        b: The server B.
        second: A second copy of A, asked once like A and B; None to ask A and B twice each.
        headers: Headers of every request.
        timeout: Seconds until an ask fails.
        clock: Returns nanoseconds.
        order: Random numbers for the order of the asks.
        names: Names that differ between the capture and B.
    """

    a: Server
    b: Server
    second: Server | None
    _: KW_ONLY
    headers: Headers
    timeout: float
    clock: Callable[[], int]
    order: random.Random
    names: Names | None = None

    def __post_init__(self) -> None:
        self._servers = (self.a, self.b) if self.second is None else (self.a, self.b, self.second)
        self._names = self.names or Names()
        self.unanswered: tuple[Counter[str], ...] = tuple(Counter[str]() for _ in self._servers)
        """Asks without a complete response, by reason, for each server."""

    async def run(self, steps: Sequence[Step], in_flight: int, put: Put) -> None:
        """Send all steps and give each result to `put`.

        Args:
            steps: The result of `comparable`.
            in_flight: Number of concurrent requests.
            put: Called when all asks of a step have ended.
        """
        loop = asyncio.get_running_loop()
        done: list[asyncio.Future[None]] = [loop.create_future() for _ in steps]
        numbers = count()

        async def work() -> None:
            with contextlib.ExitStack() as stack:
                shared = (self.headers, self.timeout, self.clock, stack)
                both = zip(self._servers, self.unanswered, strict=True)
                clients = [Clients(server, *shared, reasons) for server, reasons in both]
                while (number := next(numbers)) < len(steps):
                    step = steps[number]
                    for earlier in step.after:
                        await done[earlier]
                    put(*await self._ask_all(step, clients))
                    done[number].set_result(None)

        await asyncio.gather(*(work() for _ in range(min(in_flight, len(steps)))))

    async def _ask_all(
        self, step: Step, clients: Sequence[Clients]
    ) -> tuple[tuple[Asked, ...], tuple[Asked, ...], Asked | None]:
        # A second ask of the same server would change the state of its sequence.
        asks = 2 if len(clients) == 2 and not in_sequence(step.exchange.request) else 1
        order = [index for index in range(len(clients)) for _ in range(asks)]
        self.order.shuffle(order)
        found: list[list[Asked]] = [[] for _ in clients]
        exchanges = [step.exchange] * len(clients)
        exchanges[1] = self._names.renamed(step.exchange)
        for index in order:
            found[index].append(await clients[index].ask(exchanges[index]))
        a, b, *others = (tuple(asked) for asked in found)
        if others:
            return a, b, others[0][0]
        return a, b, a[1] if asks == 2 else None


@dataclass(eq=False)
class Clients:
    """The connections of one worker to one server.

    Args:
        server: The server.
        headers: Headers of every request.
        timeout: Seconds until a request fails.
        clock: Returns nanoseconds.
        stack: Closes the connections.
        unanswered: Counts requests without a complete response, by reason.
    """

    server: Server
    headers: Headers
    timeout: float
    clock: Callable[[], int]
    stack: contextlib.ExitStack
    unanswered: Counter[str]

    def __post_init__(self) -> None:
        self._shared = (self.headers, self.timeout)
        self._clients: dict[str, Client] = {}
        self._messages: list[StreamMessage] = []

    def _client(self, protocol: str) -> Client:
        if protocol not in self._clients:
            client: Client
            if protocol == "grpc":
                put = self._messages.append
                client = GrpcConnection(
                    self.server.grpc, self.clock, put, *self._shared, None, self.server.grpc_tls
                )
            else:
                client = HttpConnection(
                    self.server.http, self.clock, *self._shared, self.server.tls
                )
            self.stack.callback(client.close)
            self._clients[protocol] = client
        return self._clients[protocol]

    async def ask(self, exchange: Exchange) -> Asked:
        """Send a request; return it with its response, and the latency in nanoseconds."""
        client = self._client(exchange.request.protocol)
        self._messages.clear()
        response = None
        with contextlib.suppress(NotAnswered):
            await client.open()
        sent = self.clock()
        try:
            response = await client.send(exchange)
            end = response.end
        except NotAnswered as error:
            response, end = error.response, self.clock()
            self.unanswered[str(error)] += 1
        messages = tuple(self._messages)
        return replace(exchange, response=response, messages=messages), end - sent
