"""Triton's frontends for servers in this process (`tritonfrontend`), over the reference server.

    with tritonfrontend.KServeHttp(server), tritonfrontend.KServeGrpc(server):
        ...

Names and options are those of NVIDIA's package, which is used instead if it is installed.
"""

from __future__ import annotations

import dataclasses
import re
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

from reference_server import __version__ as __version__
from reference_server.core import forks
from reference_server.options import Compression, GrpcOptions, HttpOptions, TlsOptions
from reference_server.shutdown import ExitTimeout, Listener, shut_down
from tritonserver import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    Server,
    UnavailableError,
)
from tritonserver._api._engine import Running
from tritonserver._c import raising

__all__ = ["KServeGrpc", "KServeHttp", "Metrics"]

_MAX_PORT = 65535


@dataclass
class _Options:
    """Options that are checked when the object is created.

    Raises:
        ValueError: a value has the wrong type or is out of range.
    """

    #: The minimum of integer options, where it is not 0.
    _LOWEST: ClassVar[dict[str, int]] = {}

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            name = option.name
            value: Any = getattr(self, name)
            expected: type = int if isinstance(option.default, IntEnum) else type(option.default)
            if not _is_of(value, expected):
                raise self._fault(name, value, expected.__name__)
            if expected is int:
                low = self._LOWEST.get(name, 0)
                high = _MAX_PORT if name == "port" else 2**31 - 1
                if not low <= value <= high:
                    raise self._fault(name, value, f"{low} to {high}")
                setattr(self, name, int(value))
            elif name.endswith("_pattern"):
                try:
                    re.compile(value)
                except re.error:
                    raise self._fault(name, value, "a regular expression") from None

    def _fault(self, name: str, value: object, expected: str) -> ValueError:
        return ValueError(f"{type(self).__qualname__}.{name}: found {value!r}; expected {expected}")


def _is_of(value: object, expected: type) -> bool:
    """Return True if `value` has the type. A bool does not count as an integer."""
    return isinstance(value, expected) and isinstance(value, bool) == (expected is bool)


class _Frontend(ABC):
    """A port of a server. Use `start` and `stop`, or a `with` block.

    Args:
        server: a started server.
        options: `Options` of this class; None: all defaults.

    Raises:
        InvalidArgumentError: the server is not started, or the options are of another class.
    """

    Options: ClassVar[type[_Options]]
    #: The name of the port in the log.
    _NAME: ClassVar[str]

    def __init__(self, server: Server, options: Any = None) -> None:  # noqa: ANN401 - own class
        if not isinstance(server, Server):
            raise InvalidArgumentError(f"server: found {server!r}; expected tritonserver.Server")
        self._engine = server._engine
        if options is not None and not isinstance(options, self.Options):
            raise InvalidArgumentError(
                "Incorrect type for options. options argument must be of type "
                f"{self.Options.__qualname__}"
            )
        self._options: Any = self.Options() if options is None else options
        self._listener: Listener | None = None

    @abstractmethod
    def _new_listener(self, running: Running) -> tuple[Listener, int]:
        """Return the listener and its port."""

    def start(self) -> None:
        """Open the port.

        Raises:
            AlreadyExistsError: the port is open already.
            TritonError: the port cannot be opened.
        """
        running = self._engine.running
        running.check()
        if self._listener is not None:
            raise AlreadyExistsError(f"{self._NAME} is already running.")

        async def open_port() -> Listener:
            listener, port = self._new_listener(running)
            await listener.open()
            forks.close_port_in_forks(port)
            # The key has the object's id: two ports of one type may be open.
            running.listeners[f"{self._NAME} {id(self)}"] = listener
            return listener

        with raising():
            self._listener = running.wait_for(open_port())

    def stop(self) -> None:
        """Finish the requests in flight, and close the port, unless the server has closed it.

        Raises:
            UnavailableError: the port is not open.
            InternalError: requests were left after the server's `exit_timeout`; the port is closed.
        """
        running = self._engine.running
        running.check_process()
        listener, self._listener = self._listener, None
        if listener is None:
            raise UnavailableError(f"{self._NAME} is not running.")
        if running.has_stopped:
            return
        running.check()
        del running.listeners[f"{self._NAME} {id(self)}"]
        timeout_s = running.options.exit_timeout_s
        try:
            running.wait_for(shut_down({self._NAME: listener}, None, {}, timeout_s))
        except ExitTimeout:
            raise InternalError("Exit timeout expired. Exiting immediately.") from None

    def __enter__(self) -> Any:  # noqa: ANN401 - the own class
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.stop()


