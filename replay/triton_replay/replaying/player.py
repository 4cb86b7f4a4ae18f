"""Plays a plan: each recorded connection is a connection again, and answers become a new capture.

The loop is open: what is due is sent whether or not earlier answers on other lanes have come. A
request that waits behind one on its own lane, or of its sequence, counts its latency from the time
at which it was due, so a slow server shows as latency and not as less load.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from triton_replay.addresses import Address
from triton_replay.capture.records import Response, Traffic
from triton_replay.replaying.answers import Client, NotAnswered
from triton_replay.replaying.grpc_client import GrpcConnection
from triton_replay.replaying.http_client import HttpConnection
from triton_replay.replaying.plan import Plan, Step
from triton_replay.wire.bodies import Headers

LEAD: Final = 100_000_000
"""Nanoseconds by which a connection is opened before it is needed."""


@dataclass
class Outcome:
    """How a replay went."""

    statuses: Counter[str] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    """Requests without a whole answer, by reason."""
    latest: int = 0
    """Nanoseconds by which the replay itself, not the server, sent a request too late, at most."""


@dataclass(frozen=True)
class Target:
    """Whom to ask, and how."""

    http: Address
    grpc: Address
    headers: Headers = ()
    """Sent with every request."""
    timeout: float = 300
    """Seconds until a request is given up."""
    speed: float | None = None
    """That of messages within a stream; None leaves their gaps out."""


class Player:
    """Plays one plan.

    clock: gives nanoseconds since the replay began.
    put: takes records; a request's before its response's.
    """

    def __init__(
        self, plan: Plan, target: Target, clock: Callable[[], int], put: Callable[[Traffic], None]
    ) -> None:
        self._plan = plan
        self._target = target
        self._clock = clock
        self._put = put
        self._answered: list[asyncio.Future[int]] = []
        self._channels: dict[int, GrpcConnection] = {}
        """Of gRPC, by recorded connection: calls of several lanes share one."""
        self.outcome = Outcome()

    async def play(self) -> Outcome:
        """Send all requests and wait for all answers."""
        loop = asyncio.get_running_loop()
        self._answered = [loop.create_future() for _ in self._plan.steps]
        try:
            await asyncio.gather(*map(self._play_lane, self._plan.lanes.values()))
        finally:
            for channel in self._channels.values():
                await channel.close()
        return self.outcome

    async def _play_lane(self, indexes: list[int]) -> None:
        request = self._plan.steps[indexes[0]].exchange.request
        if request.protocol == "grpc":
            await self._play_steps(indexes, self._channel(request.connection))
            return
        target = self._target
        connection = HttpConnection(target.http, self._clock, target.headers, target.timeout)
        try:
            await self._play_steps(indexes, connection)
        finally:
            connection.close()

    def _channel(self, connection: int) -> GrpcConnection:
        if connection not in self._channels:
            target = self._target
            self._channels[connection] = GrpcConnection(
                target.grpc, self._clock, self._put, target.headers, target.timeout, target.speed
            )
        return self._channels[connection]

    async def _play_steps(self, indexes: list[int], client: Client) -> None:
        free = 0
        for index in indexes:
            step = self._plan.steps[index]
            for earlier in step.after:
                free = max(free, await self._answered[earlier])
            # Whose first request would otherwise have the time of connecting in its latency.
            await self._until(step.due - LEAD)
            with contextlib.suppress(NotAnswered):  # the request itself will say so
                await client.open()
            await self._until(step.due)
            free = await self._send(client, step, free)
            self._answered[index].set_result(free)

    async def _until(self, due: int) -> None:
        wait = due - self._clock()
        if wait > 0:
            await asyncio.sleep(wait / 1e9)

    async def _send(self, client: Client, step: Step, free: int) -> int:
        """Send a request that could have been since `free`; when its answer came."""
        request = step.exchange.request
        sent = self._clock()
        if free <= step.due:
            # The server was ready; what is late is this process, whose delay is not the server's.
            self.outcome.latest = max(self.outcome.latest, sent - step.due if step.due else 0)
            at = sent
        else:
            at = step.due if step.due else sent
        self._put(replace(request, at=at, end=sent))
        try:
            response = await client.send(step.exchange)
            status = replace(step.exchange, response=response).status
            self.outcome.statuses[status] += 1
        except NotAnswered as error:
            end = self._clock()
            nothing = Response(request.number, end, end, 0, (), 0, ended="server")
            response = error.response or nothing
            self.outcome.unanswered[str(error)] += 1
        self._put(response)
        return response.end
