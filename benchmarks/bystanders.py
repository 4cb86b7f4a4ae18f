"""What others notice while one client does its worst: answers to a bystander, on both servers.

    python -m benchmarks.bystanders                               ten minutes
    python -m benchmarks.bystanders --attacks gets_unread --servers reference

An attack is one client, in a process of its own, that goes on until it is stopped. Meanwhile a
bystander asks for the server's health and for a small inference over HTTP, every few milliseconds,
each on its own connection. `memory` is what the server's processes grew by while attacked.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import shutil
import socket
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks.instruments import ROOT, percentile, print_machine_facts, print_table
from tests.support.http2 import (
    DATA,
    END_HEADERS,
    HEADERS,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionEnded,
    RawConnection,
    frame,
    head,
    message,
    settings,
)
from tests.support.servers import Server, start_reference_server, start_tritonserver
from tools import oracle

SERVERS = {"triton": start_tritonserver, "reference": start_reference_server}
IDENTITY = ROOT / "benchmarks" / "micro_repository" / "identity"
PAUSE_S = 0.004
PATIENCE_S = 15  # after which a bystander gives up, and asks again
SERVICE = "/inference.GRPCInferenceService/"

#: A decoupled model that sends until its client has left.
FLOOD = """\
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.send, args=(request.get_response_sender(),)).start()

    def send(self, sender):
        numbers = pb_utils.Tensor("OUTPUT", np.zeros(25_000, np.float32))
        while not sender.is_cancelled():
            sender.send(pb_utils.InferenceResponse([numbers]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FLOOD_CONFIG = """\
backend: "python"
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
model_transaction_policy { decoupled: true }
"""


# -- attacks: each talks to a server until it is killed, and begins again when it is sent away


def stream_requests(http: str, grpc: str) -> None:
    """3 MB of small requests on one stream, at once, and again."""
    asked = service_pb2.ModelInferRequest(model_name="identity_0")
    asked.inputs.add(name="INPUT", datatype="FP32", shape=[4])
    asked.raw_input_contents.append(bytes(16))
    requests = message(asked.SerializeToString()) * 200
    with RawConnection(grpc) as connection:
        connection.send(
            frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30)),
            connection.headers(1, head(SERVICE + "ModelStreamInfer")),
        )
        pieces = frame(DATA, 0, 1, requests[:16_000])
        reading_aside(connection.socket)
        while True:
            connection.socket.sendall(pieces)


def tiny_data(http: str, grpc: str) -> None:
    """A message that never ends, a byte in a frame."""
    with RawConnection(grpc) as connection:
        connection.send(
            connection.headers(1, head(SERVICE + "ModelInfer")),
            frame(DATA, 0, 1, struct.pack(">BI", 0, 2**30)),
        )
        reading_aside(connection.socket)
        flood = frame(DATA, 0, 1, b"x") * 20_000
        while True:
            connection.socket.sendall(flood)


def table_resizes(http: str, grpc: str) -> None:
    """Header blocks that resize the table all the time."""
    with RawConnection(grpc) as connection:
        reading_aside(connection.socket)
        resizes = b"\x20\x3f\xe1\x1f" * 4_000
        for stream in itertools.count(1, 2):
            block = resizes + connection.encoder.encode(head(SERVICE + "ServerLive"))
            connection.send(
                frame(HEADERS, END_HEADERS, stream, block), frame(DATA, 1, stream, message(b""))
            )


def window_by_one(http: str, grpc: str) -> None:
    """A long answer, fetched a byte at a time."""
    with RawConnection(grpc, opening=PREFACE + frame(SETTINGS) + settings(_4=0)) as connection:
        for stream in range(1, 65, 2):
            connection.request(stream, SERVICE + "ModelStatistics", message(b""))
        reading_aside(connection.socket)
        flood = b"".join(
            frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 1)) for stream in range(1, 65, 2)
        )
        while True:
            connection.socket.sendall(flood * 500)


def statistics_unread(http: str, grpc: str) -> None:
    """The statistics of all models, asked for without end, and never read."""
    with RawConnection(grpc, opening=PREFACE + settings(_4=2**31 - 1)) as connection:
        for stream in itertools.count(1, 2):
            connection.request(stream, SERVICE + "ModelStatistics", message(b""))


def responses_unread(http: str, grpc: str) -> None:
    """Responses without end of a decoupled model over gRPC, never read."""
    asked = service_pb2.ModelInferRequest(model_name="flood")
    asked.inputs.add(name="INPUT", datatype="FP32", shape=[4])
    asked.raw_input_contents.append(bytes(16))
    with RawConnection(grpc, opening=PREFACE + frame(SETTINGS) + settings(_4=0)) as connection:
        connection.request(1, SERVICE + "ModelStreamInfer", message(asked.SerializeToString()))
        time.sleep(3600)