class KServeHttp(_Frontend):
    """The HTTP port of a server."""

    @dataclass
    class Options(_Options):
        """Options of the HTTP port. `thread_count` has no effect.

        Headers whose names match `header_forward_pattern` become parameters of requests.
        """

        _LOWEST: ClassVar = {"thread_count": 1}

        address: str = "0.0.0.0"
        port: int = 8000
        reuse_port: bool = False
        thread_count: int = 8
        header_forward_pattern: str = ""

    _NAME = "HTTP server"

    def _new_listener(self, running: Running) -> tuple[Listener, int]:
        given = self._options
        options = HttpOptions(
            *(given.address, given.port, given.reuse_port), forwarded=given.header_forward_pattern
        )
        return running.core.http_listener(options, running.loop), given.port


class Grpc_compression_level(IntEnum):
    """The compression of responses."""

    NONE = 0
    LOW = 1
    MED = 2
    HIGH = 3
    COUNT = 4


class KServeGrpc(_Frontend):
    """The gRPC port of a server."""

    Grpc_compression_level = Grpc_compression_level

    @dataclass
    class Options(_Options):
        """Options of the gRPC port, with the meaning of tritonserver's `--grpc-...` options.

        `infer_thread_count` and `infer_allocation_pool_size` have no effect.
        """

        address: str = "0.0.0.0"
        port: int = 8001
        reuse_port: bool = False
        use_ssl: bool = False
        server_cert: str = ""
        server_key: str = ""
        root_cert: str = ""
        use_mutual_auth: bool = False
        keepalive_time_ms: int = 7_200_000
        keepalive_timeout_ms: int = 20_000
        keepalive_permit_without_calls: bool = False
        http2_max_pings_without_data: int = 2
        http2_min_recv_ping_interval_without_data_ms: int = 300_000
        http2_max_ping_strikes: int = 2
        max_connection_age_ms: int = 0
        max_connection_age_grace_ms: int = 0
        infer_compression_level: int | Grpc_compression_level = Grpc_compression_level.NONE
        infer_thread_count: int = 2
        infer_allocation_pool_size: int = 8
        max_response_pool_size: int = 2**31 - 1
        forward_header_pattern: str = ""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.infer_compression_level >= Grpc_compression_level.COUNT:
                raise self._fault("infer_compression_level", self.infer_compression_level, "0 to 3")

    _NAME = "GRPC server"

    def _new_listener(self, running: Running) -> tuple[Listener, int]:
        given = dataclasses.asdict(self._options)
        common = {field.name for field in dataclasses.fields(GrpcOptions)}
        values = {name.removeprefix("http2_"): value for name, value in given.items()}
        mutual = given["use_mutual_auth"]
        tls = TlsOptions(given["server_cert"], given["server_key"], given["root_cert"], mutual)
        options = GrpcOptions(
            **{name: value for name, value in values.items() if name in common},
            compression=Compression(given["infer_compression_level"]),
            forwarded=given["forward_header_pattern"],
            tls=tls if given["use_ssl"] or mutual else None,
        )
        return running.core.grpc_listener(options, running.loop), options.port


class Metrics(_Frontend):
    """The metrics port of a server, with the live page."""

    @dataclass
    class Options(_Options):
        """Options of the metrics port. `thread_count` has no effect."""

        _LOWEST: ClassVar = {"thread_count": 1}

        address: str = "0.0.0.0"
        port: int = 8002
        thread_count: int = 1

    _NAME = "Metrics server"

    def _new_listener(self, running: Running) -> tuple[Listener, int]:
        given = self._options
        own = running.options.metrics
        assert own is not None
        options = dataclasses.replace(own, address=given.address, port=given.port, page=True)
        return running.core.metrics_listener(options), given.port
