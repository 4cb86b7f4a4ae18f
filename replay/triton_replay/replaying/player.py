"""Execution of a plan: replays each recorded connection, and passes on requests and responses.

An open loop sends due requests whether or not responses on other lanes have arrived. If a request
waits for an earlier one of its lane or its sequence, its latency still counts from its due time, so
that a slow server shows as latency and not as a lower load. In a closed loop, the due time depends
on the previous response of the lane, so a slow server receives fewer requests per second.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from triton_replay.addresses import Server
from triton_replay.capture.records import Response, Traffic
from triton_replay.replaying.clients import Client, GrpcConnection, HttpConnection, NotAnswered
from triton_replay.replaying.plan import Plan, Step
from triton_replay.wire.bodies import Headers

LEAD: Final = 100_000_000
"""Nanoseconds before its first use at which a connection is opened."""
LATE: Final = 10_000_000
"""A request that is sent this many nanoseconds after its due time counts as late."""


@dataclass
class Outcome:
    """The outcome of a replay."""

    statuses: Counter[str] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    """Requests without a complete response, by reason."""
    delays: array[int] = field(default_factory=lambda: array("q"))
    """Delays that the replay itself caused, in nanoseconds by request."""

    @property
    def lateness(self) -> Mapping[str, int]:
        """The numbers of requests with a due time and of late requests, and the largest delay."""
        late = sum(delay >= LATE for delay in self.delays)
        largest = max(self.delays, default=0)
        return {"requests": len(self.delays), "late": late, "largest": largest}


@dataclass(eq=False)
class Player:
    """Executes one plan.

    Args:
        plan: The plan.
        server: The server.
        clock: Returns nanoseconds since the start of the replay.
        put: Receives the records, each request before its response.
        headers: Headers of every request.
        timeout: Seconds until a request fails.
        speed: Factor of the speed within a stream; None sends without pauses.
    """

    plan: Plan
    server: Server
    clock: Callable[[], int]
    put: Callable[[Traffic], None]
    _: KW_ONLY
    headers: Headers = ()
    timeout: float = 300
    speed: float | None = None

    def __post_init__(self) -> None:
        self._shared = (self.headers, self.timeout)
        self._answered: list[asyncio.Future[int]] = []
        self._channels: dict[int, GrpcConnection] = {}
        """gRPC connections by number of the recorded connection; several lanes share one."""
        self.outcome = Outcome()

    async def play(self) -> Outcome:
        """Send all requests and wait for all responses."""
        loop = asyncio.get_running_loop()
        self._answered = [loop.create_future() for _ in self.plan.steps]
        try:
            await asyncio.gather(*map(self._play_lane, self.plan.lanes.values()))
        finally:
            for channel in self._channels.values():
                channel.close()
        return self.outcome

    async def _play_lane(self, indexes: list[int]) -> None:
        request = self.plan.steps[indexes[0]].exchange.request
        if request.protocol == "grpc":
            await self._play_steps(indexes, self._channel(request.connection))
            return
        server = self.server
        connection = HttpConnection(server.http, self.clock, *self._shared, server.tls)
        try:
            await self._play_steps(indexes, connection)
        finally:
            connection.close()

    def _channel(self, connection: int) -> GrpcConnection:
        if connection not in self._channels:
            server = self.server
            self._channels[connection] = GrpcConnection(
                *(server.grpc, self.clock, self.put, *self._shared, self.speed, server.grpc_tls)
            )
        return self._channels[connection]

    async def _play_steps(self, indexes: list[int], client: Client) -> None:
        free = 0
        for index in indexes:
            step = self.plan.steps[index]
            due = step.due if step.think is None else free + step.think
            for earlier in step.after:
                free = max(free, await self._answered[earlier])
            if step.think is not None:
                due = max(due, free)
            # Connect early: the first latency must not include the connection time.
            await self._until(due - LEAD)
            with contextlib.suppress(NotAnswered):  # the request itself will report it
                await client.open()
            await self._until(due)
            free = await self._send(client, step, due, free)
            self._answered[index].set_result(free)

    async def _until(self, due: int) -> None:
        wait = due - self.clock()
        if wait > 0:
            await asyncio.sleep(wait / 1e9)

    async def _send(self, client: Client, step: Step, due: int, free: int) -> int:
        """Send a request whose lane is free since `free`; return the end of its response."""
        request = step.exchange.request
        sent = at = self.clock()
        if due and free <= due:
            # The lane was free, so a delay is caused by this process, not by the server.
            self.outcome.delays.append(sent - due)
        elif due:
            at = due
        self.put(replace(request, at=at, end=sent))
        try:
            response = await client.send(step.exchange)
            status = replace(step.exchange, response=response).status
            passed = response.ended == "client"
            self.outcome.statuses["deadline exceeded" if passed else status] += 1
        except NotAnswered as error:
            end = self.clock()
            nothing = Response(request.number, end, end, 0, (), 0, ended="server")
            response = error.response or nothing
            self.outcome.unanswered[str(error)] += 1
        self.put(response)
        return response.end
