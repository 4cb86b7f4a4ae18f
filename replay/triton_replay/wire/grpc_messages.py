"""Messages of Triton's gRPC service, in protobuf, with and without gRPC's framing.

On the wire, a byte for compression and the length as u32 precede each message. The message classes
come from `grpc_service.binpb`, a serialized FileDescriptorSet of NVIDIA's `model_config.proto` and
`grpc_service.proto` (from tritonclient 2.73).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClassesForFiles

from triton_replay.wire.answers import Answer, Tensor, tensor_of_values, tensor_of_wire
from triton_replay.wire.bodies import MAX_UNPACKED, Body, NotUnderstood, decompress

SERVICE: Final = "/inference.GRPCInferenceService"
PREFIX: Final = 5
"""Number of bytes before each message."""
STREAMING: Final = "/ModelStreamInfer"
"""Suffix of the path of a call with a stream of messages in each direction."""
INFERENCES: Final = ("/ModelInfer", STREAMING)
"""Suffixes of the paths of calls that a model executes."""
FINAL: Final = b"triton_final_response\x12\x02\x08\x01"
"""Bytes of the last response's parameter `triton_final_response`, which is true."""

STATUS_NAMES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""Names of gRPC's status codes, from 0."""
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


def _message_classes() -> SimpleNamespace:
    files = FileDescriptorSet.FromString(
        Path(__file__).with_name("grpc_service.binpb").read_bytes()
    ).file
    # A separate pool: if tritonclient has registered its schema of another release, the default
    # pool refuses files of the same names.
    pool = DescriptorPool()
    for file in files:
        pool.Add(file)
    classes = GetMessageClassesForFiles([file.name for file in files], pool)
    return SimpleNamespace(**{name.rpartition(".")[2]: kind for name, kind in classes.items()})


messages: Final[Any] = _message_classes()
"""The message classes of the service by name, e.g. `messages.ModelInferRequest`."""


class MessageSplitter:
    """Splits the data of a stream into whole messages, each with its prefix."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Yield the messages that are complete with this data."""
        self._buffer += data
        while len(self._buffer) >= PREFIX:
            end = PREFIX + int.from_bytes(self._buffer[1:PREFIX], "big")
            if end > len(self._buffer):
                return
            message = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield message

    @property
    def rest(self) -> int:
        """Bytes of the incomplete message."""
        return len(self._buffer)


def with_prefix(message: bytes, *, compressed: bool = False) -> bytes:
    """Return a serialized message with its prefix."""
    return bytes((compressed,)) + len(message).to_bytes(4, "big") + message


def framed(messages: Iterable[Any]) -> bytes:
    """Serialize messages, each with its prefix, without compression."""
    return b"".join(with_prefix(message.SerializeToString()) for message in messages)


def is_inference(target: str) -> bool:
    """Return whether a model executes a call with this path."""
    return target.endswith(INFERENCES)


def read_messages(
    kind: Any,  # noqa: ANN401  made at run time
    body: Body,
    limit: int = MAX_UNPACKED,
) -> list[Any]:
    """Parse the messages of a body, all of class `kind`. Raise NotUnderstood if invalid."""
    return [_parsed(kind, message) for message in split_messages(body, limit)]


def read_requests(body: Body, limit: int = MAX_UNPACKED) -> list[Any]:
    """Parse the ModelInferRequests of a body. Raise NotUnderstood if they are invalid."""
    return read_messages(messages.ModelInferRequest, body, limit)


def read_stream_answer(message: bytes, *, is_last: bool) -> tuple[str, bool, bool]:
    """Parse one response of a stream.

    Args:
        message: A serialized ModelStreamInferResponse, without prefix.
        is_last: Whether a response without `triton_final_response` counts as the last one.

    Returns:
        The error text, whether it is the last response, and whether it has no outputs.

    Raises:
        NotUnderstood: The message is invalid.
    """
    found = _parsed(messages.ModelStreamInferResponse, message)
    response = found.infer_response
    if "triton_final_response" in response.parameters:
        is_last = response.parameters["triton_final_response"].bool_param
    return str(found.error_message), is_last, not found.error_message and not response.outputs


def sequence_of_call(body: Body, limit: int = MAX_UNPACKED) -> str:
    """Return the correlation id of a call's first request, or "" if it has none."""
    try:
        requests = read_requests(body, limit)
    except NotUnderstood:
        return ""
    found = parameters_of(requests[0]).get("sequence_id") if requests else None
    return str(found) if found else ""


