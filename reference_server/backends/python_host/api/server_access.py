"""A model's access to its server: the port for BLS requests, and model control."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from reference_server.backends.python_host.api.native import (
    TritonModelException,
    as_bool,
    as_text,
    failed_in_server,
    refusal,
)
from reference_server.core import forks
from reference_server.core.cpp import leading_integer
from reference_server.core.errors import ServerError, invalid_arg, unavailable
from reference_server.core.portability import ignore
from reference_server.core.ports import ModelCalls
from reference_server.core.request import LATEST, InferRequest


class Received(Protocol):
    """The part of `InferenceRequest` that this module uses."""

    @property
    def _request(self) -> InferRequest: ...

    @property
    def _sender(self) -> object | None: ...


class _NoCalls:
    """The ModelCalls of a host without a server: every call raises ServerError."""

    def is_decoupled(self, name: str, version: int) -> NoReturn:
        raise _not_ready()

    def is_ready(self, name: str, version: int) -> NoReturn:
        raise _not_ready()

    def infer(
        self, request: InferRequest, halted: Sequence[InferRequest] | None = None
    ) -> NoReturn:
        raise _not_ready()

    def load(
        self,
        name: str,
        config: str | None,
        files: Mapping[str, bytes],
        *,
        initializing: bool = False,
    ) -> NoReturn:
        raise _not_ready()

    def unload(self, name: str, *, unload_dependents: bool, initializing: bool = False) -> NoReturn:
        raise _not_ready()


def _not_ready() -> ServerError:
    return unavailable("Server not ready")


NO_CALLS: ModelCalls = _NoCalls()


@dataclass(slots=True)
class ServerAccess:
    """The state of an instance's access to its server.

    Attributes:
        calls: The server's operations.
        instance_name: The instance's name in error texts.
        is_decoupled: Whether the model is decoupled.
        has_newer_api: As in TritonProfile.
        serves: True between the end of `initialize` and the start of `finalize`.
        thread: The identifier of the thread that runs `execute`.
        loop_thread: Returns the identifier of the thread that runs the instance's coroutines.
        received: The requests that `execute` is processing.
        report: Receives the keys of portability rows that apply to the model.
        generation: The value of `forks.generation` in the instance's process.
    """

    calls: ModelCalls
    instance_name: str
    is_decoupled: bool = False
    has_newer_api: bool = True
    serves: bool = False
    thread: int = 0
    loop_thread: Callable[[], int | None] = lambda: None
    received: Sequence[Received] = ()
    report: Callable[[str], None] = ignore
    generation: int = field(default_factory=lambda: forks.generation)

    def failure(self, action: str, error: ServerError) -> TritonModelException:
        """Return the exception for a server error in `action`."""
        self.report("failed-call")
        return failed_in_server(action, self.instance_name, error)

    def check_stage(self) -> None:
        """Raise TritonModelException outside `execute`."""
        if not self.serves:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        self.check_process()

    def check_process(self) -> None:
        """Raise TritonModelException in a forked child, where a call would wait for ever."""
        if self.generation != forks.generation:
            raise TritonModelException(forks.NO_SERVER)

    def is_initializing(self) -> bool:
        """Return whether the model's load waits for the calling thread."""
        return not self.serves and threading.get_ident() == self.thread

    def halted(self) -> Sequence[InferRequest] | None:
        """Return the requests that are blocked while the calling thread waits.

        Returns:
            None if other threads can continue. Requests with a sender, and requests of a decoupled
            model, are not included, since another thread may answer them.
        """
        # A thread that the model has started may wait: `execute` continues beside it.
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
    """Load a model and wait until it is loaded. Raises TritonModelException or TypeError."""
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
        initializing = server.is_initializing()
        server.calls.load(model_name, config or None, files or {}, initializing=initializing)
    except ServerError as error:
        raise server.failure("Failed to load model", error) from error


def unload(server: ServerAccess, model_name: str | bytes, *, unload_dependents: bool) -> None:
    """Start to unload a model. Raises TritonModelException or TypeError."""
    model_name = as_text(model_name, "model_name")
    unload_dependents = as_bool(unload_dependents, "unload_dependents")
    server.check_process()
    try:
        initializing = server.is_initializing()
        server.calls.unload(
            model_name, unload_dependents=unload_dependents, initializing=initializing
        )
    except ServerError as error:
        raise server.failure("Failed to unload model", error) from error


def is_ready(server: ServerAccess, model_name: str | bytes, model_version: str | bytes) -> bool:
    """Return whether a model is ready. Raises TritonModelException for an invalid version."""
    model_name = as_text(model_name, "model_name")
    model_version = as_text(model_version, "model_version")
    try:
        return server.calls.is_ready(model_name, _version(model_version))
    except ServerError as error:
        raise server.failure("Failed to check model readiness", error) from error


def _version(text: str) -> int:
    """Return the leading integer of `text`, as in Triton. Raises ServerError without an integer."""
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


def bound_get_model_dir(directory: Path) -> Callable[[], str]:
    """Return the function `get_model_dir` for the model of one instance."""

    def get_model_dir() -> str:
        return str(directory)

    get_model_dir.__qualname__ = get_model_dir.__name__
    return get_model_dir


def bound_functions(server: ServerAccess) -> dict[str, Callable[..., Any]]:
    """Return the model control functions for the model of one instance, by name."""

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
