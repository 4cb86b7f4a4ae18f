"""Shared memory with NVIDIA's client library and NVIDIA's load generator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.servers import Server
from tritonclient import http
from tritonclient.utils import serialize_byte_tensor, shared_memory

pytestmark = pytest.mark.oracle

SERVERS = ("probed_triton", "probed_reference")


@pytest.fixture(params=SERVERS)
def client(request: pytest.FixtureRequest) -> Iterator[http.InferenceServerClient]:
    server: Server = request.getfixturevalue(request.param)
    with contextlib.closing(http.InferenceServerClient(server.http)) as made:
        made.unregister_system_shared_memory()
        yield made
        made.unregister_system_shared_memory()


@contextlib.contextmanager
def region(client: http.InferenceServerClient, name: str, byte_size: int) -> Iterator[Any]:
    """Create a region of the client, and register it with the server."""
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
