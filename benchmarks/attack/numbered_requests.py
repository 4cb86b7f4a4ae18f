"""Lost and mixed-up responses: every request has a number that its response must repeat.

    python -m benchmarks.attack.numbered_requests              a million per server and frontend
    python -m benchmarks.attack.numbered_requests --requests 10_000_000
    python -m benchmarks.attack.numbered_requests --servers reference --fronts http

The number is in the request id and in the first tensor. The requests are spread over 1, 8, 32 and
256 connections, with one request in flight per connection over HTTP and six over gRPC. The run
fails at a wrong response, at a closed connection and after 30 s without a response.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tritonclient.grpc import service_pb2

from benchmarks.bars import STREAMS, copy_add_sub
from benchmarks.closed_loop import GrpcClient, connected, received
from benchmarks.instruments import print_machine_facts, print_table
from tests.support import servers
from tests.support.http2 import DATA, END_STREAM, HEADERS, message

CONNECTIONS = (1, 8, 32, 256)
PATIENCE_S = 30.0
FRONTS = ["http", "grpc"]
SERVERS = ["reference", "process", "triton"]
#: INPUT1: both outputs are INPUT0.
NOTHING = bytes(64)
NAMES = ("INPUT0", "INPUT1")


def identity(number: int) -> bytes:
    """The id of a request, as long as any other's."""
    return b"%012d" % number


def tensor(number: int) -> bytes:
    """INPUT0: the number in two halves that FP32 holds exactly, and zeros."""
    return struct.pack("<2f", number >> 20, number & 0xFFFFF) + bytes(56)


def http_template() -> tuple[bytes, bytes]:
    """A request up to its id, and from there to its tensors."""
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
        for name in NAMES
    ]
    outputs = [
        {"name": name, "parameters": {"binary_data": True}} for name in ("OUTPUT0", "OUTPUT1")
    ]
    document = {"id": identity(0).decode(), "inputs": inputs, "outputs": outputs}
    text = json.dumps(document).encode()
    head = (
        "POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + 128}\r\n\r\n"
    )
    first, _, last = (head.encode() + text).partition(identity(0))
    return first, last


def grpc_template() -> tuple[bytes, bytes, bytes]:
    """A message up to its id, from there to its first tensor, and what follows."""
    request = service_pb2.ModelInferRequest(model_name="add_sub", id=identity(0).decode())
    mark = b"\1" * 64
    for name, data in zip(NAMES, (mark, NOTHING), strict=True):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 16])
        request.raw_input_contents.append(data)
    first, _, rest = message(request.SerializeToString()).partition(identity(0))
    middle, _, last = rest.partition(mark)
    return first, middle, last


class HttpNumbers:
    """A connection with one numbered request in flight."""

    def __init__(self, address: str) -> None:
        self.socket = connected(address)
        self.asked: dict[int, int] = {}
        self._template = http_template()
        self._received = b""

    def ask_number(self, number: int) -> None:
        """Send the request of this number."""
        self.asked[0] = number
        first, last = self._template
        self.socket.sendall(first + identity(number) + last + tensor(number) + NOTHING)

    def answered(self) -> Iterator[int]:
        """The numbers of answers that are complete, and right."""
        self._received += received(self.socket)
        head, found, body = self._received.partition(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if not found or len(body) < int(lines[b"content-length"]):
            return
        number = self.asked.pop(0)
        is_good = head.startswith(b"HTTP/1.1 200 ") and len(body) == int(lines[b"content-length"])
        check(number, body, is_good=is_good)
        self._received = b""
        yield number


class GrpcNumbers(GrpcClient):  # type: ignore[misc]
    """A connection with some numbered calls in flight."""

    def __init__(self, address: str) -> None:
        super().__init__(address, ())
        self.asked: dict[int, int] = {}
        self._template = grpc_template()
        self._bodies: dict[int, bytes] = {}

    def ask_number(self, number: int) -> None:
        """Send the request of this number."""
        first, middle, last = self._template
        self.asked[self._stream] = number
        self.send(first + identity(number) + middle + tensor(number) + last)

    def answered(self) -> Iterator[int]:
        """The numbers of answers that are complete, and right."""
        for kind, flags, stream, payload in self.frames():
            if kind == DATA:
                self._bodies[stream] = self._bodies.get(stream, b"") + payload
            elif kind == HEADERS and flags & END_STREAM:
                number = self.asked.pop(stream)
                check(number, self._bodies.pop(stream, b""), is_good=True)
                yield number


def check(number: int, body: bytes, *, is_good: bool) -> None:
    """End the run if this is not the answer to the request of that number."""
    if not (is_good and body.count(tensor(number)) == 2 and identity(number) in body):
        raise SystemExit(f"{number} is answered with {body!r}")


def ask_all(address: str, front: str, connections: int, first: int, count: int) -> float:
    """Send `count` requests, numbered from `first` on, until all are answered; the seconds."""
    kind, streams = (HttpNumbers, 1) if front == "http" else (GrpcNumbers, STREAMS)
    clients = [kind(address) for _ in range(connections)]
    epoll, by_descriptor = select.epoll(), {client.socket.fileno(): client for client in clients}
    for descriptor in by_descriptor:
        epoll.register(descriptor, select.EPOLLIN)
    numbers = iter(range(first, first + count))
    began = time.monotonic()
    for client in clients * streams:
        if (number := next(numbers, None)) is not None:
            client.ask_number(number)
    left = count
    while left:
        ready = epoll.poll(PATIENCE_S)
        if not ready:
            missing = sorted(number for client in clients for number in client.asked.values())
            raise SystemExit(f"no answer for {PATIENCE_S:.0f} s; {left} missing, asked: {missing}")
        for descriptor, _ in ready:
            client = by_descriptor[descriptor]
            for _ in client.answered():
                left -= 1
                if (number := next(numbers, None)) is not None:
                    client.ask_number(number)
    for client in clients:
        client.socket.close()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.numbered_requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=1_000_000, help="of each (1,000,000)")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS)
    parser.add_argument("--fronts", nargs="+", choices=FRONTS, default=FRONTS)
    options = parser.parse_args()
    print_machine_facts()
    rows = []
    for name in options.servers:
        start = servers.start_tritonserver if name == "triton" else servers.start_reference_server
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="numbered-")))
            copy_add_sub(folder, in_process=name == "process")
            server = stack.enter_context(start(folder, allow_metrics=False))
            for front in options.fronts:
                share = options.requests // len(CONNECTIONS)
                for place, connections in enumerate(CONNECTIONS):
                    address = getattr(server, front)
                    seconds = ask_all(address, front, connections, place * share, share)
                    rows.append(
                        [name, front, str(connections), f"{share:,}", f"{share / seconds:,.0f}"]
                    )
    print_table(["server", "front", "connections", "answered rightly", "per second"], rows)


if __name__ == "__main__":
    main()
