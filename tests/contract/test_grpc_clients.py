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
from tritonclient.utils import InferenceServerException

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
