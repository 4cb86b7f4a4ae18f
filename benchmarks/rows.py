"""The loads of docs/results/performance.md: models, prepared requests, and the bars to reach."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tritonclient.grpc import service_pb2
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import np_to_triton_dtype

from benchmarks.instruments import ROOT
from benchmarks.load import HTTP, Client, Grpc
from triton_replay.wire.grpc_messages import with_prefix

HERE = Path(__file__).resolve().parent
MICRO = HERE / "micro_repository"
PIPELINES = ROOT / "model_repository"
PIPELINE_MODELS = (
    "text_pipeline",
    "tokenizer",
    "text_encoder",
    "text_classifier",
    "ge_classifier",
    "ocr_pipeline",
    "ocr_detection",
    "ocr_angle",
    "ocr_recognition",
)
IN_PROCESS = '\nparameters { key: "EXECUTION_HOST" value { string_value: "process" } }\n'
CALLS = 6
"""Concurrent calls per gRPC connection, as in perf_analyzer."""

Arrays = dict[str, np.ndarray]
Requests = Callable[[], list[bytes]]


# -- requests as bytes


def http(model: str, *inputs: Arrays, binary: bool = True) -> list[bytes]:
    """Return HTTP requests whose inputs and outputs are binary data, or JSON."""
    return [_http(model, arrays, binary=binary) for arrays in inputs]


def _http(model: str, arrays: Arrays, *, binary: bool) -> bytes:
    tensors = []
    for name, values in arrays.items():
        tensors.append(InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype)))
        tensors[-1].set_data_from_numpy(values, binary_data=binary)
    outputs = None if binary else [InferRequestedOutput(o, False) for o in OUTPUTS[model]]
    body, length = InferenceServerClient.generate_request_body(tensors, outputs)
    return _post(model, body, f"Inference-Header-Content-Length: {length}\r\n" if binary else "")


def _post(model: str, body: bytes, more: str = "") -> bytes:
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


OUTPUTS = {"add_sub": ("OUTPUT0", "OUTPUT1"), "echo": ("OUTPUT",), "echo_text": ("OUTPUT",)}
"""Outputs that JSON requests name: without names, Triton would send binary data."""


def grpc(model: str, arrays: Arrays, *, marks_last: bool = False) -> list[bytes]:
    """Return one ModelInferRequest with its prefix.

    Args:
        model: The model.
        arrays: The inputs.
        marks_last: Whether the server should mark the last of several responses.
    """
    request = service_pb2.ModelInferRequest(model_name=model)
    if marks_last:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, values in arrays.items():
        tensor = InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        tensor.set_data_from_numpy(values, binary_data=True)
        request.inputs.add(name=name, datatype=tensor.datatype(), shape=list(values.shape))
        request.raw_input_contents.append(tensor._get_binary_data())
    return [with_prefix(request.SerializeToString())]


def _in_region(elements: int, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe an input and an output of FP32 in the halves of region `number`."""
    size = 4 * elements
    names = {"shared_memory_region": f"bars_{number}", "shared_memory_byte_size": size}
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [elements], "parameters": names}
    return tensor, {"name": "OUTPUT", "parameters": {**names, "shared_memory_offset": size}}


def http_in_regions(elements: int, count: int) -> list[bytes]:
    """Return HTTP requests for `echo`, each with a separate shared memory region."""
    requests = []
    for number in range(count):
        tensor, output = _in_region(elements, number)
        document = {"inputs": [tensor], "outputs": [output]}
        requests.append(_post("echo", json.dumps(document).encode()))
    return requests


def grpc_in_regions(elements: int, count: int) -> list[bytes]:
    """Return gRPC requests for `echo`, each with a separate shared memory region."""
    requests = []
    for number in range(count):
        request = service_pb2.ModelInferRequest(model_name="echo")
        tensor, output = _in_region(elements, number)
        for entry, described in (
            (request.inputs.add(name="INPUT", datatype="FP32", shape=tensor["shape"]), tensor),
            (request.outputs.add(name="OUTPUT"), output),
        ):
            for key, value in described["parameters"].items():
                kind = "string_param" if isinstance(value, str) else "int64_param"
                setattr(entry.parameters[key], kind, value)
        requests.append(with_prefix(request.SerializeToString()))
    return requests


