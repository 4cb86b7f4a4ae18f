"""Finds mistakes that would show late or cause misleading errors, before models are loaded.

tritonserver reports a port in use only after it has loaded all models, and does not report the
other mistakes.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from reference_server.command.values import nearest
from reference_server.config import pbtxt
from reference_server.core.errors import ServerError
from reference_server.frontends.connections import listen_error
from reference_server.options import ServerOptions
from reference_server.repository.model_folders import Repositories

_SERVICES = {"grpc": "GRPC", "http": "HTTP", "metrics": "Metrics"}


def check_ports(options: ServerOptions) -> None:
    """Check that all ports are free, in Triton's order.

    Raises:
        ServerError: UNAVAILABLE. The message is the line with which tritonserver exits, followed by
            the options that help.
    """
    if options.grpc is not None:
        _try_port("grpc", options.grpc.address, options.grpc.port, options.grpc.reuse_port)
    if options.http is not None:
        _try_port("http", options.http.address, options.http.port, options.http.reuse_port)
    if options.metrics is not None:
        _try_port("metrics", options.metrics.address, options.metrics.port, shared=False)


def _try_port(service: str, address: str, port: int, shared: bool) -> None:
    try:
        places = socket.getaddrinfo(
            address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:  # the listener reports it
        return
    for family, kind, protocol, _, place in places:
        try:
            with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
                # As in the listener: closed connections do not block the port. The socket does not
                # listen, so that no client connects to it.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if shared:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
        except OSError as error:
            # The listener reports other errors, such as a machine without IPv6.
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                refused = listen_error(f"{address}:{port}", error)
                text = (
                    f"failed to start {_SERVICES[service]} service: {refused.code.value} - "
                    f"{refused.message.rstrip()} : --{service}-port=N selects another port, "
                    f"--allow-{service}=false disables it"
                )
                raise ServerError(refused.code, text) from error


def hints(options: ServerOptions) -> list[str]:
    """Return warnings about options that are probably mistakes, each with its fix."""
    try:
        found = [hint for path in options.model_repositories for hint in _not_a_repository(path)]
        return found + _stubs_of_nothing(options.stub_models, options.model_repositories)
    except (OSError, ServerError):  # loading reports what cannot be read
        return []


def _not_a_repository(path: Path) -> list[str]:
    """Report a path that is the folder of a model or a version instead of a repository."""
    if not path.is_dir():
        return []
    whole = path.resolve()
    if (path / pbtxt.FILE_NAME).is_file():
        found = f"it contains {pbtxt.FILE_NAME}"
        repository = whole.parent
    elif version := _version_with_a_model(path):
        found = f"it contains {version}"
        repository = whole.parent
    elif whole.name.isdecimal() and (file := _model_file(path)):
        found = f"it is the folder of a version and contains {file}"
        repository = whole.parent.parent
    else:
        return []
    return [
        f"--model-repository={path}: found the folder of a model ({found}); expected the folder "
        f"that contains models. Use --model-repository={repository}"
    ]


def _version_with_a_model(path: Path) -> str | None:
    for version in sorted(path.iterdir()):
        # A folder whose name is a number may also be a model.
        is_model = (version / pbtxt.FILE_NAME).exists()
        if version.name.isdecimal() and not is_model and (file := _model_file(version)):
            return f"{version.name}/{file}"
    return None


def _model_file(version: Path) -> str | None:
    return next((file.name for file in sorted(version.glob("model.*"))), None)


def _stubs_of_nothing(stubs: Mapping[str, str], repositories: Sequence[Path]) -> list[str]:
    if not stubs:
        return []
    names = Repositories(repositories).directories()
    return [
        f"--stub-model={name}={function} has no effect: the repository has no model "
        f"'{name}'" + (nearest(name, names) or f"; its models are: {', '.join(names) or 'none'}")
        for name, function in stubs.items()
        if name not in names
    ]
