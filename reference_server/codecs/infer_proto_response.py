"""A core response to ModelInferResponse, and what a stream makes of it or of an error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tritonclient.grpc.service_pb2 import (
    ModelInferResponse,
    ModelStreamInferResponse,
)

from reference_server.codecs.proto_wire import Parts, ReceivedRequest, response_parts
from reference_server.codecs.response_forms import Labels, ResponseForm, formed, write
from reference_server.core.dtypes import DataType
from reference_server.core.errors import ServerError
from reference_server.core.metadata import Signature
from reference_server.core.request import InferResponse, Parameter
from reference_server.core.tensor import Shape

#: Says in a streamed response whether it is the last one to its request.
_FINAL_RESPONSE = "triton_final_response"
_UINT64 = 2**64
_NOTHING = memoryview(b"")
#: Longer ids are too seldom the same to be worth their memory.
_SHORT = 64
#: Of an output the name, the type and the shape.
_Output = tuple[str, DataType | None, Shape]


def encode(
    response: InferResponse,
    form: ResponseForm,
    signature: Signature,
    labels: Labels,
    *,
    final: bool | None = None,
) -> Parts:
    """The parts of a ModelInferResponse, for a response without error.

    `final` tells a stream's client whether another response to the request follows. Raises
    ServerError if an output has no such form.
    """
    outputs: list[_Output] = []
    raw: list[memoryview] = []
    if form.is_plain:
        for tensor in response.outputs:
            outputs.append((tensor.name, tensor.datatype, tensor.shape))
            raw.append(tensor.raw())
    else:
        for tensor, output_form in formed(response, form, signature, labels):
            outputs.append((tensor.name, tensor.datatype, tensor.shape))
            if output_form.buffer is not None:
                write(tensor, output_form.buffer)
                raw.append(_NOTHING)
            else:
                raw.append(tensor.raw())
    # Parameters are no part of a key: to a dictionary, 1 and True are the same.
    is_plain = not response.parameters and len(response.id) <= _SHORT
    head = _known_head if is_plain else _head
    return response_parts(
        head(
            response.model_name,
            response.model_version,
            response.id,
            tuple(outputs),
            final,
            response.parameters or (),
        ),
        raw,
    )


def _head(
    model: str,
    version: int,
    request_id: str,
    outputs: tuple[_Output, ...],
    final: bool | None,
    parameters: Sequence[tuple[str, Parameter]],
) -> bytes:
    """The message without its data."""
    message = ModelInferResponse(model_name=model, model_version=str(version), id=request_id)
    _write_parameters(message, parameters)
    if final is not None:
        message.parameters[_FINAL_RESPONSE].bool_param = final
    for name, datatype, shape in outputs:
        assert datatype is not None
        message.outputs.add(name=name, datatype=datatype.value, shape=shape)
    head: bytes = message.SerializeToString()
    return head


#: A model's answers mostly differ in their data alone.
_known_head = lru_cache(maxsize=1024)(_head)


def _write_parameters(
    message: ModelInferResponse, parameters: Sequence[tuple[str, Parameter]]
) -> None:
    for key, value in parameters:
        written = message.parameters[key]
        if isinstance(value, bool):
            written.bool_param = value
        elif isinstance(value, int):
            # A correlation id is unsigned, its field here is not.
            written.int64_param = (value + _UINT64 // 2) % _UINT64 - _UINT64 // 2
        elif isinstance(value, str):
            written.string_param = value
        else:
            written.double_param = value


def encode_refusal(request_id: str, error: ServerError) -> bytes:
    """What a stream says of a request that was refused before it was scheduled."""
    return _serialized(
        ModelStreamInferResponse(
            error_message=error.message, infer_response=ModelInferResponse(id=request_id)
        )
    )


def encode_failure(received: ReceivedRequest, error: ServerError, *, final: bool) -> bytes:
    """What a stream says of the request `received` if its model answered with `error`."""
    response = _without_outputs(received, final=final)
    return _serialized(
        ModelStreamInferResponse(error_message=error.message, infer_response=response)
    )


def encode_empty(received: ReceivedRequest) -> bytes:
    """What a stream says when the request `received` has ended without another response."""
    return _serialized(
        ModelStreamInferResponse(infer_response=_without_outputs(received, final=True))
    )


def _without_outputs(received: ReceivedRequest, *, final: bool) -> ModelInferResponse:
    message = received.message
    response = ModelInferResponse(
        model_name=message.model_name,
        model_version=message.model_version,
        id=received.request_id,
    )
    response.parameters[_FINAL_RESPONSE].bool_param = final
    return response


def _serialized(message: ModelStreamInferResponse) -> bytes:
    data: bytes = message.SerializeToString()
    return data
