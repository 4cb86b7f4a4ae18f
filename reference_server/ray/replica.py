"""A replica: one model's server, with the schedulers, in a worker of Ray."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from ray import serve

from reference_server.autoscaling import PENDING, REQUESTS, ROWS
from reference_server.core.telemetry import Family, Snapshot
from reference_server.frontends.http.asgi import Body, Message
from reference_server.observability import logs
from reference_server.options import GrpcOptions, HttpOptions, MetricsOptions, ServerOptions
from reference_server.ray import listening
from reference_server.ray.calls import Calls, End, Fields
from reference_server.ray.exchange import Exchanges
from reference_server.repository.versions import IndexEntry
from reference_server.server import Server


@dataclasses.dataclass(frozen=True)
class Told:
    """What a replica tells of itself, of its model only: rows of the index, counters, metrics."""

    replica: str
    index: Sequence[IndexEntry]
    statistics: Sequence[Snapshot]
    families: Sequence[Family]


class Replica:
    """The model that is asked, in a server whose options also name what it needs beside it."""

    _is_open = False

    # Serve waits for it.
    async def __init__(  # type: ignore[misc]
        self, model: str, options: ServerOptions
    ) -> None:
        listening.at_the_node_only()
        self._model = model
        self._loaded = options.startup_models
        logs.configure(options.log)
        loop = asyncio.get_running_loop()
        self._server = Server(options)
        await self._server.load_on(loop)
        self._is_open = True
        http = options.http or HttpOptions()
        handlers = self._server.http_handlers(http, loop)
        self._exchanges = Exchanges(handlers.handle)
        self._calls = Calls(self._server.grpc_methods(options.grpc or GrpcOptions(), loop))
        self._metrics = self._server.metrics_gateway(options.metrics or MetricsOptions())

    async def answer(self, scope: Message, body: Body) -> list[Message]:
        """The whole answer to a request."""
        return await self._exchanges.whole(scope, body)

    async def stream(self, scope: Message, body: Body) -> AsyncIterator[Message]:
        """The same, as it comes."""
        async for message in self._exchanges.stream(scope, body):
            yield message

    async def call(self, method: str, fields: Fields, message: bytes) -> tuple[bytes, End]:
        """The whole answer to a call of gRPC, by the method's full name."""
        return await self._calls.whole(method, fields, message)

    async def stream_call(
        self, method: str, fields: Fields, message: bytes
    ) -> AsyncIterator[bytes | End]:
        """The same, as it comes."""
        async for told in self._calls.stream(method, fields, message):
            yield told

    async def tell(self) -> Told:
        """The state of the replica."""
        return Told(
            serve.get_replica_context().replica_tag,
            [row for row in self._server.control.index() if row.name == self._model],
            self._server.gateway.statistics(self._model),
            self._metrics.families(),
        )

    async def record_autoscaling_stats(self) -> Mapping[str, float]:
        """What the autoscaling policy is told."""
        snapshots = self._server.gateway.statistics(self._model)
        loaded = self._server.repository.versions(self._model)
        return {
            ROWS: sum(each.inference_count for each in snapshots),
            REQUESTS: sum(each.success.count for each in snapshots),
            PENDING: sum(served.scheduler.pending for served in loaded),
        }

    async def reconfigure(self, user_config: object) -> None:
        """Read the model's files again, if they have changed: Serve has got another user_config.

        The old version answers until the new one is loaded; if that fails, it goes on to do so.
        """
        for name in self._loaded:
            await asyncio.to_thread(self._server.repository.load, name)

    async def check_health(self) -> None:
        """Raise if the model cannot answer any more: Serve then starts another replica."""
        # Not the server's readiness: that waits for versions that are being unloaded.
        if reason := self._server.repository.find(self._model).health.reason:
            raise RuntimeError(f"{self._model} is not ready: {reason}")

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Serve calls it and waits, when the last request has been answered; then Python does."""
        if not self._is_open:
            return None
        self._is_open = False
        return self._server.shut_down({})