def events_unread(http: str, grpc: str) -> None:
    """The same as events over HTTP."""
    body = b'{"INPUT":[1,2,3,4]}'
    with connected(http) as client:
        client.sendall(
            b"POST /v2/models/flood/generate_stream HTTP/1.1\r\nHost: x\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        time.sleep(3600)


def gets_unread(http: str, grpc: str) -> None:
    """Statistics and lists over HTTP, pipelined, and never read."""
    with connected(http) as client:
        while True:
            client.sendall(b"GET /v2/models/stats HTTP/1.1\r\nHost: x\r\n\r\n" * 100)


def endless_header(http: str, grpc: str) -> None:
    """A header whose value never ends."""
    with connected(http) as client:
        client.sendall(b"GET /v2 HTTP/1.1\r\nX: ")
        while True:
            client.sendall(b"y" * 65_536)


def endless_headers(http: str, grpc: str) -> None:
    """Headers without end."""
    with connected(http) as client:
        client.sendall(b"GET /v2 HTTP/1.1\r\n")
        while True:
            client.sendall(b"X: y\r\n" * 10_000)


def endless_url(http: str, grpc: str) -> None:
    """A URL that never ends."""
    with connected(http) as client:
        client.sendall(b"GET /")
        while True:
            client.sendall(b"y" * 65_536)


def tiny_chunks(http: str, grpc: str) -> None:
    """A body in chunks of a byte."""
    with connected(http) as client:
        client.sendall(
            b"POST /v2/models/identity_0/infer HTTP/1.1\r\nHost: x\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        while True:
            client.sendall(b"1\r\nx\r\n" * 10_000)


def gzip_bomb(http: str, grpc: str) -> None:
    """Bodies that unpack to 256 times their size."""
    packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    body = b"".join(packer.compress(b" " * 2**20) for _ in range(256)) + packer.flush()
    head = (
        b"POST /v2/models/identity_0/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    post(http, head + body)


def packed_messages(http: str, grpc: str) -> None:
    """The same over gRPC."""
    packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    packed = b"".join(packer.compress(bytes(2**20)) for _ in range(256)) + packer.flush()
    with RawConnection(grpc) as connection:
        reading_aside(connection.socket)
        for stream in itertools.count(1, 2):
            fields = head(SERVICE + "ModelInfer", ("grpc-encoding", "gzip"))
            body = message(packed, 1)
            pieces = [body[start : start + 16_000] for start in range(0, len(body), 16_000)]
            connection.send(connection.headers(stream, fields))
            connection.send(*(frame(DATA, 0, stream, piece) for piece in pieces))
            connection.send(frame(DATA, 1, stream))


def many_strings(http: str, grpc: str) -> None:
    """A million strings in a message."""
    asked = service_pb2.ModelInferRequest(model_name="texts")
    tensor = asked.inputs.add(name="INPUT", datatype="BYTES", shape=[1_000_000])
    tensor.contents.bytes_contents.extend([b"text"] * 1_000_000)
    body = message(asked.SerializeToString())
    pieces = [body[start : start + 16_000] for start in range(0, len(body), 16_000)]
    while True:
        with RawConnection(grpc) as connection:
            reading_aside(connection.socket)
            connection.send(connection.headers(1, head(SERVICE + "ModelInfer")))
            connection.send(*(frame(DATA, 0, 1, piece) for piece in pieces))
            connection.send(frame(DATA, 1, 1))
            time.sleep(0.3)


def empty_fields(http: str, grpc: str) -> None:
    """Two million fields in a message of a stream, all of them empty."""
    body = message(b"\x3a\x00" * 2_000_000)
    pieces = [body[start : start + 16_000] for start in range(0, len(body), 16_000)]
    with RawConnection(grpc) as connection:
        reading_aside(connection.socket)
        connection.send(connection.headers(1, head(SERVICE + "ModelStreamInfer")))
        while True:
            connection.send(*(frame(DATA, 0, 1, piece) for piece in pieces))


def long_json(http: str, grpc: str) -> None:
    """A tensor of 20 MB as JSON, in."""
    post_json(http, json.dumps([1.5] * 5_000_000).encode())


def nested_json(http: str, grpc: str) -> None:
    """The same in rows of four."""
    post_json(http, json.dumps([[1.5] * 4] * 1_250_000).encode())


def post_json(http: str, numbers: bytes) -> None:
    """Five million numbers, again and again."""
    tensor = (
        b'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[5000000],"data":%b}]}' % numbers
    )
    head = b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    post(http, head % len(tensor) + tensor)


def long_json_answer(http: str, grpc: str) -> None:
    """A tensor of 20 MB as JSON, out."""
    binary = np.linspace(0, 1, 5_000_000, dtype=np.float32).tobytes()
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT",
                    "datatype": "FP32",
                    "shape": [5_000_000],
                    "parameters": {"binary_data_size": len(binary)},
                }
            ]
        }
    ).encode()
    head = (
        b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
        b"Inference-Header-Content-Length: %d\r\n\r\n"
    ) % (len(header) + len(binary), len(header))
    post(http, head + header + binary)


def nothing(http: str, grpc: str) -> None:
    """No attack."""
    time.sleep(3600)


