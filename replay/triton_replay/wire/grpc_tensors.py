"""Convert gRPC inference messages to the types of `answers`: tensors by name, other fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from triton_replay.wire.answers import Answer, Tensor, tensor_of_values, tensor_of_wire
from triton_replay.wire.bodies import Body, NotUnderstood
from triton_replay.wire.grpc_messages import (
    read_requests,
    read_responses,
    read_stream_responses,
)

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
    return [_answer(response) for response in read_responses(body)]


def answer_of_message(body: Body) -> Answer:
    """Parse one response message of a ModelStreamInfer.

    Raises:
        NotUnderstood: The body is not one valid message.
    """
    messages = read_stream_responses(body)
    if len(messages) != 1:
        raise NotUnderstood(f"found {len(messages)} messages, expected one")
    message = messages[0]
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
    return _tensors(requests[0].inputs, requests[0].raw_input_contents) if requests else {}


def _answer(response: Any) -> Answer:  # noqa: ANN401  protobuf's classes are made at run time
    fields: dict[str, Any] = {
        key: getattr(response, key)
        for key in ("model_name", "model_version", "id")
        if getattr(response, key)
    }
    for name, parameter in response.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        fields[f"parameter {name}"] = getattr(parameter, kind) if kind else None
    return Answer(_tensors(response.outputs, response.raw_output_contents), fields)


def _tensors(described: Any, raw: Any) -> dict[str, Tensor]:  # noqa: ANN401
    found, contents = {}, iter(raw)
    for one in described:
        shape = tuple(one.shape)
        if "shared_memory_region" in one.parameters:
            # Its values are not in the message.
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
