"""A round of calls of NVIDIA's client library, over HTTP and gRPC, to servers of the probes.

A program, so that it runs with the version of the library that PYTHONPATH holds, and prints which.

    python client_round.py HTTP_ADDRESS GRPC_ADDRESS
"""

from __future__ import annotations

import queue
import sys
from importlib.metadata import version

import numpy as np
import pytest
import tritonclient
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException, shared_memory

TWO = np.array([1, 2], dtype=np.float32)
SECONDS = 20


def x(client, array, name="X", datatype="FP32", **form):
    tensor = client.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **form)
    return tensor


def any_protocol(client, module):
    """What is spelled alike over both."""
    assert client.is_server_live()
    assert client.is_model_ready("vector")
    client.get_server_metadata()
    client.get_model_metadata("pair")
    client.get_model_config("batched")
    client.get_inference_statistics("versions")
    client.get_model_repository_index()
    client.get_log_settings()
    client.get_trace_settings("vector")
    result = client.infer("vector", [x(module, TWO)], request_id="i", parameters={"k": 1})
    np.testing.assert_array_equal(result.as_numpy("Y"), TWO)
    words = np.array(["数字", "", "a\0b"], dtype=object)
    result = client.infer("words", [x(module, words, "T", "BYTES")])
    assert [word.decode() for word in result.as_numpy("U")] == words.tolist()
    wanted = module.InferRequestedOutput("Y", class_count=1)
    result = client.infer("labelled", [x(module, TWO.reshape(1, 2))], outputs=[wanted])
    assert result.as_numpy("Y").tolist() == [[b"2.000000:1:dog"]]
    with pytest.raises(InferenceServerException, match="unknown model: 'nobody'"):
        client.infer("nobody", [x(module, TWO)])
    region = shared_memory.create_shared_memory_region("round", "/client_round", 16)
    try:
        shared_memory.set_shared_memory_region(region, [TWO])
        client.register_system_shared_memory("round", "/client_round", 16)
        tensor = module.InferInput("X", [2], "FP32")
        tensor.set_shared_memory("round", 8)
        wanted = module.InferRequestedOutput("Y")
        wanted.set_shared_memory("round", 8, offset=8)
        client.infer("vector", [tensor], outputs=[wanted])
        found = shared_memory.get_contents_as_numpy(region, np.float32, [2], offset=8)
        np.testing.assert_array_equal(found, TWO)
        client.unregister_system_shared_memory("round")
    finally:
        shared_memory.destroy_shared_memory_region(region)


def http(address):
    with over_http.InferenceServerClient(address) as client:
        any_protocol(client, over_http)
        tensors = [x(over_http, TWO, binary_data=False)]
        for coding in (None, "gzip", "deflate"):
            result = client.infer(
                "vector",
                tensors,
                outputs=[over_http.InferRequestedOutput("Y", binary_data=False)],
                request_compression_algorithm=coding,
                response_compression_algorithm=coding,
            )
            np.testing.assert_array_equal(result.as_numpy("Y"), TWO)


def grpc(address):
    with over_grpc.InferenceServerClient(address) as client:
        any_protocol(client, over_grpc)
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(3):
            client.async_stream_infer("vector", [x(over_grpc, TWO)], request_id=str(number))
        results = [answers.get(timeout=SECONDS) for _ in range(3)]
        client.stop_stream()
        assert [result.get_response().id for result, _ in results] == ["0", "1", "2"]


if __name__ == "__main__":
    http(sys.argv[1])
    grpc(sys.argv[2])
    print(version("tritonclient"), tritonclient.__path__[0])
