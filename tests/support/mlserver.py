"""MLServer, another server of the Open Inference Protocol, installed by `make mlserver`.

with start_mlserver(folder) as (http, grpc):
    ...
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import ROOT, free_ports
from support.waiting import until

_TENSOR = {"datatype": "FP32", "shape": [3]}
_MODEL = '''
"""Gives its input back."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Identity(MLModel):
    async def predict(self, payload):
        values = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        output = NumpyCodec.encode_output("Y", values)
        output.shape = payload.inputs[0].shape  # the codec adds an axis to vectors
        return InferenceResponse(id=payload.id, model_name=self.name, outputs=[output])
'''


def installed() -> Path:
    """Return MLServer's command; skip the test if MLServer is not installed."""
    for stamp in ROOT.glob(".cache/mlserver-*/installed"):
        return stamp.parent / "bin" / "mlserver"
    pytest.skip("MLServer is not installed: make mlserver")


@contextlib.contextmanager
def start_mlserver(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve the model `identity` (X and Y, FP32 [3]); yield the addresses for HTTP and gRPC."""
    ports = free_ports(3)
    settings = {
        "host": "127.0.0.1",
        **dict(zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True)),
        "parallel_workers": 0,
        "metrics_dir": str(folder),
    }
    model = {
        "name": "identity",
        "implementation": "identity.Identity",
        "inputs": [{"name": "X", **_TENSOR}],
        "outputs": [{"name": "Y", **_TENSOR}],
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    (folder / "identity.py").write_text(_MODEL)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [installed(), "start", folder], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: process.poll() is not None or _is_ready(ports[0]))
        assert process.poll() is None, (folder / "log").read_text(errors="replace")
        yield f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
    finally:
        process.kill()
        process.wait()


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/v2/models/identity/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
