"""Plays a plan: each recorded connection is a connection again, and answers become a new capture.

The loop is open: what is due is sent whether or not earlier answers on other connections have come.
A request that waits behind one on its own connection, or of its sequence, counts its latency from
the time at which it was due, so a slow server shows as latency and not as less load.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from triton_replay.addresses import Address
from triton_replay.capture.records import Request, Response
from triton_replay.protocol.http_bodies import Headers
from triton_replay.protocol.http_messages import Message
from triton_replay.replaying.http_client import HttpConnection, NotAnswered, request_head
from triton_replay.replaying.plan import Plan, Step

LEAD: Final = 100_000_000
"""Nanoseconds by which a connection is opened before it is needed."""


@dataclass
class Outcome:
    """How a replay went."""

    statuses: Counter[int] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    """Requests without a whole answer, by reason."""
    latest: int = 0
    """Nanoseconds by which the replay itself, not the server, sent a request too late, at most."""


class Player:
    """Plays one plan.

    clock: gives nanoseconds since the replay began.
    put: takes records; a request's before its response's.
    timeout: seconds until a request is given up and its connection is closed.
    """

    def __init__(
        self,
        plan: Plan,
        server: Address,
        clock: Callable[[], int],
        put: Callable[[Request | Response], None],
        headers: Headers = (),
        timeout: float = 300,
    ) -> None:
        self._plan = plan
        self._server = server
        self._clock = clock
        self._put = put
        self._headers = headers
        self._timeout = timeout
        self._answered: list[asyncio.Future[int]] = []
        self.outcome = Outcome()

    async def play(self) -> Outcome:
        """Send all requests and wait for all answers."""
        loop = asyncio.get_running_loop()
        self._answered = [loop.create_future() for _ in self._plan.steps]
        await asyncio.gather(*map(self._play_lane, self._plan.lanes.values()))
        return self.outcome

    async def _play_lane(self, indexes: list[int]) -> None:
        connection = HttpConnection(self._server, self._clock)
        free = 0
        try:
            for index in indexes:
                step = self._plan.steps[index]
                for earlier in step.after:
                    free = max(free, await self._answered[earlier])
                # Whose first request would otherwise have the time of connecting in its latency.
                await self._until(step.due - LEAD)
                with contextlib.suppress(NotAnswered):  # the request itself will say so
                    await connection.open()
                await self._until(step.due)
                free = await self._send(connection, step, free)
                self._answered[index].set_result(free)
        finally:
            connection.close()

    async def _until(self, due: int) -> None:
        wait = due - self._clock()
        if wait > 0:
            await asyncio.sleep(wait / 1e9)

    async def _send(self, connection: HttpConnection, step: Step, free: int) -> int:
        """Send a request that could have been since `free`; when its answer came."""
        request = step.request
        sent = self._clock()
        if free <= step.due:
            # The server was ready; what is late is this process, whose delay is not the server's.
            self.outcome.latest = max(self.outcome.latest, sent - step.due if step.due else 0)
            at = sent
        else:
            at = step.due if step.due else sent
        head = request_head(request, self._server, self._headers)
        self._put(replace(request, at=at, end=sent))
        ended = "complete"
        message: Message | None
        try:
            message = await asyncio.wait_for(connection.ask((head, request.body)), self._timeout)
            self.outcome.statuses[message.status] += 1
        except asyncio.TimeoutError:
            message, ended = None, "client"
            self.outcome.unanswered[f"no answer within {self._timeout:g} s"] += 1
        except NotAnswered as error:
            message, ended = error.message, "server"
            self.outcome.unanswered[str(error)] += 1
        end = self._clock()
        self._put(_response(request.number, message, end, ended))
        return end


def _response(number: int, message: Message | None, end: int, ended: str) -> Response:
    if message is None:
        return Response(number, end, end, 0, (), 0, ended=ended)
    return Response(
        number=number,
        at=message.at,
        end=end,
        status=message.status,
        headers=message.all_headers(),
        body_size=message.size,
        body=message.body,
        ended=ended,
        parts=message.chunks,
    )
