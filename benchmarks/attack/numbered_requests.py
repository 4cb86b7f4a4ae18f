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
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tritonclient.grpc import service_pb2

from benchmarks.instruments import print_machine_facts, print_table
from benchmarks.load import HTTP, Client, Grpc
from benchmarks.rows import CALLS, copy_add_sub
from tests.support import servers
from triton_replay.addresses import parse_address
from triton_replay.loading.loop import Loop
from triton_replay.wire.grpc_messages import with_prefix
from triton_replay.wire.sockets import Slot, resolve

CONNECTIONS = (1, 8, 32, 256)
TIMEOUT_S = 30.0
FRONTS = ["http", "grpc"]
SERVERS = ["reference", "process", "triton"]
NAMES = ("INPUT0", "INPUT1")
ZEROS = bytes(64)
"""INPUT1, so that both outputs equal INPUT0."""


def identity(number: int) -> bytes:
    """Return the id of a request; all ids have the same length."""
    return b"%012d" % number


def tensor(number: int) -> bytes:
    """Return INPUT0: the number in two halves that FP32 represents exactly, then zeros."""
    return struct.pack("<2f", number >> 20, number & 0xFFFFF) + bytes(56)


def http_request() -> Callable[[int], bytes]:
    """Return a function that creates the HTTP request with a number."""
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
    return lambda number: first + identity(number) + last + tensor(number) + ZEROS


def grpc_request() -> Callable[[int], bytes]:
    """Return a function that creates the gRPC request with a number."""
    request = service_pb2.ModelInferRequest(model_name="add_sub", id=identity(0).decode())
    mark = b"\1" * 64
    for name, data in zip(NAMES, (mark, ZEROS), strict=True):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 16])
        request.raw_input_contents.append(data)
    first, _, rest = with_prefix(request.SerializeToString()).partition(identity(0))
    middle, _, last = rest.partition(mark)
    return lambda number: first + identity(number) + middle + tensor(number) + last


def check(number: int, body: bytes) -> None:
    """Raise SystemExit unless the body is the response to the request with this number."""
    if body.count(tensor(number)) != 2 or identity(number) not in body:
        raise SystemExit(f"request {number}: wrong response {body!r}")


class NumberedRequests:
    """Sends numbered requests in a closed loop and checks each response.

    Args:
        first: First number.
        count: Number of requests.
        create: Creates the request with a number.
    """

    def __init__(self, first: int, count: int, create: Callable[[int], bytes]) -> None:
        self.missing = count
        self.pending: dict[Slot, int] = {}
        self._numbers = iter(range(first, first + count))
        self._create = create

    def send(self, slot: Slot) -> None:
        """Send the next request, if there is one."""
        if (number := next(self._numbers, None)) is not None:
            self.pending[slot] = number
            slot.reply = self._receive
            slot.connection.send(slot, self._create(number))

    def _receive(self, slot: Slot) -> None:
        number = self.pending.pop(slot)
        if slot.failure:
            raise SystemExit(f"request {number}: {slot.failure}")
        check(number, bytes(slot.body))
        self.missing -= 1
        self.send(slot)


def send_all(address: str, front: str, connections: int, first: int, count: int) -> float:
    """Send requests until all have their responses; return the seconds."""
    client: Client = HTTP if front == "http" else Grpc(CALLS)
    requests = NumberedRequests(first, count, http_request() if front == "http" else grpc_request())
    server = resolve(parse_address(address, "server"), "server")
    loop = Loop(
        partial(client.connect, server), lambda slot: b"", lambda slot: None, timeout=TIMEOUT_S
    )
    try:
        began = last = time.monotonic()
        for connection in [client.connect(server, loop) for _ in range(connections)]:
            for slot in connection.slots:
                requests.send(slot)
            connection.flush()
        missing = count
        while requests.missing:
            loop.run(time.perf_counter_ns() + 100_000_000)
            if requests.missing < missing:
                missing, last = requests.missing, time.monotonic()
            elif time.monotonic() - last > TIMEOUT_S:
                numbers = sorted(requests.pending.values())
                text = f"no response for {TIMEOUT_S:.0f} s; {missing} missing, pending: {numbers}"
                raise SystemExit(text)
        return time.monotonic() - began
    finally:
        loop.close()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack.numbered_requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--requests", type=int, default=1_000_000, help="per server and frontend (1,000,000)")
    add("--servers", nargs="+", choices=SERVERS, default=SERVERS, help="servers (all)")
    add("--fronts", nargs="+", choices=FRONTS, default=FRONTS, help="frontends (both)")
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
                    seconds = send_all(address, front, connections, place * share, share)
                    rows.append(
                        [name, front, str(connections), f"{share:,}", f"{share / seconds:,.0f}"]
                    )
    print_table(["server", "front", "connections", "correct responses", "per second"], rows)


if __name__ == "__main__":
    main()
