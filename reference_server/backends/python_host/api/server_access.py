"""A model's access to its server: the port for BLS, and the functions of model control."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from reference_server.backends.python_host.api.arguments import (
    as_bool,
    as_text,
    refusal,
)
from reference_server.backends.python_host.api.native import (
    TritonModelException,
    failed_in_server,
)
from reference_server.core import forks
from reference_server.core.errors import ServerError, invalid_arg, unavailable
from reference_server.core.numerals import leading_integer
from reference_server.core.ports import ModelCalls
from reference_server.core.request import LATEST, InferRequest


class Received(Protocol):
    """A request that the model is executing: an `InferenceRequest`, which is built on this."""

    @property
    def _request(self) -> InferRequest: ...

    @property
    def _sender(self) -> object | None: ...


class _NoCalls:
    """The calls of a host without a server: all are refused."""

    def is_decoupled(self, name: str, version: int) -> NoReturn:
        raise _not_ready()

    def is_ready(self, name: str, version: int) -> NoReturn:
        raise _not_ready()

    def infer(
        self, request: InferRequest, halted: Sequence[InferRequest] | None = None
    ) -> NoReturn:
        raise _not_ready()

    def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> NoReturn:
        raise _not_ready()

    def unload(self, name: str, *, unload_dependents: bool) -> NoReturn:
        raise _not_ready()


def _not_ready() -> ServerError:
    return unavailable("Server not ready")


NO_CALLS: ModelCalls = _NoCalls()


@dataclass(slots=True)
class ServerAccess:
    """What an instance's model can reach of its server.

    `serves` between the end of `initialize` and the beginning of `finalize`. `thread` is the one
    that runs `execute`, `received` what it is given now, `loop_thread` tells the one that runs what
    `execute` awaits. `has_newer_api` as in TritonProfile.
    """

    calls: ModelCalls
    instance_name: str
    is_decoupled: bool = False
    has_newer_api: bool = True
    serves: bool = False
    thread: int = 0
    loop_thread: Callable[[], int | None] = lambda: None
    received: Sequence[Received] = ()
    generation: int = field(default_factory=lambda: forks.generation)

    def failure(self, action: str, error: ServerError) -> TritonModelException:
        """What the model is told of an error that the server found in `action`."""
        return failed_in_server(action, self.instance_name, error)

    def check_stage(self) -> None:
        """Raise TritonModelException outside `execute`."""
        if not self.serves:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        self.check_process()

    def check_process(self) -> None:
        """Raise TritonModelException in a forked copy: there it would wait for ever."""
        if self.generation != forks.generation:
            raise TritonModelException(forks.NO_SERVER)

    def halted(self) -> Sequence[InferRequest] | None:
        """The requests that stand still while the calling thread waits; None if others can go on.

        A decoupled model's, and those that have a sender, may be answered by other threads.
        """
        # A thread that the model has started itself may wait: `execute` goes on beside it.
        thread = threading.get_ident()
        if thread != self.thread and (self.is_decoupled or thread != self.loop_thread()):
            return None
        if self.is_decoupled:
            return ()
        return [request._request for request in self.received if request._sender is None]


# ------------------------------------------------------------------------------ model control

_LARGEST = (1 << 63) - 1


def load(
    server: ServerAccess,
    model_name: str | bytes,
    config: str | bytes,
    files: Mapping[str, bytes] | None,
) -> None:
    """Load a model, and wait for it. Raises TritonModelException."""
    model_name = as_text(model_name, "model_name")
    config = as_text(config, "config")
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file "
            "paths and file contents"
        )
    for path, content in (files or {}).items():
        if not isinstance(path, str):
            raise RuntimeError(str(refusal("files", path, "paths of type str")))
        if not isinstance(content, bytes):
            raise refusal(f"files[{path!r}]", content, "bytes")
    server.check_process()
    try:
        server.calls.load(model_name, config or None, files or {})
    except ServerError as error:
        raise server.failure("Failed to load model", error) from error


def unload(server: ServerAccess, model_name: str | bytes, *, unload_dependents: bool) -> None:
    """Begin to unload a model. Raises TritonModelException."""
    model_name = as_text(model_name, "model_name")
    unload_dependents = as_bool(unload_dependents, "unload_dependents")
    server.check_process()
    try:
        server.calls.unload(model_name, unload_dependents=unload_dependents)
    except ServerError as error:
        raise server.failure("Failed to unload model", error) from error


def is_ready(server: ServerAccess, model_name: str | bytes, model_version: str | bytes) -> bool:
    """Whether a model can be asked. Raises TritonModelException for what is no version."""
    model_name = as_text(model_name, "model_name")
    model_version = as_text(model_version, "model_version")
    try:
        return server.calls.is_ready(model_name, _version(model_version))
    except ServerError as error:
        raise server.failure("Failed to check model readiness", error) from error


def _version(text: str) -> int:
    """The number that `text` begins with, as Triton reads it. Raises ServerError if it is none."""
    if not text:
        return LATEST
    refusal = f"failed to get model version from specified version string '{text}'"
    rule = "version should be an integral value > 0"
    version = leading_integer(text)
    if version is None or version > _LARGEST:
        raise invalid_arg(f"{refusal} (details: stol), {rule}")
    if version < 0:
        raise invalid_arg(f"{refusal}, {rule}")
    return version


def telling_directory(directory: Path) -> Callable[[], str]:
    """`get_model_dir` as the model of one instance sees it."""

    def get_model_dir() -> str:
        return str(directory)

    get_model_dir.__qualname__ = get_model_dir.__name__
    return get_model_dir


def bound_functions(server: ServerAccess) -> dict[str, Callable[..., Any]]:
    """The three functions as the model of one instance sees them, by name."""

    def load_model(
        model_name: str | bytes,
        config: str | bytes = "",
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        load(server, model_name, config, files)

    def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
        unload(server, model_name, unload_dependents=unload_dependents)

    def is_model_ready(model_name: str | bytes, model_version: str | bytes = "") -> bool:
        return is_ready(server, model_name, model_version)

    functions: tuple[Callable[..., Any], ...] = (load_model, unload_model, is_model_ready)
    for function in functions:
        function.__qualname__ = function.__name__
    return {function.__name__: function for function in functions}
