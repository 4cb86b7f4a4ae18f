"""Redaction of tensors in gRPC messages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from triton_replay.capture.records import Request, Response, StreamMessage, Traffic
from triton_replay.wire.bodies import NotUnderstood
from triton_replay.wire.grpc_messages import (
    framed,
    is_inference,
    read_requests,
    read_responses,
    read_stream_responses,
)

_CONTENTS: Final = (
    "bool_contents",
    "int_contents",
    "int64_contents",
    "uint_contents",
    "uint64_contents",
    "fp32_contents",
    "fp64_contents",
)


def redact_call(
    message: Traffic, names: Collection[str], blank: Callable[[str, memoryview], bytes]
) -> bytes | None:
    """Redact the tensors in a gRPC body.

    Args:
        message: The record with the body.
        names: Names of the tensors.
        blank: Takes a datatype and bytes; returns redacted bytes of the same length.

    Returns:
        The new body, or None if it has none of the tensors.

    Raises:
        NotUnderstood: The body is not valid.
    """
    found: list[Any]
    if isinstance(message, Request):
        if not is_inference(message.target):
            return None
        found = read_requests(message.body)
        changed = [_inputs(one, names, blank) for one in found]
    elif isinstance(message, StreamMessage) and message.sent:
        found = read_requests(message.body)
        changed = [_inputs(one, names, blank) for one in found]
    elif isinstance(message, StreamMessage):
        found = read_stream_responses(message.body)
        changed = [_outputs(one.infer_response, names, blank) for one in found]
    else:
        assert isinstance(message, Response)
        found = read_responses(message.body)
        changed = [_outputs(one, names, blank) for one in found]
    return framed(found) if any(changed) else None


def _inputs(
    request: Any,  # noqa: ANN401  protobuf's classes are made at run time
    names: Collection[str],
    blank: Callable[[str, memoryview], bytes],
) -> bool:
    return _tensors(request.inputs, request.raw_input_contents, names, blank)


def _outputs(
    response: Any,  # noqa: ANN401
    names: Collection[str],
    blank: Callable[[str, memoryview], bytes],
) -> bool:
    return _tensors(response.outputs, response.raw_output_contents, names, blank)


def _tensors(
    tensors: Any,  # noqa: ANN401
    raw: Any,  # noqa: ANN401
    names: Collection[str],
    blank: Callable[[str, memoryview], bytes],
) -> bool:
    """Redact the named tensors; return whether there are any."""
    # The raw contents are those of the tensors that are not in shared memory, in order.
    in_order = [one for one in tensors if "shared_memory_region" not in one.parameters]
    if raw and len(raw) != len(in_order):
        raise NotUnderstood(f"{len(raw)} raw contents of {len(in_order)} tensors")
    named = [one for one in tensors if one.name in names]
    for tensor in named:
        for key in _CONTENTS:
            values = getattr(tensor.contents, key)
            values[:] = [type(value)(0) for value in values]
        texts = tensor.contents.bytes_contents
        texts[:] = [b"x" * len(text) for text in texts]
    for index in range(len(raw)):
        if in_order[index].name in names:
            raw[index] = blank(in_order[index].datatype, memoryview(raw[index]))
    return bool(named)