ATTACKS: dict[str, Callable[[str, str], None]] = {
    attack.__name__: attack
    for attack in (
        *(nothing, stream_requests, tiny_data, table_resizes, window_by_one, statistics_unread),
        *(
            responses_unread,
            events_unread,
            gets_unread,
            endless_header,
            endless_headers,
            endless_url,
            tiny_chunks,
        ),
        *(
            gzip_bomb,
            packed_messages,
            many_strings,
            empty_fields,
            long_json,
            nested_json,
            long_json_answer,
        ),
    )
}


def attacking(name: str, http: str, grpc: str, begun: Event) -> None:
    """Attack for as long as this process lives."""
    begun.set()
    while True:
        with contextlib.suppress(OSError, ConnectionEnded):
            ATTACKS[name](http, grpc)
        time.sleep(0.01)


@contextlib.contextmanager
def attack_on(server: Server, name: str) -> Iterator[multiprocessing.process.BaseProcess]:
    """The attack, from when it has begun until the block is left."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    attacker = context.Process(
        target=attacking, args=(name, server.http, server.grpc, begun), daemon=True
    )
    attacker.start()
    try:
        begun.wait(60)
        yield attacker
    finally:
        attacker.kill()
        attacker.join()


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def post(http: str, request: bytes) -> None:
    """Send it again and again, after each answer, which is read."""
    with connected(http) as client:
        reading_aside(client)
        while True:
            client.sendall(request)


def reading_aside(client: socket.socket) -> None:
    """Read and forget what comes, on a thread."""

    def read() -> None:
        with contextlib.suppress(OSError):
            while client.recv(1 << 20):
                pass

    threading.Thread(target=read, daemon=True).start()


# -- the bystander


def bystander(http: str, seconds: float) -> dict[str, list[float]]:
    """How many seconds each answer took, in turns: the server's health, and an inference."""
    header = b'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}'
    asked = {
        "health": b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
        "inference": b"POST /v2/models/identity_1/infer HTTP/1.1\r\nHost: x\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(header), header),
    }
    taken: dict[str, list[float]] = {name: [] for name in asked}
    clients = {name: connected(http) for name in asked}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, request in asked.items():
            started = time.perf_counter()
            try:
                clients[name].sendall(request)
                answer = clients[name].recv(65_536)
            except OSError:  # nothing for so long, or sent away
                answer = b""
            taken[name].append(time.perf_counter() - started)
            if not answer:
                clients[name].close()
                clients[name] = connected(http)
            elif not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"a bystander was answered {answer!r}")
        time.sleep(PAUSE_S)
    for client in clients.values():
        client.close()
    return taken


def memory_of(server: Server) -> float:
    """Resident MiB of the server and its processes."""
    pages = 0
    family, parents = {server.process.pid}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    for pid in family:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@contextlib.contextmanager
def repository() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bystanders-") as directory:
        folder = Path(directory)
        for number in range(2):
            shutil.copytree(IDENTITY, folder / f"identity_{number}")
        for name, type_ in (("wide", "FP32"), ("texts", "STRING")):
            config = shutil.copytree(IDENTITY, folder / name) / "config.pbtxt"
            text = config.read_text().replace("dims: [ 4 ]", "dims: [ -1 ]")
            config.write_text(text.replace("TYPE_FP32", f"TYPE_{type_}"))
        flood = folder / "flood"
        (flood / "1").mkdir(parents=True)
        (flood / "config.pbtxt").write_text(FLOOD_CONFIG)
        (flood / "1" / "model.py").write_text(FLOOD)
        yield folder


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bystanders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--seconds", type=float, default=8, help="of each attack (8)")
    options = parser.parse_args()
    if "triton" in options.servers and not oracle.is_installed():
        raise SystemExit("tritonserver is not installed; run `make oracle`")
    print_machine_facts()
    rows = []
    with repository() as folder:
        for attack, server in itertools.product(options.attacks, options.servers):
            with SERVERS[server](folder) as running:
                rows.append([attack, server, *attacked(running, attack, options.seconds)])
                print(*rows[-1], flush=True)
    print_table(
        [*("attack", "server", "health p50", "p99", "most"), "inference p99", "most ms", "MiB"],
        rows,
    )


def attacked(server: Server, attack: str, seconds: float) -> list[str]:
    """The figures of one row: milliseconds, and MiB."""
    bystander(server.http, 0.5)
    before = memory_of(server)
    with attack_on(server, attack):
        time.sleep(0.3)
        taken = bystander(server.http, seconds)
        grown = memory_of(server) - before
    health, inference = taken["health"], taken["inference"]
    return [
        *(f"{1e3 * value:.1f}" for value in (percentile(health, 50), percentile(health, 99))),
        f"{1e3 * max(health):.0f}",
        f"{1e3 * percentile(inference, 99):.1f}",
        f"{1e3 * max(inference):.0f}",
        f"{grown:.0f}",
    ]


if __name__ == "__main__":
    main()