def has_id(body: Body) -> bool:
    """Return whether a request of a call has an id. Raise NotUnderstood if `body` is invalid."""
    return any(request.id for request in read_requests(body))


def model_of_call(body: Body) -> str:
    """Return the model of a call's first request, or "" if the body is invalid."""
    try:
        requests = read_requests(body)
    except NotUnderstood:
        return ""
    return str(requests[0].model_name) if requests else ""


def split_messages(body: Body, limit: int = MAX_UNPACKED) -> list[bytes]:
    """Return the serialized messages of a body, decompressed.

    Args:
        body: Messages with their prefixes.
        limit: Largest decompressed size of all messages together, in bytes.

    Raises:
        NotUnderstood: A message is incomplete, cannot be decompressed or is too large.
    """
    splitter = MessageSplitter()
    found = []
    for message in splitter.feed(body):
        found.append(_decompressed(message, limit) if message[0] else message[PREFIX:])
        limit -= len(found[-1]) if message[0] else 0
    if splitter.rest:
        raise NotUnderstood("an incomplete gRPC message")
    return found


def _decompressed(message: bytes, limit: int) -> bytes:
    """Return a message without its prefix. Raise NotUnderstood if it cannot be decompressed."""
    try:
        return decompress(message[PREFIX:], _GZIP_OR_ZLIB, limit)
    except zlib.error as error:
        raise NotUnderstood(f"a gRPC message is neither gzip nor deflate: {error}") from error


def _parsed(kind: Any, data: bytes) -> Any:  # noqa: ANN401  protobuf's classes are made at run time
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise NotUnderstood(f"the message is not a {kind.DESCRIPTOR.name}: {error}") from error


# -- conversion of inference messages to the types of `answers`

CONTENTS: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Fields of InferTensorContents by datatype."""


def answer_of_call(body: Body) -> list[Answer]:
    """Parse the body of a ModelInfer response: one response, or none.

    Raises:
        NotUnderstood: The body is not valid.
    """
    return [_answer(response) for response in read_messages(messages.ModelInferResponse, body)]


def answer_of_message(body: Body) -> Answer:
    """Parse one response message of a ModelStreamInfer.

    Raises:
        NotUnderstood: The body is not one valid message.
    """
    found = read_messages(messages.ModelStreamInferResponse, body)
    if len(found) != 1:
        raise NotUnderstood(f"found {len(found)} messages, expected one")
    message = found[0]
    answer = _answer(message.infer_response)
    if message.error_message:
        return Answer(answer.tensors, {**answer.fields, "error": message.error_message})
    return answer


def inputs_of_call(body: Body) -> Mapping[str, Tensor]:
    """Parse the inputs of a call's first request.

    Returns:
        Tensors by input name.

    Raises:
        NotUnderstood: The body is not valid.
    """
    requests = read_requests(body)
    return inputs_of_message(requests[0]) if requests else {}


def inputs_of_message(request: Any) -> Mapping[str, Tensor]:  # noqa: ANN401  made at run time
    """Return the inputs of a ModelInferRequest. Raise NotUnderstood if they are invalid."""
    return _tensors(request.inputs, request.raw_input_contents)


def parameters_of(message: Any) -> dict[str, Any]:  # noqa: ANN401  made at run time
    """Return the parameters of a message or a tensor."""
    return {
        name: getattr(parameter, parameter.WhichOneof("parameter_choice") or "string_param")
        for name, parameter in message.parameters.items()
    }


def _answer(response: Any) -> Answer:  # noqa: ANN401  protobuf's classes are made at run time
    fields: dict[str, Any] = {
        key: getattr(response, key)
        for key in ("model_name", "model_version", "id")
        if getattr(response, key)
    }
    fields["parameters"] = parameters_of(response)
    return Answer(_tensors(response.outputs, response.raw_output_contents), fields)


def _tensors(described: Any, raw: Any) -> dict[str, Tensor]:  # noqa: ANN401
    found, contents = {}, iter(raw)
    for one in described:
        shape = tuple(one.shape)
        if "shared_memory_region" in one.parameters:
            # The values are in shared memory, not in the message.
            found[one.name] = Tensor(one.datatype, shape, np.empty(0))
        elif raw:
            data = next(contents, None)
            if data is None:
                raise NotUnderstood(f"tensor {one.name!r}: expected raw contents")
            found[one.name] = tensor_of_wire(one.name, one.datatype, shape, memoryview(data))
        else:
            values = list(getattr(one.contents, CONTENTS.get(one.datatype, "bytes_contents")))
            found[one.name] = tensor_of_values(one.name, one.datatype, shape, values)
    return found
