"""A replica: one model's server, with its schedulers, in a Ray worker."""

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
from reference_server.ray import calls
from reference_server.ray.calls import Calls, End, Exchanges, Fields
from reference_server.repository.versions import IndexEntry
from reference_server.server import Server


@dataclasses.dataclass(frozen=True)
class ReplicaState:
    """The state of a replica, for its model only: index entries, counters, metrics."""

    replica: str
    index: Sequence[IndexEntry]
    statistics: Sequence[Snapshot]
    families: Sequence[Family]


class Replica:
    """A server for the replica's model and for the models that it calls."""

    _is_open = False

    # Serve awaits the constructor.
    async def __init__(  # type: ignore[misc]
        self, model: str, options: ServerOptions
    ) -> None:
        calls.at_the_node_only()
        self._model = model
        self._loaded = options.startup_models
        logs.configure(options.log, splits=options.profile.splits_log)
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
        """Return the complete reply to an HTTP request."""
        return await self._exchanges.whole(scope, body)

    async def stream(self, scope: Message, body: Body) -> AsyncIterator[Message]:
        """Yield the reply to an HTTP request as it is written."""
        async for message in self._exchanges.stream(scope, body):
            yield message

    async def call(self, method: str, fields: Fields, message: bytes) -> tuple[bytes, End]:
        """Return the complete response to a gRPC call, by the method's full name."""
        return await self._calls.whole(method, fields, message)

    async def stream_call(
        self, method: str, fields: Fields, message: bytes
    ) -> AsyncIterator[bytes | End]:
        """Yield the response messages of a gRPC call, then its status."""
        async for item in self._calls.stream(method, fields, message):
            yield item

    async def state(self) -> ReplicaState:
        """Return the state of the replica."""
        return ReplicaState(
            serve.get_replica_context().replica_tag,
            [row for row in self._server.control.index() if row.name == self._model],
            self._server.gateway.statistics(self._model),
            self._metrics.families(),
        )

    async def record_autoscaling_stats(self) -> Mapping[str, float]:
        """Return the metrics of the autoscaling policy. Called by Serve."""
        snapshots = self._server.gateway.statistics(self._model)
        loaded = self._server.repository.versions(self._model)
        return {
            ROWS: sum(each.inference_count for each in snapshots),
            REQUESTS: sum(each.success.count for each in snapshots),
            PENDING: sum(served.scheduler.pending for served in loaded),
        }

    async def reconfigure(self, user_config: object) -> None:
        """Reload the model if its files have changed. Called by Serve for a new user_config.

        The old version answers until the new version is loaded, and stays if the load fails.
        """
        for name in self._loaded:
            await asyncio.to_thread(self._server.repository.load, name)

    async def check_health(self) -> None:
        """Raise if the model cannot answer any more: Serve then starts another replica."""
        # Not the server's readiness, which includes versions that are being unloaded.
        if reason := self._server.repository.find(self._model).health.reason:
            raise RuntimeError(f"{self._model} is not ready: {reason}")

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Shut down. Serve awaits the result after the last request; Python calls this again."""
        if not self._is_open:
            return None
        self._is_open = False
        return self._server.shut_down({})
