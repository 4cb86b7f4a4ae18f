"""A core response to ModelInferResponse, and what a stream makes of it or of an error."""

from __future__ import annotations

from collections.abc import Sequence

from tritonclient.grpc.service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)

from reference_server.codecs.infer_options import ResponseForm
from reference_server.codecs.output_forms import Labels, formed, write
from reference_server.codecs.proto_wire import Parts, response_parts
from reference_server.core.errors import ServerError
from reference_server.core.metadata import Signature
from reference_server.core.request import Parameter
from reference_server.core.response import InferResponse

#: Says in a streamed response whether it is the last one to its request.
_FINAL_RESPONSE = "triton_final_response"
_UINT64 = 2**64
_NOTHING = memoryview(b"")


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
    message = ModelInferResponse(
        model_name=response.model_name, model_version=str(response.model_version), id=response.id
    )
    _write_parameters(message, response.parameters)
    if final is not None:
        message.parameters[_FINAL_RESPONSE].bool_param = final
    raw: list[memoryview] = []
    for tensor, output_form in formed(response, form, signature, labels):
        assert tensor.datatype is not None
        message.outputs.add(name=tensor.name, datatype=tensor.datatype.value, shape=tensor.shape)
        if output_form.place is not None:
            write(tensor, output_form.place)
            raw.append(_NOTHING)
        else:
            raw.append(tensor.raw())
    return response_parts(message.SerializeToString(), raw)


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


def encode_failure(message: ModelInferRequest, error: ServerError, *, final: bool) -> bytes:
    """What a stream says of the request in `message` if its model answered with `error`."""
    response = ModelInferResponse(
        model_name=message.model_name, model_version=message.model_version, id=message.id
    )
    response.parameters[_FINAL_RESPONSE].bool_param = final
    return _serialized(
        ModelStreamInferResponse(error_message=error.message, infer_response=response)
    )


def _serialized(message: ModelStreamInferResponse) -> bytes:
    data: bytes = message.SerializeToString()
    return data
