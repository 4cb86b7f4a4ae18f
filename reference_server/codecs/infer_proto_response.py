"""Encodes a response as ModelInferResponse, and responses and errors of streams."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tritonclient.grpc.service_pb2 import ModelInferResponse, ModelStreamInferResponse

from reference_server.codecs.inference import Labels, ResponseForm, outputs_with_forms, write
from reference_server.codecs.proto_wire import Parts, ReceivedRequest, response_parts
from reference_server.core.errors import ServerError
from reference_server.core.metadata import Signature
from reference_server.core.request import InferResponse, Parameter
from reference_server.core.tensor import DataType, Shape

#: The parameter of a streamed response that marks the last response to its request.
_FINAL_RESPONSE = "triton_final_response"
_UINT64 = 2**64
_NOTHING = memoryview(b"")
#: Longer ids repeat too seldom to be worth the memory of the cache.
_SHORT = 64
#: The name, the datatype and the shape of an output.
_Output = tuple[str, DataType | None, Shape]


def encode(
    response: InferResponse,
    form: ResponseForm,
    signature: Signature,
    labels: Labels,
    *,
    final: bool | None = None,
) -> Parts:
    """Encode a response without error as the parts of a ModelInferResponse.

    `final` marks the last response of a stream's request; None for a unary call. Raises ServerError
    if an output cannot have the requested form.
    """
    outputs: list[_Output] = []
    raw: list[memoryview] = []
    if form.is_plain:
        for tensor in response.outputs:
            outputs.append((tensor.name, tensor.datatype, tensor.shape))
            raw.append(tensor.raw())
    else:
        for tensor, output_form in outputs_with_forms(response, form, signature, labels):
            outputs.append((tensor.name, tensor.datatype, tensor.shape))
            if output_form.buffer is not None:
                write(tensor, output_form.buffer)
                raw.append(_NOTHING)
            else:
                raw.append(tensor.raw())
    # A response with parameters is not cached: as a key of a dictionary, 1 equals True.
    is_plain = not response.parameters and len(response.id) <= _SHORT
    head = _cached_head if is_plain else _head
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
    """Return the message without its data."""
    message = ModelInferResponse(model_name=model, model_version=str(version), id=request_id)
    _write_parameters(message, parameters)
    if final is not None:
        message.parameters[_FINAL_RESPONSE].bool_param = final
    for name, datatype, shape in outputs:
        assert datatype is not None
        message.outputs.add(name=name, datatype=datatype.value, shape=shape)
    head: bytes = message.SerializeToString()
    return head


#: Most responses of a model differ only in their data.
_cached_head = lru_cache(maxsize=1024)(_head)


def _write_parameters(
    message: ModelInferResponse, parameters: Sequence[tuple[str, Parameter]]
) -> None:
    for key, value in parameters:
        written = message.parameters[key]
        if isinstance(value, bool):
            written.bool_param = value
        elif isinstance(value, int):
            # A correlation id is unsigned, but this field is signed.
            written.int64_param = (value + _UINT64 // 2) % _UINT64 - _UINT64 // 2
        elif isinstance(value, str):
            written.string_param = value
        else:
            written.double_param = value


def encode_refusal(request_id: str, error: ServerError) -> bytes:
    """Encode the message of a stream for a request that was refused before scheduling."""
    return _serialized(
        ModelStreamInferResponse(
            error_message=error.message, infer_response=ModelInferResponse(id=request_id)
        )
    )


def encode_failure(received: ReceivedRequest, error: ServerError, *, final: bool) -> bytes:
    """Encode the message of a stream for a request that its model answered with `error`."""
    response = _without_outputs(received, final=final)
    return _serialized(
        ModelStreamInferResponse(error_message=error.message, infer_response=response)
    )


def encode_empty(received: ReceivedRequest) -> bytes:
    """Encode the message of a stream for a request that ended without another response."""
    return _serialized(
        ModelStreamInferResponse(infer_response=_without_outputs(received, final=True))
    )


def _without_outputs(received: ReceivedRequest, *, final: bool) -> ModelInferResponse:
    message = received.message
    response = ModelInferResponse(
        model_name=message.model_name, model_version=message.model_version, id=received.request_id
    )
    response.parameters[_FINAL_RESPONSE].bool_param = final
    return response


def _serialized(message: ModelStreamInferResponse) -> bytes:
    data: bytes = message.SerializeToString()
    return data
