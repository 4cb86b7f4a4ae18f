"""The v2 protocol in front of the models' deployments: an ASGI application in a replica of its own.

What is asked of a model goes to one of its replicas as it came, and the answer comes back as the
replica's gateway has made it. What is asked of the server is answered by a server without models;
where that means all models, what their replicas tell takes the place of the body.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ray import serve
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from reference_server.codecs import management_json, prometheus
from reference_server.core.request import LATEST
from reference_server.frontends.http import routes, status_codes
from reference_server.frontends.http.asgi import Message, Receive, Send
from reference_server.frontends.http.routes import Operation, Route
from reference_server.observability import logs
from reference_server.options import ControlMode, HttpOptions, ServerOptions
from reference_server.ray import exchange, merging
from reference_server.ray.replica import Told
from reference_server.repository.versions import IndexEntry, State
from reference_server.server import Server

log = logging.getLogger(__name__)

NAME = "v2"
_METRICS = "/metrics"
#: How often a request is sent whose replica dies: what kills its replica kills two.
_TRIES = 2
#: How long, in seconds, replicas may take to tell of themselves.
_TELL_S = 10
_OK, _BAD_REQUEST, _UNAVAILABLE = 200, 400, 503
_JSON = b"application/json"
#: Of a replica that takes requests, as Serve's status names it.
_RUNNING: Any = "RUNNING"
#: What a replica could do, though it names a model.
_NOT_FOR_REPLICAS = frozenset({Operation.REPOSITORY_LOAD, Operation.REPOSITORY_UNLOAD})
#: The replica, or its machine, is gone, and the answer with it.
_Gone = (RayActorError, NodeDiedError, ObjectLostError)


@dataclass(frozen=True)
class Deployed:
    """A model's deployment. What `keeps_state` is not asked again when its replica has died."""

    handle: DeploymentHandle[Any]
    keeps_state: bool

    @property
    def tries(self) -> range:
        """By how many more tries each one is followed."""
        return range(0 if self.keeps_state else _TRIES - 1, -1, -1)


