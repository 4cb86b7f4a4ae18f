"""Shared memory as strangers use it: NVIDIA's client library and its load generator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.probes import write_probes
from support.perf_analyzer import measured
from support.servers import Server, start_reference_server, start_tritonserver
from tritonclient import http
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory

pytestmark = pytest.mark.oracle

SERVERS = ("probed_triton", "probed_reference")
STARTS = {"triton": start_tritonserver, "reference": start_reference_server}


@pytest.fixture(params=SERVERS)
def client(request: pytest.FixtureRequest) -> Iterator[http.InferenceServerClient]:
    """A client of a server without regions."""
    server: Server = request.getfixturevalue(request.param)
    with contextlib.closing(http.InferenceServerClient(server.http)) as made:
        made.unregister_system_shared_memory()
        yield made
        made.unregister_system_shared_memory()


@contextlib.contextmanager
def region(client: http.InferenceServerClient, name: str, byte_size: int) -> Iterator[Any]:
    """A region of the client's, known to the server."""
    key = f"/client_{os.getpid()}_{name}"
    handle = shared_memory.create_shared_memory_region(name, key, byte_size)
    try:
        client.register_system_shared_memory(name, key, byte_size)
        yield handle
    finally:
        client.unregister_system_shared_memory(name)
        shared_memory.destroy_shared_memory_region(handle)


def test_two_inputs_and_two_outputs(client: http.InferenceServerClient):
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.arange(4, dtype=np.int32)
    b = b.reshape(2, 1, 2)
    inputs = [http.InferInput("A", a.shape, "FP32"), http.InferInput("B", b.shape, "INT32")]
    outputs = [http.InferRequestedOutput(name, binary_data=False) for name in ("OA", "OB")]
    with region(client, "in", 48) as given, region(client, "out", 48) as taken:
        shared_memory.set_shared_memory_region(given, [a, b])
        inputs[0].set_shared_memory("in", 32)
        inputs[1].set_shared_memory("in", 16, offset=32)
        outputs[0].set_shared_memory("out", 32, offset=16)
        outputs[1].set_shared_memory("out", 16)
        assert [entry["name"] for entry in client.get_system_shared_memory_status()] == [
            "in",
            "out",
        ]
        result = client.infer("pair", inputs, outputs=outputs)
        for name, sent, offset in (("OA", a, 16), ("OB", b, 0)):
            entry = result.get_output(name)
            got = shared_memory.get_contents_as_numpy(taken, sent.dtype, entry["shape"], offset)
            np.testing.assert_array_equal(got, sent)


def test_strings(client: http.InferenceServerClient):
    words = np.array([b"", b"\0\xff", "数".encode()], dtype=np.object_)
    encoded = serialize_byte_tensor(words)
    size = len(encoded.item())
    given, wanted = http.InferInput("T", [3], "BYTES"), http.InferRequestedOutput("U")
    with region(client, "words", 2 * size) as handle:
        shared_memory.set_shared_memory_region(handle, [encoded])
        given.set_shared_memory("words", size)
        wanted.set_shared_memory("words", size, offset=size)
        client.infer("words", [given], outputs=[wanted])
        got = shared_memory.get_contents_as_numpy(handle, np.object_, [3], offset=size)
        assert got.tolist() == words.tolist()


def test_what_the_client_is_told_of_its_mistakes(client: http.InferenceServerClient):
    given = http.InferInput("X", [4], "FP32")
    given.set_shared_memory("nothing", 16)
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
        client.infer("vector", [given])
    with region(client, "r", 16):
        with pytest.raises(InferenceServerException, match="'r' already in manager"):
            client.register_system_shared_memory("r", "/anything", 16)
        given.set_shared_memory("r", 16, offset=8)
        with pytest.raises(InferenceServerException, match=r"Invalid offset \+ byte size"):
            client.infer("vector", [given])
    with pytest.raises(InferenceServerException, match="Unable to open shared memory region"):
        client.register_system_shared_memory("r", "/surely_not_there", 16)


def test_cuda_regions_without_a_gpu(client: http.InferenceServerClient):
    assert client.get_cuda_shared_memory_status() == []
    with pytest.raises(InferenceServerException, match="failed to register shared memory region"):
        client.register_cuda_shared_memory("c", b"A" * 86 + b"==", 0, 64)
    client.unregister_cuda_shared_memory()


@pytest.mark.slow
@pytest.mark.parametrize("server", STARTS)
def test_perf_analyzer_puts_its_tensors_into_shared_memory(
    server: str, tmp_path: Path, oracle_installed: None
):
    write_probes(tmp_path, "batched")
    with STARTS[server](tmp_path, allow_grpc=False, allow_metrics=False) as running:
        what = ("-m", "batched", "--concurrency-range", "2")
        where = ("--shared-memory", "system", "--output-shared-memory-size", "16")
        assert "Request concurrency: 2" in measured(running, "http", *what, *where)
