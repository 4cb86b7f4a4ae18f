"""NVIDIA's Python clients for HTTP, plain and asyncio, and curl, against the reference server."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as plain
import tritonclient.http.aio as aio
from contract.casebook import get, infer_path
from contract.wire import exchange
from support.servers import Server
from tritonclient.utils import InferenceServerException, shared_memory

TWO = np.array([1, 2], dtype=np.float32)


@pytest.fixture
def client(probed_reference: Server) -> Iterator[plain.InferenceServerClient]:
    """The plain client."""
    with plain.InferenceServerClient(probed_reference.http, concurrency=4) as client:
        yield client


def x(
    array: np.ndarray, name: str = "X", datatype: str = "FP32", *, binary: bool = True
) -> plain.InferInput:
    tensor = plain.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def test_what_is_told_of_the_server_and_its_models(client: plain.InferenceServerClient):
    assert client.is_server_live()
    assert not client.is_server_ready()  # some probes are broken
    assert client.is_model_ready("vector")
    assert not client.is_model_ready("vector", "9")
    assert client.get_server_metadata()["version"] == "2.51.0"
    assert client.get_model_metadata("pair")["inputs"][1]["datatype"] == "INT32"
    assert client.get_model_config("batched")["max_batch_size"] == 8
    assert len(client.get_inference_statistics("versions")["model_stats"]) == 2
    assert {model["name"] for model in client.get_model_repository_index()} > {"vector"}
    assert client.get_log_settings()["log_info"]
    assert client.get_trace_settings("vector")["trace_rate"] == "1000"


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_infer(client: plain.InferenceServerClient, compression: str | None, binary: bool):
    result = client.infer(
        "vector",
        [x(TWO, binary=binary)],
        outputs=[plain.InferRequestedOutput("Y", binary_data=binary)],
        request_id="i",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    np.testing.assert_array_equal(result.as_numpy("Y"), TWO)
    assert result.get_response()["id"] == "i"


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
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="load / unload is not allowed"):
        client.load_model("vector")


def test_infer_without_waiting(client: plain.InferenceServerClient):
    waiting = [
        client.async_infer("vector", [x(TWO + number)], request_id=str(number))
        for number in range(10)
    ]
    for number, one in enumerate(waiting):
        np.testing.assert_array_equal(one.get_result().as_numpy("Y"), TWO + number)


def test_a_body_made_apart_from_its_request(probed_reference: Server):
    make, read = (
        getattr(plain.InferenceServerClient, name)
        for name in ("generate_request_body", "parse_response_body")
    )
    body, length = make([x(TWO)], request_id="apart")
    head = get(
        infer_path("vector"),
        method="POST",
        headers={"Content-Length": str(len(body)), "Inference-Header-Content-Length": str(length)},
    )
    (reply,) = exchange(probed_reference.http, head + body).replies
    result = read(reply.body, header_length=int(reply.header("Inference-Header-Content-Length")))
    np.testing.assert_array_equal(result.as_numpy("Y"), TWO)


def test_shared_memory(client: plain.InferenceServerClient):
    region = shared_memory.create_shared_memory_region("both", "/http_client_region", 16)
    try:
        shared_memory.set_shared_memory_region(region, [TWO])
        client.register_system_shared_memory("both", "/http_client_region", 16)
        assert client.get_system_shared_memory_status("both")[0]["byte_size"] == 16
        tensor = plain.InferInput("X", [2], "FP32")
        tensor.set_shared_memory("both", 8)
        wanted = plain.InferRequestedOutput("Y")
        wanted.set_shared_memory("both", 8, offset=8)
        client.infer("vector", [tensor], outputs=[wanted])
        found = shared_memory.get_contents_as_numpy(region, np.float32, [2], offset=8)
        np.testing.assert_array_equal(found, TWO)
        client.unregister_system_shared_memory("both")
        assert not client.get_cuda_shared_memory_status()
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_the_asyncio_client(probed_reference: Server):
    async def talk() -> None:
        async with aio.InferenceServerClient(probed_reference.http) as client:
            assert await client.is_server_live()
            assert (await client.get_model_metadata("vector"))["platform"] == "python"
            results = await asyncio.gather(
                *(client.infer("vector", [x(TWO + number)]) for number in range(10))
            )
            for number, result in enumerate(results):
                np.testing.assert_array_equal(result.as_numpy("Y"), TWO + number)
            with pytest.raises(InferenceServerException, match="nobody"):
                await client.infer("nobody", [x(TWO)])

    asyncio.run(talk())


BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]})
LONG = json.dumps(
    {"inputs": [{"name": "X", "datatype": "FP32", "shape": [9999], "data": [1.5] * 9999}]}
)
FLAT = '{"X": [1, 2]}'
GENERATED = '{"Y":[1.0,2.0]'


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/v2"], '"name":"triton"'),
        (["-I", "/v2/health/live"], "HTTP/1.1 "),
        (["-i", "/v2/models/vector/ready"], "HTTP/1.1 200 OK"),
        (["--http1.0", "/v2/models/vector"], '"name":"vector"'),
        (["-d", BODY, "/v2/models/vector/infer"], '"data":[1.0,2.0]'),
        (["--compressed", "-d", BODY, "/v2/models/vector/infer"], '"data":[1.0,2.0]'),
        (["-H", "Expect: 100-continue", "-d", LONG, "/v2/models/vector/infer"], "1.5,1.5]"),
        (["-H", "Transfer-Encoding: chunked", "-d", LONG, "/v2/models/vector/infer"], "1.5,1.5]"),
        (["-d", FLAT, "/v2/models/vector/generate"], GENERATED),
        (
            ["-N", "-d", '{"X": [1, 2]}', "/v2/models/vector/generate_stream"],
            f"data: {GENERATED}",
        ),
        (["-X", "POST", "/v2/repository/index"], '"name":"vector"'),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_curl(probed_reference: Server, arguments: list[str], says: str):
    *options, path = arguments
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "20", *options, f"http://{probed_reference.http}{path}"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert says in done.stdout
