"""The calls of a client of the Open Inference Protocol and their results, printed as JSON.

    python open_inference_client.py http HOST:PORT
    python open_inference_client.py grpc HOST:PORT

The clients are those of the protocol (PyPI: open-inference-openapi, open-inference-grpc). They need
a separate process, because their messages have the same names as tritonclient's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

MODEL = "vector"
DATA = [1.5, -2.0, 3.25]


def over_http(address: str) -> Iterator[Callable[[], Any]]:
    """Each call that the client has."""
    from open_inference.openapi.client import InferenceRequest, OpenInferenceClient

    client = OpenInferenceClient(base_url=f"http://{address}")
    given = {"name": "X", "shape": [3], "datatype": "FP32", "data": DATA}
    request = InferenceRequest(id="from afar", inputs=[given], outputs=[{"name": "Y"}])
    yield client.check_server_liveness
    yield client.check_server_readiness
    yield lambda: client.check_model_readiness(MODEL)
    yield lambda: client.check_model_version_readiness(MODEL, "1")
    yield lambda: client.read_server_metadata().dict(exclude={"extensions"})
    yield lambda: client.read_model_metadata(MODEL).dict()
    yield lambda: client.read_model_version_metadata(MODEL, "1").dict()
    yield lambda: client.model_infer(MODEL, request=request).dict()
    yield lambda: client.model_version_infer(MODEL, "1", request=request).dict()
    yield lambda: client.model_infer("nobody", request=request)
    yield lambda: client.model_infer(MODEL, request=InferenceRequest(inputs=[]))


def over_grpc(address: str) -> Iterator[Callable[[], Any]]:
    """Each call that the client has."""
    import grpc
    from open_inference.grpc import protocol
    from open_inference.grpc.service import GRPCInferenceServiceStub

    client = GRPCInferenceServiceStub(grpc.insecure_channel(address))
    request = protocol.ModelInferRequest(
        model_name=MODEL,
        id="from afar",
        inputs=[
            {"name": "X", "shape": [3], "datatype": "FP32", "contents": {"fp32_contents": DATA}}
        ],
        outputs=[{"name": "Y"}],
    )
    nobody = protocol.ModelInferRequest(model_name="nobody")
    yield lambda: str(client.ServerLive(protocol.ServerLiveRequest()))
    yield lambda: str(client.ServerReady(protocol.ServerReadyRequest()))
    yield lambda: str(client.ModelReady(protocol.ModelReadyRequest(name=MODEL)))
    yield lambda: client.ServerMetadata(protocol.ServerMetadataRequest()).version
    yield lambda: str(client.ModelMetadata(protocol.ModelMetadataRequest(name=MODEL)))
    yield lambda: str(client.ModelInfer(request))
    yield lambda: str(client.ModelInfer(nobody))


def told(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or its error."""
    try:
        return call()
    except Exception as error:  # the clients' errors have no common class
        details = getattr(error, "details", None)
        return [type(error).__name__, details() if details else str(error)]


if __name__ == "__main__":
    calls = {"http": over_http, "grpc": over_grpc}[sys.argv[1]](sys.argv[2])
    print(json.dumps([told(call) for call in calls], indent=1))
