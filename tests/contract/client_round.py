"""Call the functions of NVIDIA's client library over HTTP and gRPC, on a server with the probes.

This is a program, so that PYTHONPATH chooses the version of the library. It prints the version and
the folder of the library.

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
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from tritonclient.utils import InferenceServerException, shared_memory

TWO = np.array([1, 2], dtype=np.float32)
SECONDS = 20


def x(client, array, name="X", datatype="FP32", **form):
    tensor = client.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **form)
    return tensor


def plain(answer):
    """Return a gRPC message as a dictionary; HTTP answers are Python objects already."""
    if isinstance(answer, Message):
        return MessageToDict(answer, preserving_proto_field_name=True)
    return answer


def any_protocol(client, module):
    """Make the calls that have the same names over both protocols."""
    assert client.is_server_live()
    assert not client.is_server_ready()  # some probes cannot be loaded
    assert client.is_model_ready("vector")
    assert not client.is_model_ready("vector", "9")
    assert plain(client.get_server_metadata())["version"] == "2.51.0"
    assert plain(client.get_model_metadata("pair"))["inputs"][1]["datatype"] == "INT32"
    config = plain(client.get_model_config("batched"))
    assert config.get("config", config)["max_batch_size"] == 8
    assert len(plain(client.get_inference_statistics("versions"))["model_stats"]) == 2
    index = plain(client.get_model_repository_index())
    models = index["models"] if isinstance(index, dict) else index
    assert {model["name"] for model in models} > {"vector"}
    result = client.infer("vector", [x(module, TWO)], request_id="i", parameters={"k": 1})
    np.testing.assert_array_equal(result.as_numpy("Y"), TWO)
    assert plain(result.get_response())["id"] == "i"
    words = np.array(["数字", "", "a\0b"], dtype=object)
    result = client.infer("words", [x(module, words, "T", "BYTES")])
    assert [word.decode() for word in result.as_numpy("U")] == words.tolist()
    wanted = module.InferRequestedOutput("Y", class_count=1)
    result = client.infer("labelled", [x(module, TWO.reshape(1, 2))], outputs=[wanted])
    assert result.as_numpy("Y").tolist() == [[b"2.000000:1:dog"]]
    with pytest.raises(InferenceServerException, match="unknown model: 'nobody'") as caught:
        client.infer("nobody", [x(module, TWO)])
    assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")
    with pytest.raises(InferenceServerException, match="load / unload is not allowed"):
        client.load_model("vector")
    region = shared_memory.create_shared_memory_region("round", "/client_round", 16)
    try:
        shared_memory.set_shared_memory_region(region, [TWO])
        client.register_system_shared_memory("round", "/client_round", 16)
        status = plain(client.get_system_shared_memory_status("round"))
        region_status = status["regions"]["round"] if isinstance(status, dict) else status[0]
        assert int(region_status["byte_size"]) == 16
        tensor = module.InferInput("X", [2], "FP32")
        tensor.set_shared_memory("round", 8)
        wanted = module.InferRequestedOutput("Y")
        wanted.set_shared_memory("round", 8, offset=8)
        client.infer("vector", [tensor], outputs=[wanted])
        found = shared_memory.get_contents_as_numpy(region, np.float32, [2], offset=8)
        np.testing.assert_array_equal(found, TWO)
        client.unregister_system_shared_memory("round")
        status = plain(client.get_cuda_shared_memory_status())
        assert status in ([], {})
    finally:
        shared_memory.destroy_shared_memory_region(region)


def http(address):
    with over_http.InferenceServerClient(address) as client:
        any_protocol(client, over_http)
        assert client.get_log_settings()["log_info"]
        assert client.get_trace_settings("vector")["trace_rate"] == "1000"
        for coding in (None, "gzip", "deflate"):
            for binary in (True, False):
                result = client.infer(
                    "vector",
                    [x(over_http, TWO, binary_data=binary)],
                    outputs=[over_http.InferRequestedOutput("Y", binary_data=binary)],
                    request_compression_algorithm=coding,
                    response_compression_algorithm=coding,
                )
                np.testing.assert_array_equal(result.as_numpy("Y"), TWO)


def grpc(address):
    with over_grpc.InferenceServerClient(address) as client:
        any_protocol(client, over_grpc)
        for coding in ("gzip", "deflate"):
            result = client.infer("vector", [x(over_grpc, TWO)], compression_algorithm=coding)
            np.testing.assert_array_equal(result.as_numpy("Y"), TWO)
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
