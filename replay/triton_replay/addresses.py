"""Addresses of servers, as users write them: HOST:PORT, [IPv6]:PORT, :PORT, http://HOST:PORT."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

from triton_replay.errors import ReplayError, ServerUnreachable


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


async def look_for_server(server: Address) -> None:
    """Connect to the server and leave again. Raises ServerUnreachable."""
    try:
        _, writer = await asyncio.open_connection(*server)
    except OSError as error:
        text = f"--server {server}: nobody listens there: {error.strerror or error}"
        raise ServerUnreachable(text) from error
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
