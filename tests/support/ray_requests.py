"""Requests to the models of tests/stack/ray_cluster, over HTTP and gRPC."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

CLASSIFIER, WITNESS, STREAMS, PIPELINE = "ge_classifier", "witness", "streams", "pipeline"


def numbers(count: int, how: int) -> dict[str, object]:
    return {"id": "7", "IN": [count, how]}


IMAGE = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}


def asking(how: str) -> dict[str, object]:
    told = {"name": "how", "datatype": "BYTES", "shape": [1], "data": [how]}
    return {"id": how, "inputs": [IMAGE, told]}


REQUESTS = [
    ("GET", "/v2", None),
    ("GET", f"/v2/models/{PIPELINE}", None),
    ("GET", f"/v2/models/{PIPELINE}/config", None),
    ("GET", f"/v2/models/{PIPELINE}/versions/7", None),
    ("GET", "/v2/models/nobody", None),
    ("POST", f"/v2/models/{PIPELINE}/infer", {"inputs": [{**IMAGE, "shape": [1, 1, 8, 9]}]}),
    # Longer than the requests that a server caches.
    ("POST", f"/v2/models/{PIPELINE}/infer", {"inputs": [{**IMAGE, "data": [0.5] * 30_000}]}),
    # BLS in a step of an ensemble, and a BLS request that unloads and loads a model.
    ("POST", f"/v2/models/{PIPELINE}/infer", asking("once")),
    ("POST", f"/v2/models/{PIPELINE}/infer", asking("again")),
    ("POST", f"/v2/models/{PIPELINE}/infer", {"inputs": [IMAGE]}),
    ("POST", f"/v2/models/{STREAMS}/generate", numbers(1, 1)),
    ("POST", f"/v2/models/{STREAMS}/generate_stream", numbers(5, 0)),
    ("POST", f"/v2/models/{STREAMS}/generate_stream", numbers(2, 3)),
]


def message(model: str, name: str = "", **inputs: np.ndarray[Any, Any]) -> pb.ModelInferRequest:
    asked = pb.ModelInferRequest(model_name=model, id=name)
    for key, value in inputs.items():
        tensor = asked.inputs.add(name=key, datatype=np_to_triton_dtype(value.dtype))
        tensor.shape.extend(value.shape)
        texts = value.dtype == object
        asked.raw_input_contents.append(
            serialize_byte_tensor(value).item() if texts else value.tobytes()
        )
    return asked


PICTURE = message(
    PIPELINE,
    "1",
    image=np.full((1, 1, 8, 8), 0.5, np.float32),
    how=np.array([b"once"], object),
)


def streamed(count: int, how: int) -> pb.ModelInferRequest:
    return message(STREAMS, f"{count} {how}", IN=np.array([count, how], np.float32))


CALLS = [
    ("ServerReady", pb.ServerReadyRequest()),
    ("ServerMetadata", pb.ServerMetadataRequest()),
    ("ModelReady", pb.ModelReadyRequest(name=PIPELINE)),
    ("ModelMetadata", pb.ModelMetadataRequest(name=PIPELINE)),
    ("ModelConfig", pb.ModelConfigRequest(name=PIPELINE)),
    ("ModelStatistics", pb.ModelStatisticsRequest(name="nobody")),
    ("ModelInfer", PICTURE),
    ("ModelInfer", message(PIPELINE)),
    ("ModelInfer", message("nobody")),
    ("ModelInfer", streamed(1, 1)),
]
