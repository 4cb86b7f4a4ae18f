"""Servers under attack: their models and how they start."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from contract.probes import write_probes
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

from benchmarks.attack import ROOT
from model_factory.onnx_graph import GraphWriter
from tests.support.servers import Flag, Server, start_reference_server, start_tritonserver

SERVICE = "/inference.GRPCInferenceService/"

PROBES = ("types", "vector", "pair", "batched", "words", "text", "optional", "reshaped", "half")
"""Models of the contract tests that always respond and keep no state between requests."""

SIDES = ("inline", "process", "asgi", "triton")
"""The reference server with models inline, in processes, in uvicorn; the real tritonserver."""
ALL_BUT_ASGI = ("inline", "process", "triton")

_IDENTITY = ROOT / "benchmarks" / "micro_repository" / "identity"
_TIMEOUT_S = 15

FLOOD = """\
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()[-1])
            given = count or 25_000, request.get_response_sender()
            threading.Thread(target=self.send, args=given).start()

    def send(self, count, sender):
        numbers = pb_utils.Tensor("OUTPUT", np.zeros(count, np.float32))
        while not sender.is_cancelled():
            sender.send(pb_utils.InferenceResponse([numbers]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""A decoupled model that sends responses until its client disconnects.

The last element of the input is the number of floats in each response; 0 means 25,000.
"""
FLOOD_CONFIG = """\
backend: "python"
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
model_transaction_policy { decoupled: true }
"""


@dataclass
class Ground:
    """One server under one attack."""

    side: str
    server: Server
    repository: Path
    dice: random.Random
    seconds: float

    def over(self) -> Iterator[float]:
        """Yield the remaining seconds until the time is over."""
        end = time.monotonic() + self.seconds
        while (left := end - time.monotonic()) > 0:
            yield left


@contextlib.contextmanager
def repository() -> Iterator[Path]:
    """A repository of the models that floods and the bystander use, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="attack-") as directory:
        folder = Path(directory)
        for number in range(2):
            shutil.copytree(_IDENTITY, folder / f"identity_{number}")
        for name, datatype in (("wide", "FP32"), ("texts", "STRING")):
            config = shutil.copytree(_IDENTITY, folder / name) / "config.pbtxt"
            text = config.read_text().replace("dims: [ 4 ]", "dims: [ -1 ]")
            config.write_text(text.replace("TYPE_FP32", f"TYPE_{datatype}"))
        flood = folder / "flood"
        (flood / "1").mkdir(parents=True)
        (flood / "config.pbtxt").write_text(FLOOD_CONFIG)
        (flood / "1" / "model.py").write_text(FLOOD)
        yield folder


@contextlib.contextmanager
def models() -> Iterator[Path]:
    """A repository of the models that all attacks use, removed afterwards."""
    with repository() as folder:
        write_probes(folder, *PROBES)
        yield folder


# -- a model in a device service

IMAGE = {"image": np.ones((1, 3, 224, 224), np.float32)}
"""The inputs of a request to `image_service`."""


@contextlib.contextmanager
def service_folder() -> Iterator[None]:
    """Use a temporary runtime folder for device services until the block ends."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, XDG_RUNTIME_DIR=folder),
    ):
        yield


def write_image_service(folder: Path) -> None:
    """Add `image_service`, which executes in a device service, to a repository."""
    dims = list(IMAGE["image"].shape[1:])
    graph = GraphWriter()
    given = graph.input("image", np.float32, ["batch", *dims])
    means = graph.output("answer", np.float32, ["batch", 3, 1, 1])
    graph.node("ReduceMean", given, name=means, axes=[2, 3], keepdims=1)
    version = folder / "image_service" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(graph.model("image", "").SerializeToString())
    shutil.copy(ROOT / "model_repository" / "text_encoder" / "1" / "model.py", version)
    config = ModelConfig(
        name="image_service",
        backend="python",
        max_batch_size=8,
        input=[ModelInput(name="image", data_type="TYPE_FP32", dims=dims)],
        output=[ModelOutput(name="answer", data_type="TYPE_FP32", dims=[3, 1, 1])],
    )
    cost = "launch_us=100, element_ns=100, element2_ns=0"
    for key, value in {"cost": cost, "intra_op_threads": "1", "placement": "service"}.items():
        config.parameters[key].string_value = value
    (version.parent / "config.pbtxt").write_text(text_format.MessageToString(config))


# -- starting


@contextlib.contextmanager
def started(side: str, folder: Path, **flags: Flag) -> Iterator[Server]:
    """Start the server of a side with the models in `folder` and these flags."""
    if side == "triton":
        starting = start_tritonserver(folder, **flags)
    elif side == "asgi":
        program = ("-m", "benchmarks.attack.programs", "asgi")
        flags = {"program": program, **flags, "allow_metrics": False}
        starting = start_reference_server(folder, **flags)
    else:
        starting = start_reference_server(folder, backend_config=f"python,host={side}", **flags)
    with starting as server:
        yield server


def connect(address: str) -> socket.socket:
    """Open a TCP connection. A `recv` without data for 15 s raises TimeoutError."""
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client