class Ingress:
    """Answers all requests, on the loop of its replica. `models` are by name."""

    # Serve waits for it.
    async def __init__(  # type: ignore[misc]
        self, options: ServerOptions, models: Mapping[str, Deployed]
    ) -> None:
        logs.configure(options.log)
        self._models = models
        self._profile = options.profile
        self._server = Server(
            replace(options, control_mode=ControlMode.NONE, model_repositories=())
        )
        loop = asyncio.get_running_loop()
        await self._server.load_on(loop)
        http = options.http or HttpOptions()
        handlers = self._server.http_handlers(http, loop)
        self._own = exchange.Exchanges(handlers.handle, http.max_input_bytes)

    async def respond(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = await exchange.body_of(receive)
        if body is None:
            return
        has_begun = False
        try:
            async for message in self._answer(exchange.request_of(scope), body):
                has_begun = True
                await send(message)
        except (*_Gone, BackPressureError, DeploymentUnavailableError) as error:
            if has_begun:  # the end of the connection tells
                raise
            text = status_codes.body(f"the model cannot be asked now: {_first_line(error)}")
            for message in exchange.answer(_UNAVAILABLE, text, _JSON):
                await send(message)

    async def _answer(self, asked: Message, body: bytes) -> AsyncIterator[Message]:
        target: bytes = asked["raw_path"]
        route = routes.match(target)
        model = None if route is None else self._models.get(route.model)
        if route is None and routes.path_of(target) == _METRICS:
            messages = await self._metrics()
        elif route is None or model is None or route.operation in _NOT_FOR_REPLICAS:
            messages = await self._of_the_server(asked, body, route)
        elif route.operation is Operation.GENERATE_STREAM:
            async for message in _stream(model, asked, body):
                yield message
            return
        elif route.operation is Operation.TRACE_SETTINGS:
            messages = (await _ask_all(model, "answer", asked, body))[0]
        else:
            messages = await _ask_one(model, asked, body)
            if route.operation is Operation.MODEL_STATISTICS and _is_ok(messages):
                messages = _statistics(await _tell([model]), route.version)
        for message in messages:
            yield message

    async def _of_the_server(
        self, asked: Message, body: bytes, route: Route | None
    ) -> Sequence[Message]:
        # First as a server without models answers: the request's faults are told by that.
        messages = await self._own.whole(asked, body)
        if route is None or not _is_ok(messages):
            return messages
        models = self._models
        if route.operation is Operation.READY:
            return messages if await asyncio.to_thread(_all_run, models) else _not_ready()
        if route.operation is Operation.ALL_STATISTICS:
            return _statistics(await _tell(models.values()), LATEST)
        if route.operation is Operation.REPOSITORY_INDEX:
            ready_only = management_json.index_request(body, self._profile)
            return _index(models, await _tell(models.values()), ready_only=ready_only)
        if asked["method"] != "GET" and route.operation in (
            Operation.LOG_SETTINGS,
            Operation.TRACE_SETTINGS,
        ):
            for model in models.values():
                await _ask_all(model, "answer", asked, body)
        return messages

    async def _metrics(self) -> Sequence[Message]:
        told = await _tell(self._models.values())
        page = prometheus.encode(merging.families({each.replica: each.families for each in told}))
        return exchange.answer(_OK, page, prometheus.CONTENT_TYPE)


def application() -> Callable[[Message, Receive, Send], Awaitable[None]]:
    """The ASGI application, of the `Ingress` in whose replica it runs."""
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


# -- asking replicas


async def _ask_one(model: Deployed, asked: Message, body: bytes) -> Sequence[Message]:
    for left in model.tries:
        try:
            messages: Sequence[Message] = await model.handle.answer.remote(asked, body)
        except _Gone as error:
            if not left:
                raise
            log.warning("sent again, for its replica is gone: %s", _first_line(error))
        else:
            return messages
    raise AssertionError("the last try returns or raises")


async def _stream(model: Deployed, asked: Message, body: bytes) -> AsyncIterator[Message]:
    streams: DeploymentHandle[Any] = model.handle.options(stream=True)
    for left in model.tries:
        has_begun = False
        try:
            answer = cast(
                "DeploymentResponseGenerator[Message]", streams.stream.remote(asked, body)
            )
            async for message in answer:
                has_begun = True
                yield message
        except _Gone as error:
            if has_begun or not left:
                raise
            log.warning("sent again, for its replica is gone: %s", _first_line(error))
        else:
            return


async def _ask_all(model: Deployed, method: str, *arguments: object) -> list[Any]:
    """What all replicas answer that do; at least one has."""
    answers = await model.handle.broadcast(method, *arguments).results_async(
        timeout_s=_TELL_S, return_exceptions=True
    )
    good = [answer for answer in answers if not isinstance(answer, Exception)]
    if not good:
        raise answers[0]
    return good


async def _tell(models: Iterable[Deployed]) -> list[Told]:
    """What the replicas of these models tell; of one that has none, nothing."""
    answers = await asyncio.gather(
        *(_ask_all(model, "tell") for model in models), return_exceptions=True
    )
    return [told for answer in answers if isinstance(answer, list) for told in answer]


def _all_run(models: Iterable[str]) -> bool:
    """Whether each model has a replica that takes requests. Blocks."""
    application = serve.status().applications.get(serve.get_replica_context().app_name)
    if application is None:
        return False
    running = {
        name: deployment.replica_states.get(_RUNNING, 0)
        for name, deployment in application.deployments.items()
    }
    return all(running.get(name) for name in models)


# -- answers


def _is_ok(messages: Sequence[Message]) -> bool:
    return bool(messages[0]["status"] == _OK)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _not_ready() -> Sequence[Message]:
    return exchange.answer(_BAD_REQUEST, b"", b"text/plain")


def _statistics(told: Iterable[Told], version: int) -> Sequence[Message]:
    found = merging.statistics(snapshot for each in told for snapshot in each.statistics)
    wanted = [snapshot for snapshot in found if version in (LATEST, snapshot.version)]
    return exchange.answer(_OK, management_json.statistics(wanted), _JSON)


def _index(models: Iterable[str], told: Iterable[Told], *, ready_only: bool) -> Sequence[Message]:
    rows: dict[tuple[str, int | None], IndexEntry] = {}
    for each in told:
        for row in each.index:
            rows.setdefault((row.name, row.version), row)
    named = {name for name, _ in rows}
    for name in models:
        if name not in named:
            rows[name, None] = IndexEntry(name, None, State.UNAVAILABLE, "no replica runs")
    body = management_json.index(
        (row.name, row.version, row.state.value if row.state else None, row.reason)
        for _, row in sorted(rows.items(), key=lambda item: (item[0][0], item[0][1] or 0))
        if not ready_only or row.state is State.READY
    )
    return exchange.answer(_OK, body, _JSON)
