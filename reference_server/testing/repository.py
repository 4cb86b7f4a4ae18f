"""A model repository under test: a server without ports, and clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.message import Message

from reference_server import cli, preflight
from reference_server.core.errors import ServerError, internal
from reference_server.core.request import LATEST
from reference_server.options import (
    ControlMode,
    GrpcOptions,
    HttpOptions,
    MetricsOptions,
    ServerOptions,
)
from reference_server.repository.versions import IndexEntry
from reference_server.server import Server
from reference_server.testing.clients import GrpcClient, HttpClient, HttpReply, running_loop
from reference_server.testing.model import Model
from reference_server.testing.stubs import Stub, StubbedModels

_ALL = ("*",)


class ModelRepository:
    """A server without ports. Any thread; made by `open_repository`."""

    def __init__(
        self, server: Server, options: ServerOptions, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._server = server
        self._loop = loop
        http = options.http or HttpOptions()
        metrics = options.metrics or MetricsOptions()
        handle = server.http_handlers(http, loop).handle
        self._http = HttpClient(handle, loop, http.max_input_bytes)
        self._metrics = HttpClient(server.metrics_handlers(metrics).handle, loop)
        methods = server.grpc_methods(options.grpc or GrpcOptions(), loop)
        self._grpc = GrpcClient(methods, loop)
        self._stubs = StubbedModels(server.repository)
        # In the place of the repository, which `Server.load` has connected.
        server.model_calls.connect(
            self._stubs, is_explicit=options.control_mode is ControlMode.EXPLICIT
        )

    def model(self, name: str, version: int = LATEST) -> Model:
        """A model, which need not be loaded yet."""
        return Model(self._server.gateway, self._loop, name, version)

    def stub(self, name: str, answer: Stub) -> None:
        """Let `answer` stand for the model `name` where models call it; clients do not see it.

        `answer` gives outputs for inputs, `lambda inputs: {"Y": inputs["X"] * 2}`, or raises what
        the calling model is to be told. A generator function is a decoupled model. It is called by
        the thread that calls, also if there is a model of that name.
        """
        self._stubs.add(name, answer)

    def load(self, name: str, config: Mapping[str, Any] | None = None) -> Model:
        """Load a model, or load it again if it has changed. Blocks; raises ServerError.

        `config` stands in for config.pbtxt.
        """
        parameters = None if config is None else {"config": json.dumps(config)}
        self._server.control.load(name, parameters)
        return self.model(name)

    def unload(self, name: str) -> None:
        """Begin to unload a model; requests in flight are answered first."""
        self._server.control.unload(name)

    def index(self) -> Sequence[IndexEntry]:
        """What lies in the repository, and what became of it."""
        return self._server.control.index()

    def metrics(self) -> str:
        """The page of the metrics port, with the models' own metrics."""
        return self._metrics.request("GET", "/metrics", b"", {}).body.decode()

    def http(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """The reply to one HTTP request, such as `POST /v2/models/bert/infer`. Blocks."""
        return self._http.request(method, path, body, headers or {})

    def http_raw(self, data: bytes) -> bytes:
        """All that an HTTP connection answers to these bytes. Blocks."""
        return self._http.exchange(data)

    def grpc(self, method: str, request: Message, metadata: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - the message that the method answers with
        """The answer of a method by its name, such as `ModelInfer`. Blocks; raises ServerError."""
        (response,) = self._grpc.call(method, [request], metadata or {})
        return response

    def grpc_stream(
        self, method: str, requests: Sequence[Message], metadata: Mapping[str, str] | None = None
    ) -> list[Any]:
        """All answers to a stream of requests. Blocks until the last; raises ServerError."""
        return self._grpc.call(method, requests, metadata or {})


class OpenRepository(Protocol):
    """The fixture `triton_repository`: `open_repository`, and closed when the test ends."""

    def __call__(
        self, *directories: str | Path, models: Sequence[str] = _ALL, options: Sequence[str] = ()
    ) -> ModelRepository:
        """Open one more repository."""


class OpenModel(Protocol):
    """The fixture `triton_model`: `open_model`, and closed when the test ends."""

    def __call__(self, folder: str | Path, *, options: Sequence[str] = ()) -> Model:
        """Open one more model."""


@contextlib.contextmanager
def open_repository(
    *directories: str | Path, models: Sequence[str] = _ALL, options: Sequence[str] = ()
) -> Iterator[ModelRepository]:
    """The repository in `directories` with these `models` loaded; the rest by `load`.

    `options` are those of the server's command line, such as `--backend-config=python,host=process`
    or `--exit-on-error=false`. Raises ServerError with all reasons if a model cannot be loaded.
    """
    arguments = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in models)]
    arguments += [f"--model-repository={directory}" for directory in directories]
    parsed, _ = cli.parse([*arguments, *options])
    with running_loop() as loop:
        server = Server(parsed)
        try:
            if not server.load(loop) and parsed.exit_on_error:
                raise _not_loaded(server, preflight.hints(parsed))
            yield ModelRepository(server, parsed, loop)
        finally:
            server.close()


@contextlib.contextmanager
def open_model(folder: str | Path, *, options: Sequence[str] = ()) -> Iterator[Model]:
    """The model in `folder` (`config.pbtxt`, `1/model.py`) with the models that it uses, if any.

    These lie beside it. Otherwise as `open_repository`.
    """
    path = Path(folder).resolve()
    with open_repository(path.parent, models=[path.name], options=options) as repository:
        yield repository.model(path.name)


def _not_loaded(server: Server, hints: Sequence[str]) -> ServerError:
    statuses = server.repository.statuses()
    reasons = [f"{status.model}: {status.reason}" for status in statuses if status.reason]
    return internal("\n".join(["failed to load", *reasons, *(f"hint: {hint}" for hint in hints)]))
