"""`load_model`, `unload_model` and `is_model_ready`: a model looks after the server's models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from reference_server.backends.python_host.api.calls import InstanceServer
from reference_server.backends.python_host.api.errors import TritonModelException
from reference_server.backends.python_host.api.native import (
    NO_CAST,
    as_text,
    given,
    incompatible_function,
)
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.request import LATEST

_TEXT = (str, bytes)
_LEADING_NUMBER = re.compile(r"\s*([+-]?\d+)")
_LARGEST = (1 << 63) - 1


def load_model(
    server: InstanceServer,
    model_name: str | bytes,
    config: str | bytes,
    files: Mapping[str, bytes] | None,
) -> None:
    """Load a model, and wait for it. Raises TritonModelException."""
    if not isinstance(model_name, _TEXT) or not isinstance(config, _TEXT):
        raise incompatible_function(
            "load_model",
            "(model_name: str, config: str = '', files: object = None) -> None",
            *given((model_name, config, files), ("", None)),
        )
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{as_text(model_name)}', files should be a dictionary of file "
            "paths and file contents"
        )
    for path, content in (files or {}).items():
        if not isinstance(path, str):
            raise RuntimeError(NO_CAST)
        if not isinstance(content, bytes):
            raise TypeError(
                f"Object of type '{type(content).__name__}' is not an instance of 'bytes'"
            )
    try:
        server.calls.load(as_text(model_name), as_text(config) or None, files or {})
    except ServerError as error:
        raise server.failure("Failed to load model", error) from error


def unload_model(
    server: InstanceServer, model_name: str | bytes, *, unload_dependents: bool
) -> None:
    """Begin to unload a model. Raises TritonModelException."""
    if not isinstance(model_name, _TEXT):
        raise incompatible_function(
            "unload_model",
            "(model_name: str, unload_dependents: bool = False) -> None",
            *given((model_name, unload_dependents), (False,)),
        )
    try:
        server.calls.unload(as_text(model_name), unload_dependents=bool(unload_dependents))
    except ServerError as error:
        raise server.failure("Failed to unload model", error) from error


def is_model_ready(
    server: InstanceServer, model_name: str | bytes, model_version: str | bytes
) -> bool:
    """Whether a model can be asked. Raises TritonModelException for what is no version."""
    if not isinstance(model_name, _TEXT) or not isinstance(model_version, _TEXT):
        raise incompatible_function(
            "is_model_ready",
            "(model_name: str, model_version: str = '') -> bool",
            *given((model_name, model_version), ("",)),
        )
    try:
        return server.calls.is_ready(as_text(model_name), _version(as_text(model_version)))
    except ServerError as error:
        raise server.failure("Failed to check model readiness", error) from error


def _version(text: str) -> int:
    """The number that `text` begins with, as Triton reads it. Raises ServerError if it is none."""
    if not text:
        return LATEST
    refusal = f"failed to get model version from specified version string '{text}'"
    rule = "version should be an integral value > 0"
    number = _LEADING_NUMBER.match(text)
    if number is None or int(number[1]) > _LARGEST:
        raise invalid_arg(f"{refusal} (details: stol), {rule}")
    version = int(number[1])
    if version < 0:
        raise invalid_arg(f"{refusal}, {rule}")
    return version


def bound_functions(server: InstanceServer) -> dict[str, Callable[..., Any]]:
    """The three functions as the model of one instance sees them, by name."""

    def load(
        model_name: str | bytes,
        config: str | bytes = "",
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        load_model(server, model_name, config, files)

    def unload(model_name: str | bytes, unload_dependents: bool = False) -> None:
        unload_model(server, model_name, unload_dependents=unload_dependents)

    def ready(model_name: str | bytes, model_version: str | bytes = "") -> bool:
        return is_model_ready(server, model_name, model_version)

    functions: dict[str, Callable[..., Any]] = {
        "load_model": load,
        "unload_model": unload,
        "is_model_ready": ready,
    }
    for name, function in functions.items():
        function.__name__ = function.__qualname__ = name
    return functions
