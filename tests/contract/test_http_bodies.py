"""Large bodies, bodies in pieces, and clients that are slow or disconnect, on both servers."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from contract.casebook import get, infer, infer_binary, tensor
from contract.wire import LIVE, Reply, connect, read_reply
from support.servers import Server

MIB = 1 << 20
ELEMENTS = 2 * MIB
LARGE = np.arange(ELEMENTS, dtype=np.float32).tobytes()
SMALL = infer("vector", tensor("X", "FP32", [2], [1, 2]), id="small")

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.parametrize("name", ["probed_triton", "probed_reference"]),
]


@pytest.fixture
def server(name: str, request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(name)
    return found


@pytest.fixture
def client(server: Server) -> Iterator[socket.socket]:
    with connect(server.http) as connection:
        yield connection


def large() -> bytes:
    """Return a request of 8 MiB, whose response has the same size."""
    given = {
        "name": "X",
        "datatype": "FP32",
        "shape": [ELEMENTS],
        "parameters": {"binary_data_size": len(LARGE)},
    }
    return infer_binary("vector", LARGE, given, parameters={"binary_data_output": True})


def in_chunks(request: bytes, size: int) -> bytes:
    """Return the request with its body in chunks of `size` bytes."""
    head, _, body = request.partition(b"\r\n\r\n")
    kept = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    chunks = (body[at : at + size] for at in range(0, len(body), size))
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"\r\n".join([*kept, b"Transfer-Encoding: chunked", b"", framed]) + b"0\r\n\r\n"


def answer(client: socket.socket) -> Reply:
    with client.makefile("rb") as stream:
        return read_reply(stream)


def numbers(reply: Reply) -> bytes:
    """Return the tensor after the JSON."""
    assert reply.status == 200, reply
    return reply.body[int(reply.header("Inference-Header-Content-Length") or 0) :]


def test_8_mib_there_and_back(client: socket.socket):
    client.sendall(large())
    assert numbers(answer(client)) == LARGE


def test_a_large_body_in_chunks(client: socket.socket):
    client.sendall(in_chunks(large(), 1 * MIB))
    assert numbers(answer(client)) == LARGE


def test_fifty_thousand_small_chunks(client: socket.socket):
    values = [float(number) for number in range(10_000)]
    request = infer("vector", tensor("X", "FP32", [len(values)], values))
    client.sendall(in_chunks(request, len(request) // 50_000 + 1))
    assert b"9999.0]" in answer(client).body


def test_a_body_in_single_bytes(client: socket.socket):
    head, between, body = SMALL.partition(b"\r\n\r\n")
    client.sendall(head + between)  # in one piece: the real server misreads a URL that is cut
    for byte in body:
        client.sendall(bytes([byte]))
    assert b'"data":[1.0,2.0]' in answer(client).body


def test_a_client_that_waits_for_leave_to_send(client: socket.socket):
    head, _, body = SMALL.partition(b"\r\n\r\n")
    client.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
    assert answer(client).status == 100
    client.sendall(body)
    assert answer(client).status == 200


def test_who_reads_slowly_keeps_nobody_waiting(server: Server, client: socket.socket):
    client.sendall(large())
    assert client.recv(1)  # it is being answered, and most of the answer has to wait
    with connect(server.http) as other:
        other.sendall(SMALL)
        assert answer(other).status == 200
    with client.makefile("rb") as stream:
        rest = stream.read(len(LARGE))
    assert len(rest) == len(LARGE)


def test_who_sends_slowly_keeps_nobody_waiting(server: Server, client: socket.socket):
    client.sendall(SMALL[:-1])
    with connect(server.http) as other:
        other.sendall(SMALL)
        assert answer(other).status == 200
    client.sendall(SMALL[-1:])
    assert answer(client).status == 200


def test_who_leaves_in_the_middle_of_a_request_harms_nobody(server: Server):
    request = large()
    for cut in (10, 200, len(request) // 2, len(request) - 1):
        with connect(server.http) as client:
            client.sendall(request[:cut])
            # Closed with a reset, as by a client that is killed.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with connect(server.http) as other:
        other.sendall(LIVE)
        assert answer(other).status == 200


def test_who_leaves_in_the_middle_of_an_answer_harms_nobody(server: Server):
    with connect(server.http) as client:
        client.sendall(large())
        assert client.recv(1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with connect(server.http) as other:
        other.sendall(LIVE)
        assert answer(other).status == 200


def test_a_hundred_connections_that_say_nothing_keep_nobody_waiting(server: Server):
    silent = [connect(server.http) for _ in range(100)]
    try:
        with connect(server.http) as client:
            client.sendall(get("/v2"))
            assert answer(client).status == 200
    finally:
        for one in silent:
            one.close()
