"""What is looked at before a model is loaded: mistakes that would show late, or as something else.

tritonserver finds a port in use after it has loaded all models, and says nothing of the others.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from reference_server.command.config_options import nearest
from reference_server.config import pbtxt
from reference_server.core.errors import ServerError
from reference_server.frontends.connections import cannot_listen
from reference_server.options import ServerOptions
from reference_server.repository.model_folders import Repositories

_SERVICES = {"grpc": "GRPC", "http": "HTTP", "metrics": "Metrics"}


def refuse_taken_ports(options: ServerOptions) -> None:
    """Raise ServerError UNAVAILABLE if a port cannot be had, the first one in Triton's order.

    The message is the line with which tritonserver ends, and the flags that help.
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
    except OSError:  # which the listener tells
        return
    for family, kind, protocol, _, place in places:
        try:
            with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
                # As the listener's, so that connections that have ended are no obstacle. It does
                # not listen, so that nobody connects to it.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if shared:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
        except OSError as error:
            # All else, such as a machine without IPv6, is the listener's to judge.
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                refused = cannot_listen(f"{address}:{port}", error)
                text = (
                    f"failed to start {_SERVICES[service]} service: {refused.code.value} - "
                    f"{refused.message.rstrip()} : --{service}-port=N chooses another port, "
                    f"--allow-{service}=false goes without"
                )
                raise ServerError(refused.code, text) from error


def hints(options: ServerOptions) -> list[str]:
    """What of the options is probably not what was meant, a sentence each with the cure."""
    try:
        found = [hint for path in options.model_repositories for hint in _not_a_repository(path)]
        return found + _stubs_of_nothing(options.stub_models, options.model_repositories)
    except (OSError, ServerError):  # what cannot be read, the load tells
        return []


def _not_a_repository(path: Path) -> list[str]:
    """A model's own folder, or a version's, holds no folders of models."""
    if not path.is_dir():
        return []
    whole = path.resolve()
    if (path / pbtxt.FILE_NAME).is_file():
        found = f"it holds {pbtxt.FILE_NAME}"
        repository = whole.parent
    elif version := _version_with_a_model(path):
        found = f"it holds {version}"
        repository = whole.parent
    elif whole.name.isdecimal() and (file := _model_file(path)):
        found = f"it is a version's folder and holds {file}"
        repository = whole.parent.parent
    else:
        return []
    return [
        f"--model-repository={path} is a model and no repository: {found}, and models are folders "
        f"in the repository; give --model-repository={repository}"
    ]


def _version_with_a_model(path: Path) -> str | None:
    for version in sorted(path.iterdir()):
        # A model may have a number for a name; then it has folders for versions itself.
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
        f"--stub-model={name}={function} stands in for nothing: the repository has no model "
        f"'{name}'" + (nearest(name, names) or f"; it has {', '.join(names) or 'none'}")
        for name, function in stubs.items()
        if name not in names
    ]
