"""A reference server inside the test process, without ports: clients connect to Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.servers import Flag, command_line

from reference_server.command import cli
from reference_server.server import Server
from reference_server.testing.clients import call_on, running_loop


@dataclass(frozen=True)
class InProcessServer:
    """The addresses of a server in this process, in the form for `contract.wire` and grpc."""

    http: str
    grpc: str
    run: int = 0


@contextlib.contextmanager
def start_in_process(repository: Path, **flags: Flag) -> Iterator[InProcessServer]:
    """Serve `repository` as Triton 2.51 until the block ends; `flags` as in `support.servers`."""
    settings: dict[str, Flag] = {"model_repository": str(repository), "triton_version": "2.51"}
    options, _ = cli.parse(command_line(settings | flags))
    assert options.http is not None
    assert options.grpc is not None
    with (
        running_loop() as loop,
        tempfile.TemporaryDirectory(prefix="server-") as folder,
        contextlib.closing(Server(options)) as server,
        contextlib.ExitStack() as stack,
    ):
        server.load(loop)
        fronts = {
            "http": server.http_listener(options.http, loop),
            "grpc": server.grpc_listener(options.grpc, loop),
        }
        for name, front in fronts.items():
            listening = loop.create_unix_server(front.protocol_factory(loop), f"{folder}/{name}")
            socket = asyncio.run_coroutine_threadsafe(listening, loop).result()
            stack.callback(call_on, loop, socket.close)
        yield InProcessServer(*(f"unix:{folder}/{name}" for name in fronts))
