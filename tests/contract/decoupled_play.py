"""Send requests to the scripted models over gRPC and HTTP; write the responses in short form."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import grpc
from contract import casebook
from contract.decoupled_scripts import Told
from contract.grpc_casebook import Outcome, byte_strings, call, infer, tensor
from contract.wire import connect
from support.servers import Server
from tritonclient.grpc import service_pb2 as pb


def message(
    model: str, source: str, request_id: str = "i", **given: object
) -> pb.ModelInferRequest:
    batched = model.startswith(("paired", "iterative"))
    shape = [1, 1] if batched else [1]
    raw = [byte_strings(source.encode())]
    return infer(model, tensor("script", "BYTES", shape), raw=raw, id=request_id, given=given)


def streamed(server: Server, *messages: pb.ModelInferRequest, **metadata: str) -> Outcome:
    """Send requests on a stream; return the outcome."""
    with grpc.insecure_channel(server.grpc) as channel:
        return call("ModelStreamInfer", *messages, **metadata).put(channel)


def opened(
    channel: grpc.Channel, requests: Iterator[pb.ModelInferRequest], **options: object
) -> grpc.Call:
    """Open a stream with these requests."""
    method = channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        pb.ModelInferRequest.SerializeToString,
        pb.ModelStreamInferResponse.FromString,
    )
    return method(requests, **options)


def told(outcome: Outcome, request_id: str = "i") -> tuple[Told, ...]:
    """Return the text of each message about a request, and whether it is marked as the last."""
    assert (outcome.code, outcome.details) == ("OK", "")
    return tuple(
        (
            each.error_message or text(each.infer_response),
            each.infer_response.parameters["triton_final_response"].bool_param,
        )
        for each in outcome.messages
        if each.infer_response.id == request_id
    )


def text(response: pb.ModelInferResponse) -> str:
    """Return the elements of all outputs; elements that are not strings as bytes."""
    words = []
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.datatype != "BYTES":
            words.append(raw.hex(" "))
        while output.datatype == "BYTES" and raw:
            (size,) = struct.unpack_from("<I", raw)
            words.append(raw[4 : 4 + size].decode())
            raw = raw[4 + size :]
    return " ".join(words)


def agrees(found: tuple[Told, ...], expected: tuple[Told, ...]) -> bool:
    """Return whether messages agree; an error must only contain the expected text."""
    return len(found) == len(expected) and all(
        part in whole and is_final == was_final
        for (whole, is_final), (part, was_final) in zip(found, expected, strict=True)
    )


def posted(server: Server, path: str, document: object) -> bytes:
    """Send a request on a new connection, and return all received bytes."""
    body = json.dumps(document).encode()
    with connect(server.http) as connection, connection.makefile("rb") as stream:
        connection.sendall(casebook.post(path, body, headers={"Connection": "close"}))
        return stream.read()
