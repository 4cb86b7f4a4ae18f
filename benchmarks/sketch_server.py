"""A minimal HTTP server for `add_sub` in Python: a lower bound of the cost of a request.

    python -m benchmarks.sketch_server PORT

The server uses uvloop, httptools, orjson and the model's two lines of NumPy. The requests of one
loop iteration are one batch. The server validates, counts and schedules nothing.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import numpy as np
import orjson
import uvloop

INPUT_BYTES = 64


class Connection(asyncio.Protocol):
    """One client connection; all requests have the two binary inputs of `add_sub`."""

    def __init__(self, batch: list[tuple[asyncio.Transport, bytes]]) -> None:
        self.batch = batch

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if not self.batch:
            asyncio.get_running_loop().call_soon(answer, self.batch)
        self.batch.append((self.transport, self.body))
        self.body = b""


def answer(batch: list[tuple[asyncio.Transport, bytes]]) -> None:
    """Execute a batch and send the responses."""
    for transport, body in batch:
        start = len(body) - 2 * INPUT_BYTES
        orjson.loads(body[:start])
        a, b = np.frombuffer(body, np.float32, offset=start).reshape(2, 1, -1)
        sizes = {"parameters": {"binary_data_size": INPUT_BYTES}}
        tensor = {"datatype": "FP32", "shape": [1, 16], **sizes}
        outputs = [{"name": "OUTPUT0", **tensor}, {"name": "OUTPUT1", **tensor}]
        text = orjson.dumps({"model_name": "add_sub", "model_version": "1", "outputs": outputs})
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
        ) % (len(text), len(text) + 2 * INPUT_BYTES)
        transport.write(head + text + (a + b).tobytes() + (a - b).tobytes())
    batch.clear()


async def main() -> None:
    """Serve until the process is killed."""
    batch: list[tuple[asyncio.Transport, bytes]] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(batch), "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
