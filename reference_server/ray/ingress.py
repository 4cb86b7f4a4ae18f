"""The v2 protocol in front of the models' deployments, in a replica of its own.

A request for a model is passed unchanged to one of the model's replicas, and so is the reply. A
server without models answers requests for the server; if a request concerns all models, the
replicas' states replace the reply. The ingress serves HTTP, as an ASGI application, and gRPC
(`grpc_ingress`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from ray import serve

from reference_server.codecs import management_json
from reference_server.core.request import LATEST
from reference_server.frontends.http import asgi, pages, routes, status_codes
from reference_server.frontends.http.asgi import Body, Message, Receive, Send
from reference_server.frontends.http.request import RequestRejected
from reference_server.frontends.http.routes import Operation, Route
from reference_server.observability import logs
from reference_server.options import ControlMode, GrpcOptions, HttpOptions, ServerOptions
from reference_server.ray import calls, deployments
from reference_server.ray.calls import Calls
from reference_server.ray.deployments import Deployed
from reference_server.ray.grpc_ingress import GrpcIngress
from reference_server.server import Server

NAME = "v2"
_METRICS = "/metrics"
_OK, _BAD_REQUEST, _UNAVAILABLE = 200, 400, 503
_JSON = b"application/json"
#: Operations on a model that are not passed to replicas.
_NOT_FOR_REPLICAS = frozenset({Operation.REPOSITORY_LOAD, Operation.REPOSITORY_UNLOAD})


class Ingress(GrpcIngress):
    """Answers all requests, on the event loop of its replica. `models` are by name."""

    # Serve awaits the constructor.
    async def __init__(  # type: ignore[misc]
        self, options: ServerOptions, models: Mapping[str, Deployed]
    ) -> None:
        calls.at_the_node_only()
        logs.configure(options.log, splits=options.profile.splits_log)
        self._profile = options.profile
        self._server = Server(
            replace(options, control_mode=ControlMode.NONE, model_repositories=())
        )
        loop = asyncio.get_running_loop()
        await self._server.load_on(loop)
        http = options.http or HttpOptions()
        self._limits = self._server.body_limits(http)
        self._own = calls.Exchanges(self._server.http_handlers(http, loop).handle)
        methods = self._server.grpc_methods(options.grpc or GrpcOptions(), loop)
        super().__init__(models, Calls(methods))

    async def respond(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            body = await asgi.read_body(receive, asgi.head_of(scope).headers, self._limits)
        except RequestRejected as error:
            await asgi.reject(send, error)
            return
        if body is None:
            return
        has_started = False
        # Replicas receive a copy. `body` stays here, so that the memory budget counts it.
        passed = Body(bytes(body.data), body.dropped)
        try:
            async for message in self._answer(calls.request_of(scope), passed):
                has_started = True
                await send(message)
        except deployments.Unanswered as error:
            if has_started:  # the connection must end
                raise
            text = status_codes.body(deployments.described(error))
            for message in asgi.answer(_UNAVAILABLE, text, _JSON):
                await send(message)

    async def _answer(self, request: Message, body: Body) -> AsyncIterator[Message]:
        target: bytes = request["raw_path"]
        route = routes.match(target)
        model = None if route is None else self._deployed.get(route.model)
        messages: Sequence[Message]
        if route is None and routes.path_of(target) == _METRICS:
            messages = await self._metrics()
        elif route is None or model is None or route.operation in _NOT_FOR_REPLICAS:
            messages = await self._answer_for_server(request, body, route)
        elif route.operation is Operation.GENERATE_STREAM:
            async for message in deployments.stream(model, "stream", request, body):
                yield message
            return
        elif route.operation is Operation.TRACE_SETTINGS:
            messages = (await deployments.call_all(model, "answer", request, body))[0]
        else:
            messages = await deployments.call_one(model, "answer", request, body)
            if route.operation is Operation.MODEL_STATISTICS and _is_ok(messages):
                messages = await _statistics([model], route.version)
        for message in messages:
            yield message

    async def _answer_for_server(
        self, request: Message, body: Body, route: Route | None
    ) -> Sequence[Message]:
        # The server without models finds the errors of the request.
        messages = await self._own.whole(request, body)
        if route is None or not _is_ok(messages):
            return messages
        models = self._deployed
        if route.operation is Operation.READY:
            return (
                messages if await asyncio.to_thread(deployments.all_run, models) else _not_ready()
            )
        if route.operation is Operation.ALL_STATISTICS:
            return await _statistics(models.values(), LATEST)
        if route.operation is Operation.REPOSITORY_INDEX:
            ready_only = management_json.index_request(body.data, self._profile)
            rows = await deployments.index(models, ready_only=ready_only)
            return asgi.answer(_OK, management_json.index(row.fields for row in rows), _JSON)
        if request["method"] != "GET" and route.operation in (
            Operation.LOG_SETTINGS,
            Operation.TRACE_SETTINGS,
        ):
            for model in models.values():
                await deployments.call_all(model, "answer", request, body)
        return messages

    async def _metrics(self) -> Sequence[Message]:
        replicas = await deployments.states(self._deployed.values())
        page = pages.encode_metrics(
            deployments.families({each.replica: each.families for each in replicas})
        )
        return asgi.answer(_OK, page, pages.METRICS_TYPE)


def application() -> Callable[[Message, Receive, Send], Awaitable[None]]:
    """Return the ASGI application of the `Ingress` in whose replica it runs."""
    return _respond


async def _respond(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        ingress = cast("Ingress", serve.get_replica_context().servable_object)
        await ingress.respond(scope, receive, send)
    elif scope["type"] == "lifespan":
        for stage in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{stage}.complete"})
    else:  # websocket
        await send({"type": "websocket.close", "code": 1003})


# -- answers


def _is_ok(messages: Sequence[Message]) -> bool:
    return bool(messages[0]["status"] == _OK)


def _not_ready() -> Sequence[Message]:
    return asgi.answer(_BAD_REQUEST, b"", b"text/plain")


async def _statistics(models: Iterable[Deployed], version: int) -> Sequence[Message]:
    found = await deployments.statistics(models, version)
    return asgi.answer(_OK, management_json.statistics(found), _JSON)
