"""The memory budget for all clients' large requests, over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as grpc
from contract.probes import write_probes
from support.servers import Server, start_reference_server
from tritonclient.utils import InferenceServerException

SECONDS = 30
COUNT = 400_000  # of FP32: more than a MiB
INFER = "/v2/models/vector/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a budget of one MiB."""
    folder = tmp_path_factory.mktemp("models")
    write_probes(folder, "vector")
    with start_reference_server(folder, connection_memory_mib=1) as running:
        yield running


def body(count: int) -> tuple[bytes, dict[str, str]]:
    """Return a request with `count` numbers in binary data, and its headers."""
    data = np.zeros(count, np.float32).tobytes()
    tensor = {"name": "X", "datatype": "FP32", "shape": [count]}
    tensor["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def answered(
    server: Server, sent: bytes, headers: dict[str, str], *, chunked: bool = False
) -> tuple[int, bytes]:
    host, _, port = server.http.rpartition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    pieces = iter([sent[start : start + 50_000] for start in range(0, len(sent), 50_000)])
    # It may be refused before all is sent.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.request("POST", INFER, pieces if chunked else sent, headers, encode_chunked=chunked)
    answer = client.getresponse()
    found = answer.status, answer.read()
    client.close()
    return found


@pytest.mark.parametrize("way", ["in place", "in chunks", "packed"])
def test_a_request_beyond_the_budget_is_rejected_over_http(server: Server, way: str):
    sent, headers = body(COUNT)
    if way == "packed":
        sent, headers = gzip.compress(sent), headers | {"Content-Encoding": "gzip"}
    if way == "in chunks":
        headers |= {"Transfer-Encoding": "chunked"}
    status, text = answered(server, sent, headers, chunked=way == "in chunks")
    assert (status, b"bytes rejected: the limit of" in text) == (
        503 if way == "packed" else 400,
        True,
    )


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_request_beyond_the_budget_is_rejected_over_grpc(server: Server, compression: str | None):
    with grpc.InferenceServerClient(server.grpc) as client:
        for count, fits in ((COUNT, False), *[(100_000, True)] * 10):
            values = np.zeros(count, np.float32)
            x = grpc.InferInput("X", [count], "FP32").set_data_from_numpy(values)
            ask = {"client_timeout": SECONDS, "compression_algorithm": compression}
            if fits:
                assert client.infer("vector", [x], **ask).as_numpy("Y").size == count
                continue
            with pytest.raises(
                InferenceServerException, match="bytes rejected: the limit of"
            ) as caught:
                client.infer("vector", [x], **ask)
            assert "RESOURCE_EXHAUSTED" in str(caught.value.status())


@pytest.mark.brute_force
def test_an_incomplete_request_is_charged_until_the_connection_ends(server: Server):
    host, _, port = server.http.rpartition(":")
    sent, headers = body(200_000)
    headers |= {"Host": "x", "Content-Length": str(len(sent))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection((host, int(port)), SECONDS) as client:
        client.sendall(f"POST {INFER} HTTP/1.1\r\n{head}\r\n".encode() + sent[:-1])
        while answered(server, *body(200_000))[0] == 200:
            pass  # not everything is read yet
        assert answered(server, *body(10_000))[0] == 200
    while answered(server, *body(200_000))[0] == 400:
        pass  # the disconnect is not noticed at once
