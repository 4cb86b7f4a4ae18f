"""NVIDIA's Python clients for HTTP, plain and asyncio, and curl, against the reference server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as plain
from contract.casebook import get, infer_path
from contract.wire import exchange
from support.servers import Server

TWO = np.array([1, 2], dtype=np.float32)


@pytest.fixture
def client(probed_reference: Server) -> Iterator[plain.InferenceServerClient]:
    with plain.InferenceServerClient(probed_reference.http, concurrency=4) as client:
        yield client


def x(
    array: np.ndarray, name: str = "X", datatype: str = "FP32", *, binary: bool = True
) -> plain.InferInput:
    tensor = plain.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


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


BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]})
LONG = json.dumps(
    {"inputs": [{"name": "X", "datatype": "FP32", "shape": [9999], "data": [1.5] * 9999}]}
)
GENERATED = '{"Y":[1.0,2.0]'


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-I", "/v2/health/live"], "HTTP/1.1 "),
        (["--http1.0", "/v2/models/vector"], '"name":"vector"'),
        (["--compressed", "-d", BODY, "/v2/models/vector/infer"], '"data":[1.0,2.0]'),
        (["-H", "Expect: 100-continue", "-d", LONG, "/v2/models/vector/infer"], "1.5,1.5]"),
        (["-H", "Transfer-Encoding: chunked", "-d", LONG, "/v2/models/vector/infer"], "1.5,1.5]"),
        (
            ["-N", "-d", '{"X": [1, 2]}', "/v2/models/vector/generate_stream"],
            f"data: {GENERATED}",
        ),
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
