"""Messages of Triton's gRPC service: inferences in protobuf, out of gRPC's framing.

The messages are those that tritonclient ships.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from triton_replay.protocol.grpc_framing import PREFIX, MessageSplitter
from triton_replay.protocol.http_bodies import Body, NotUnderstood

FINAL = b"triton_final_response\x12\x02\x08\x01"
"""What the last response to a request holds, where the request wants to be told."""
INFERENCES = ("/ModelInfer", "/ModelStreamInfer")
"""How the paths of calls end that a model executes."""


def is_inference(target: str) -> bool:
    """Whether a call of this path is executed by a model."""
    return target.endswith(INFERENCES)


def read_requests(body: Body) -> list[Any]:
    """The ModelInferRequests of a body. Raises NotUnderstood."""
    return [_parsed(service_pb2.ModelInferRequest, message) for message in _split(body)]


def read_responses(body: Body) -> list[Any]:
    """The ModelInferResponses of a body. Raises NotUnderstood."""
    return [_parsed(service_pb2.ModelInferResponse, message) for message in _split(body)]


def read_stream_responses(body: Body) -> list[Any]:
    """The ModelStreamInferResponses of a body. Raises NotUnderstood."""
    return [_parsed(service_pb2.ModelStreamInferResponse, message) for message in _split(body)]


def read_stream_answer(message: bytes, *, is_last: bool) -> tuple[str, bool, bool]:
    """Of a response of a stream: its error, whether it is the last one, whether it is empty.

    is_last: what holds where it does not say. Raises NotUnderstood.
    """
    found = _parsed(service_pb2.ModelStreamInferResponse, message)
    response = found.infer_response
    if "triton_final_response" in response.parameters:
        is_last = response.parameters["triton_final_response"].bool_param
    return str(found.error_message), is_last, not found.error_message and not response.outputs


def framed(messages: Iterable[Any]) -> bytes:
    """Messages as they are on the wire, not compressed."""
    pieces = []
    for message in messages:
        data = message.SerializeToString()
        pieces += [b"\0", len(data).to_bytes(4, "big"), data]
    return b"".join(pieces)


def sequence_of_call(body: Body) -> str:
    """The correlation id of a call's first request; empty where it is of no sequence."""
    try:
        requests = read_requests(body)
    except NotUnderstood:
        return ""
    if not requests or "sequence_id" not in requests[0].parameters:
        return ""
    parameter = requests[0].parameters["sequence_id"]
    found = getattr(parameter, parameter.WhichOneof("parameter_choice") or "string_param")
    return str(found) if found else ""


def model_of_call(body: Body) -> str:
    """The model that the first request of a call asks; empty if that cannot be told."""
    try:
        requests = read_requests(body)
    except NotUnderstood:
        return ""
    return str(requests[0].model_name) if requests else ""


def _split(body: Body) -> list[bytes]:
    splitter = MessageSplitter()
    messages = list(splitter.feed(body))
    if splitter.rest:
        raise NotUnderstood("a gRPC message that is not whole")
    if any(message[0] for message in messages):
        raise NotUnderstood("a compressed gRPC message")
    return [message[PREFIX:] for message in messages]


def _parsed(kind: Any, data: bytes) -> Any:  # noqa: ANN401  protobuf's classes are made at run time
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise NotUnderstood(f"no {kind.DESCRIPTOR.name}: {error}") from error