VALUES = np.arange(16, dtype=np.float32).reshape(1, 16)
SUMMANDS = {"INPUT0": VALUES, "INPUT1": VALUES}
THOUSAND = {"INPUT": np.arange(1000, dtype=np.float32)}
UNEVEN = {"INPUT": (np.arange(1000) / 7).astype(np.float32)}
STRINGS = {"INPUT": np.array([b"string number %d" % n for n in range(1000)], object)}
IMAGE = {"INPUT": np.zeros(3 * 224 * 224, np.float32)}
SMALL = {"INPUT": VALUES}


def samples(name: str, dtype: Any, batch: tuple[int, ...] = ()) -> list[Arrays]:
    """Return the inputs in benchmarks/data for a pipeline, with `batch` before their shapes."""
    found = json.loads((HERE / "data" / f"{name}.json").read_text())["data"]
    return [
        {
            key: np.array(value["content"], dtype).reshape((*batch, *value["shape"]))
            for key, value in each.items()
        }
        for each in found
    ]


def pages() -> list[Arrays]:
    """Return the project's page images, Chinese and English."""
    found = []
    for path in sorted((ROOT / "model_factory" / "data" / "pages").glob("*.png")):
        with Image.open(path) as file:
            found.append({"image": np.asarray(file.convert("RGB"))})
    return found


# -- the rows


@dataclass(frozen=True)
class Row:
    """A load: requests, client, and concurrency.

    Args:
        about: Description, for plots.
        requests: Creates the requests, which are sent in turn.
        in_flight: Numbers of requests in flight to measure.
        bars: For each number in `in_flight`, the least ratios to tritonserver, of requests per
            second and of CPU time.
        client: Protocol of the requests.
        repository: "micro", "process" (`add_sub` in a process) or "pipelines".
        regions: Bytes of an input in shared memory; 0 without regions.
        has_sketch: Whether the sketch server can respond.
        least_s: Least duration in seconds; such a row is not part of `--quick`.
    """

    about: str
    requests: Requests
    in_flight: tuple[int, ...]
    bars: tuple[tuple[float, float], ...]
    client: Client = HTTP
    repository: str = "micro"
    regions: int = 0
    has_sketch: bool = False
    least_s: float = 0.0

    @property
    def is_grpc(self) -> bool:
        """True if the requests are sent over gRPC."""
        return isinstance(self.client, Grpc)


