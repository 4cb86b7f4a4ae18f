"""A model repository under test: a server without ports, and its clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.message import Message

from reference_server.command import cli, preflight
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
from reference_server.testing.model import Model, Stub, StubbedModels

_ALL = ("*",)


class ModelRepository:
    """A server without ports. Thread-safe. Created by `open_repository`."""

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
        # Replaces the repository that `Server.load` has connected.
        server.model_calls.connect(
            self._stubs, is_explicit=options.control_mode is ControlMode.EXPLICIT
        )

    def model(self, name: str, version: int = LATEST) -> Model:
        """Return a model by name. It need not be loaded yet.

        Args:
            name: the model's name.
            version: the version; by default the latest loaded version.
        """
        return Model(self._server.gateway, self._loop, name, version)

    def stub(self, name: str, answer: Stub) -> None:
        """Answer BLS calls of models to the model `name` by a function.

        Clients do not see stubs. A stub replaces a model of the same name in calls.

        Args:
            name: the name that models call.
            answer: returns output arrays by name for input arrays by name, such as `lambda inputs:
                {"Y": inputs["X"] * 2}`. It runs on the calling model's thread. An exception becomes
                the error of the response. A generator function is a decoupled model.
        """
        self._stubs.add(name, answer)

    def load(self, name: str, config: Mapping[str, Any] | None = None) -> Model:
        """Load a model, or reload it if its files have changed. Blocks.

        Args:
            name: the model's name.
            config: a configuration that replaces config.pbtxt, with its field names.

        Returns:
            The model.

        Raises:
            ServerError: the model cannot be loaded.
        """
        parameters = None if config is None else {"config": json.dumps(config)}
        self._server.control.load(name, parameters)
        return self.model(name)

    def unload(self, name: str) -> None:
        """Start to unload a model. Requests in flight are answered first.

        Raises:
            ServerError: the model is not known.
        """
        self._server.control.unload(name)

    def index(self) -> Sequence[IndexEntry]:
        """Return the state of each model and version in the repository."""
        return self._server.control.index()

    def metrics(self) -> str:
        """Return the text of the metrics page, including metrics of models."""
        return self._metrics.request("GET", "/metrics", b"", {}).body.decode()

    def http(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpReply:
        """Send an HTTP request, such as `POST /v2/models/bert/infer`, and wait for the reply.

        Args:
            method: the HTTP method.
            path: the path with the query.
            body: the body.
            headers: headers by name. Content-Length is added unless it is given.

        Returns:
            The reply, also if its status is an error.
        """
        return self._http.request(method, path, body, headers or {})

    def http_raw(self, data: bytes) -> bytes:
        """Send bytes on an HTTP connection, and return all bytes of the replies. Blocks."""
        return self._http.exchange(data)

    def grpc(self, method: str, request: Message, metadata: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - the method's response type
        """Call a unary gRPC method, such as `ModelInfer`. Blocks.

        Args:
            method: the method's name in GRPCInferenceService.
            request: the request message of that method.
            metadata: metadata by name.

        Returns:
            The response message of that method.

        Raises:
            ServerError: the call ended with an error.
            KeyError: there is no such method.
        """
        (response,) = self._grpc.call(method, [request], metadata or {})
        return response

    def grpc_stream(
        self, method: str, requests: Sequence[Message], metadata: Mapping[str, str] | None = None
    ) -> list[Any]:
        """Call a streaming gRPC method, such as `ModelStreamInfer`. Blocks until its end.

        Args:
            method: the method's name in GRPCInferenceService.
            requests: the request messages; all are sent at once.
            metadata: metadata by name.

        Returns:
            All response messages.

        Raises:
            ServerError: the call ended with an error.
            KeyError: there is no such method.
        """
        return self._grpc.call(method, requests, metadata or {})


class OpenRepository(Protocol):
    """The type of the fixture `triton_repository`: opens repositories until the test ends."""

    def __call__(
        self, *directories: str | Path, models: Sequence[str] = _ALL, options: Sequence[str] = ()
    ) -> ModelRepository:
        """Open a repository. See `open_repository` for the arguments."""


class OpenModel(Protocol):
    """The type of the fixture `triton_model`: opens models until the test ends."""

    def __call__(self, folder: str | Path, *, options: Sequence[str] = ()) -> Model:
        """Open a model. See `open_model` for the arguments."""


@contextlib.contextmanager
def open_repository(
    *directories: str | Path, models: Sequence[str] = _ALL, options: Sequence[str] = ()
) -> Iterator[ModelRepository]:
    """Open a model repository and load models from it.

    Args:
        *directories: the folders of the repository.
        models: names of models to load; `*` is all models. Load further models by
            `ModelRepository.load`.
        options: options of the server's command line, such as
            `--backend-config=python,host=process` or `--exit-on-error=false`.

    Yields:
        The repository. All models are unloaded when the block is left.

    Raises:
        ServerError: a model cannot be loaded; the text has the reasons of all models.
        SystemExit: an option is invalid.
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
    """Open a model folder (`config.pbtxt`, `1/model.py`), with the models that it uses.

    Args:
        folder: the model's folder. Models that an ensemble uses are next to it.
        options: options of the server's command line, see `open_repository`.

    Yields:
        The model. It is unloaded when the block is left.

    Raises:
        ServerError: the model cannot be loaded.
        SystemExit: an option is invalid.
    """
    path = Path(folder).resolve()
    with open_repository(path.parent, models=[path.name], options=options) as repository:
        yield repository.model(path.name)


def _not_loaded(server: Server, hints: Sequence[str]) -> ServerError:
    statuses = server.repository.statuses()
    reasons = [f"{status.model}: {status.reason}" for status in statuses if status.reason]
    return internal("\n".join(["failed to load", *reasons, *(f"hint: {hint}" for hint in hints)]))
