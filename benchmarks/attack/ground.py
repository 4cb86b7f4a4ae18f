"""Servers under attack: the models they serve, how they start, and what their processes hold."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contract.probes import write_probes

from benchmarks.attack import ROOT
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

The last element of the input is the number of floats of each; 0: 25,000.
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
        """Yield the seconds that are left, until there are none."""
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


@contextlib.contextmanager
def started(side: str, folder: Path, **flags: Flag) -> Iterator[Server]:
    """Start a server of this side on these models, with more flags."""
    if side == "triton":
        starting = start_tritonserver(folder, **flags)
    elif side == "asgi":
        program = ("-m", "benchmarks.attack.asgi_server")
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