ALL = (1, 8, 32)
_SMALL_BARS = ((1.5, 1.5), (2, 2.5), (2, 3))
_JSON_BARS = ((1.3, 1.5), (1.5, 1.5), (1.5, 1.5))
ROWS = {
    "http": Row(
        "two FP32 [1, 16] in and out",
        lambda: http("add_sub", SUMMANDS),
        ALL,
        _SMALL_BARS,
        has_sketch=True,
    ),
    "grpc": Row(
        "two FP32 [1, 16] over gRPC",
        lambda: grpc("add_sub", SUMMANDS),
        ALL,
        _SMALL_BARS,
        Grpc(CALLS),
    ),
    "stream": Row(
        "two FP32 [1, 16] on gRPC streams",
        lambda: grpc("add_sub", SUMMANDS),
        (8,),
        ((1.5, 2),),
        Grpc(4, streaming=True),
    ),
    "json": Row(
        "two FP32 [1, 16] as JSON",
        lambda: http("add_sub", SUMMANDS, binary=False),
        ALL,
        _JSON_BARS,
    ),
    "json-1000": Row(
        "1,000 whole numbers as JSON",
        lambda: http("echo", THOUSAND, binary=False),
        ALL,
        _JSON_BARS,
    ),
    "json-uneven": Row(
        "1,000 numbers of 17 digits as JSON",
        lambda: http("echo", UNEVEN, binary=False),
        ALL,
        _JSON_BARS,
    ),
    "strings": Row(
        "1,000 strings in and out", lambda: http("echo_text", STRINGS), (4,), ((1.5, 1.5),)
    ),
    "strings-json": Row(
        "1,000 strings as JSON",
        lambda: http("echo_text", STRINGS, binary=False),
        (4,),
        ((1.5, 1.5),),
    ),
    "strings-grpc": Row(
        "1,000 strings over gRPC",
        lambda: grpc("echo_text", STRINGS),
        (4,),
        ((1.5, 1.5),),
        Grpc(),
    ),
    "602k": Row("602 KB in and out", lambda: http("echo", IMAGE), (4,), ((2, 2),)),
    "602k-grpc": Row("602 KB over gRPC", lambda: grpc("echo", IMAGE), (4,), ((1.5, 1.5),), Grpc()),
    "602k-shm": Row(
        "602 KB in shared memory",
        lambda: http_in_regions(150_528, 4),
        (4,),
        ((2, 2),),
        regions=602_112,
    ),
    "602k-shm-grpc": Row(
        "602 KB in shared memory over gRPC",
        lambda: grpc_in_regions(150_528, 4),
        (4,),
        ((2, 2),),
        Grpc(),
        regions=602_112,
    ),
    "16m-shm": Row(
        "16 MB in shared memory",
        lambda: http_in_regions(4_000_000, 2),
        (2,),
        ((1, 1),),
        regions=16_000_000,
    ),
    "ensemble": Row("three small steps", lambda: http("steps", SMALL), (8,), ((2, 2),)),
    "asks": Row("a model that calls another", lambda: http("asks", SMALL), (8,), ((2, 2),)),
    "decoupled": Row(
        "100 responses per request",
        lambda: grpc("many", {"INPUT": VALUES[0]}, marks_last=True),
        (8,),
        ((1.5, 2),),
        Grpc(4, streaming=True, many=True),
    ),
    "process": Row(
        "two FP32 [1, 16], the model in a process",
        lambda: http("add_sub", SUMMANDS),
        (8,),
        ((1, 0),),
        repository="process",
    ),
    "text_pipeline": Row(
        "one to eight texts per request",
        lambda: http("text_pipeline", *samples("text_pipeline", object)),
        (16,),
        ((1.2, 1.2),),
        repository="pipelines",
    ),
    "ge_classifier": Row(
        "handwritten digits of any size",
        lambda: http("ge_classifier", *samples("ge_classifier", np.float32, (1,))),
        (16,),
        ((1.2, 1.2),),
        repository="pipelines",
    ),
    "ocr_pipeline": Row(
        "pages of text",
        lambda: http("ocr_pipeline", *pages()),
        (16,),
        ((1.2, 1.2),),
        repository="pipelines",
        least_s=20.0,
    ),
}


# -- repositories and regions


def fill(folder: Path, repository: str, *, in_process: bool) -> None:
    """Fill a folder with the models of a row.

    Args:
        folder: An empty folder.
        repository: A value of `Row.repository`.
        in_process: Whether "process" needs the parameter EXECUTION_HOST.
    """
    if repository == "micro":
        shutil.copytree(MICRO, folder, dirs_exist_ok=True)
    elif repository == "process":
        copy_add_sub(folder, in_process=in_process)
    else:
        for name in PIPELINE_MODELS:
            (folder / name).symlink_to(PIPELINES / name)


def copy_add_sub(folder: Path, *, in_process: bool) -> None:
    """Copy `add_sub` to a repository, to run in the server's process or in a separate one."""
    shutil.copytree(MICRO / "add_sub", folder / "add_sub")
    if in_process:
        with (folder / "add_sub" / "config.pbtxt").open("a") as config:
            config.write(IN_PROCESS)


@contextlib.contextmanager
def regions(address: str, count: int, size: int) -> Iterator[None]:
    """Register shared memory regions, each for an input and an output of `size` bytes."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            path = Path(f"/dev/shm/bars_{os.getpid()}_{number}")
            with path.open("wb+") as file:
                file.truncate(2 * size)
            stack.callback(path.unlink)
            request = {"key": f"/{path.name}", "offset": 0, "byte_size": 2 * size}
            url = f"http://{address}/v2/systemsharedmemory/region/bars_{number}"
            urllib.request.urlopen(f"{url}/register", json.dumps(request).encode()).close()
            stack.callback(_unregister, f"{url}/unregister")
        yield


def _unregister(url: str) -> None:
    for attempt in range(50):  # requests of the closed loop may still be executing
        try:
            urllib.request.urlopen(url, b"").close()
            return
        except urllib.error.HTTPError:
            if attempt == 49:
                raise
            time.sleep(0.1)
