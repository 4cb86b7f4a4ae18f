"""Server addresses: HOST:PORT, [IPv6]:PORT, :PORT, http://HOST:PORT and https://HOST:PORT."""

from __future__ import annotations

import socket
import ssl
from typing import Final, NamedTuple

from triton_replay.errors import ReplayError, ServerUnreachable

CONNECT_SECONDS: Final = 30
HTTPS: Final = "https://"
"""Start of addresses with TLS."""


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Server(NamedTuple):
    """The addresses of one server and its TLS contexts, which are None without TLS."""

    http: Address
    grpc: Address
    tls: ssl.SSLContext | None = None
    grpc_tls: ssl.SSLContext | None = None


def parse_address(text: str, option: str, *, tls: bool = False) -> Address:
    """Parse an address. An omitted host is the loopback address.

    Args:
        text: The address.
        option: The option with the address, for the error text.
        tls: Whether an address may begin with `https://`.

    Raises:
        ReplayError: The address is invalid, or uses TLS although it may not.
    """
    if tls:
        text = text.removeprefix(HTTPS)
    if "://" in text and not text.startswith("http://"):
        raise ReplayError(f"{option}: found {text!r}, expected HOST:PORT (TLS is not supported)")
    host, separator, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ReplayError(f"{option}: found {text!r}, expected HOST:PORT, e.g. localhost:8000")
    return Address(host or "127.0.0.1", int(port))


def look_for_server(server: Address, option: str) -> None:
    """Check that a server accepts connections.

    Args:
        server: Host and port.
        option: The option with the address, for the error text.

    Raises:
        ServerUnreachable: No connection is possible.
    """
    connected(server, option).close()


def connected(server: Address, option: str) -> socket.socket:
    """Connect to a server; see `look_for_server`."""
    try:
        return socket.create_connection(server, CONNECT_SECONDS)
    except OSError as error:
        text = f"{option} {server}: no server listens there: {error.strerror or error}"
        raise ServerUnreachable(text) from error
