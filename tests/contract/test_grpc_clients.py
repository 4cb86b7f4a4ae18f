"""NVIDIA's Python clients for gRPC, plain and asyncio, against the reference server."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as plain
import tritonclient.grpc.aio as aio
from support.servers import Server
from tritonclient.utils import InferenceServerException, shared_memory

SECONDS = 60
TWO = np.array([1, 2], dtype=np.float32)


@pytest.fixture
def client(probed_reference: Server) -> Iterator[plain.InferenceServerClient]:
    """The plain client."""
    with plain.InferenceServerClient(probed_reference.grpc) as client:
        yield client


def x(array: np.ndarray, name: str = "X", datatype: str = "FP32") -> plain.InferInput:
    tensor = plain.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def test_what_is_told_of_the_server_and_its_models(client: plain.InferenceServerClient):
    assert client.is_server_live()
    assert not client.is_server_ready()  # some probes are broken
    assert client.is_model_ready("vector")
    assert not client.is_model_ready("vector", "9")
    assert client.get_server_metadata().version == "2.51.0"
    assert client.get_model_metadata("pair").inputs[1].datatype == "INT32"
    assert client.get_model_config("batched", as_json=True)["config"]["max_batch_size"] == 8
    assert len(client.get_inference_statistics("versions").model_stats) == 2
    assert {model.name for model in client.get_model_repository_index().models} > {"vector"}


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_infer(client: plain.InferenceServerClient, compression: str | None):
    result = client.infer(
        "vector",
        [x(TWO)],
        request_id="i",
        compression_algorithm=compression,
        client_timeout=SECONDS,
    )
    np.testing.assert_array_equal(result.as_numpy("Y"), TWO)
    assert result.get_response().id == "i"


def test_strings_and_classes(client: plain.InferenceServerClient):
    words = np.array(["数字", "", "a\0b"], dtype=object)
    result = client.infer("words", [x(words, "T", "BYTES")])
    assert [word.decode() for word in result.as_numpy("U")] == words.tolist()
    wanted = plain.InferRequestedOutput("Y", class_count=1)
    result = client.infer("labelled", [x(TWO.reshape(1, 2))], outputs=[wanted])
    assert result.as_numpy("Y").tolist() == [[b"2.000000:1:dog"]]


def test_errors_are_exceptions(client: plain.InferenceServerClient):
    with pytest.raises(InferenceServerException, match="unknown model: 'nobody'") as caught:
        client.infer("nobody", [x(TWO)])
    assert caught.value.status() == "StatusCode.NOT_FOUND"
    with pytest.raises(InferenceServerException, match="load / unload is not allowed"):
        client.load_model("vector")


def test_infer_without_waiting(client: plain.InferenceServerClient):
    answers: queue.Queue = queue.Queue()
    for number in range(10):
        client.async_infer(
            "vector",
            [x(TWO + number)],
            lambda result, error: answers.put((result, error)),
            request_id=str(number),
        )
    results = [answers.get(timeout=SECONDS) for _ in range(10)]
    assert [error for _, error in results if error] == []
    for result, _ in results:
        expected = TWO + int(result.get_response().id)
        np.testing.assert_array_equal(result.as_numpy("Y"), expected)


def test_a_stream(client: plain.InferenceServerClient):
    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(5):
        client.async_stream_infer(
            "vector",
            [x(TWO)],
            request_id=str(number),
            enable_empty_final_response=True,
            sequence_id=7,
            sequence_start=number == 0,
        )
    client.async_stream_infer("nobody", [x(TWO)])
    ids = [answers.get(timeout=SECONDS)[0].get_response().id for _ in range(5)]
    assert ids == ["0", "1", "2", "3", "4"]
    assert "nobody" in str(answers.get(timeout=SECONDS)[1])
    client.stop_stream()


def test_settings(client: plain.InferenceServerClient):
    assert client.get_log_settings().settings["log_info"].bool_param
    assert client.get_trace_settings("vector").settings["trace_rate"].value == ["1000"]
    client.update_trace_settings("vector", {"trace_rate": "5"})
    assert client.get_trace_settings("vector").settings["trace_rate"].value == ["5"]
    client.update_trace_settings("vector", {"trace_rate": None})
    assert client.get_trace_settings("vector").settings["trace_rate"].value == ["1000"]


def test_shared_memory(client: plain.InferenceServerClient):
    region = shared_memory.create_shared_memory_region("both", "/grpc_client_region", 16)
    try:
        shared_memory.set_shared_memory_region(region, [TWO])
        client.register_system_shared_memory("both", "/grpc_client_region", 16)
        assert client.get_system_shared_memory_status("both").regions["both"].byte_size == 16
        tensor = plain.InferInput("X", [2], "FP32")
        tensor.set_shared_memory("both", 8)
        wanted = plain.InferRequestedOutput("Y")
        wanted.set_shared_memory("both", 8, offset=8)
        client.infer("vector", [tensor], outputs=[wanted])
        found = shared_memory.get_contents_as_numpy(region, np.float32, [2], offset=8)
        np.testing.assert_array_equal(found, TWO)
        client.unregister_system_shared_memory("both")
        assert not client.get_cuda_shared_memory_status().regions
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_the_asyncio_client(probed_reference: Server):
    async def talk() -> None:
        async with aio.InferenceServerClient(probed_reference.grpc) as client:
            assert await client.is_server_live()
            assert (await client.get_model_metadata("vector")).platform == "python"
            results = await asyncio.gather(
                *(client.infer("vector", [x(TWO + number)]) for number in range(10))
            )
            for number, result in enumerate(results):
                np.testing.assert_array_equal(result.as_numpy("Y"), TWO + number)

            async def requests():
                for number in range(5):
                    yield {
                        "model_name": "vector",
                        "inputs": [x(TWO)],
                        "request_id": str(number),
                    }

            ids = [
                result.get_response().id
                async for result, error in client.stream_infer(requests())
                if error is None
            ]
            assert ids == ["0", "1", "2", "3", "4"]
            with pytest.raises(InferenceServerException, match="nobody"):
                await client.infer("nobody", [x(TWO)])

    asyncio.run(talk())
