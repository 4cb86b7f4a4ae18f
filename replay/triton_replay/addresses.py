"""Addresses of servers, as users write them: HOST:PORT, [IPv6]:PORT, :PORT, http://HOST:PORT."""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from triton_replay.errors import ReplayError, ServerUnreachable

CONNECT_SECONDS: Final = 30


class Address(NamedTuple):
    """Where to listen or to connect."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, option: str) -> Address:
    """Read an address; no host is this machine. Raises ReplayError, which names `option`."""
    if "://" in text and not text.startswith("http://"):
        raise ReplayError(f"{option}: found {text!r}, expected HOST:PORT (TLS is not spoken)")
    host, separator, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ReplayError(f"{option}: found {text!r}, expected HOST:PORT, e.g. localhost:8000")
    return Address(host or "127.0.0.1", int(port))


def look_for_server(server: Address, option: str) -> None:
    """Connect to the server and leave again. Raises ServerUnreachable, which names `option`."""
    try:
        socket.create_connection(server, CONNECT_SECONDS).close()
    except OSError as error:
        text = f"{option} {server}: nobody listens there: {error.strerror or error}"
        raise ServerUnreachable(text) from error
