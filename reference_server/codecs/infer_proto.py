"""Decodes ModelInferRequest.

Faults are reported in Triton's order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tritonclient.grpc.service_pb2 import InferParameter, InferTensorContents, ModelInferRequest

from reference_server.codecs import proto_wire
from reference_server.codecs.inference import (
    LONGEST_KEY,
    OutputForm,
    RequestCache,
    RequestTemplate,
    ResponseForm,
    Span,
)
from reference_server.codecs.proto_fields import Data
from reference_server.codecs.proto_wire import ReceivedRequest, read_span
from reference_server.core import byte_strings, gil, request
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.ports import Regions
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.request import InferRequest, Parameter, ResponseSink, SequenceFlag
from reference_server.core.tensor import DATATYPES, DataType, Tensor, check_rank

#: Requests a last, empty response if the model ends without one, as only decoupled models do.
_EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"

_UINT64 = 2**64
_NOTHING = memoryview(b"")
_PLAIN = OutputForm()
#: The fields of InferTensorContents, in the order in which Triton checks them. Each has the
#: datatype of its name, and the datatypes whose elements it can contain.
_TYPED = {
    "bool_contents": ("BOOL", (DataType.BOOL,)),
    "int_contents": ("INT32", (DataType.INT8, DataType.INT16, DataType.INT32)),
    "int64_contents": ("INT64", (DataType.INT64,)),
    "uint_contents": ("UINT32", (DataType.UINT8, DataType.UINT16, DataType.UINT32)),
    "uint64_contents": ("UINT64", (DataType.UINT64,)),
    "fp32_contents": ("FP32", (DataType.FP32,)),
    "fp64_contents": ("FP64", (DataType.FP64,)),
    "bytes_contents": ("BYTES", (DataType.BYTES,)),
}


class _Layout(NamedTuple):
    """The template of a message, and its inputs and outputs in shared memory.

    `spans` has one entry for each input, None for an input with data in the message. `outputs` are
    the outputs in shared memory. The template has the forms of the other outputs only, because a
    buffer is valid for one request.
    """

    template: RequestTemplate
    spans: tuple[Span | None, ...]
    outputs: tuple[tuple[str, Span], ...]
    raw_count: int

    @classmethod
    def of(cls, message: ModelInferRequest, request: InferRequest, form: ResponseForm) -> _Layout:
        spans = tuple(map(read_span, message.inputs))
        placed = [(output.name, read_span(output)) for output in message.outputs]
        plain = {name: own for name, own in form.outputs.items() if own.buffer is None}
        return cls(
            RequestTemplate.of(request, ResponseForm(outputs=plain)),
            spans,
            tuple((name, span) for name, span in placed if span is not None),
            spans.count(None),
        )

    def request(
        self, received: ReceivedRequest, sink: ResponseSink, regions: Regions
    ) -> tuple[InferRequest, ResponseForm]:
        """Make a request of this layout with its own data. Raises ServerError."""
        template, form, raw = self.template, self.template.form, iter(received.raw)
        inputs = {
            name: Tensor(
                name, datatype, shape, raw=next(raw) if span is None else regions.read(*span)
            )
            for (name, datatype, shape), span in zip(template.inputs, self.spans, strict=True)
        }
        if self.outputs:
            buffers = {
                name: OutputForm(buffer=regions.output_buffer(*span)) for name, span in self.outputs
            }
            form = ResponseForm(outputs={**form.outputs, **buffers})
        return template.request(template.model_name, received.request_id, inputs, sink), form


@dataclass(slots=True)
class _CachedMessage:
    """A message without its data, and its layout once it has been decoded."""

    message: ModelInferRequest
    layout: _Layout | None = None


class InferMessageDecoder:
    """Decodes messages, with a cache. Used by one thread.

    Any thread may `read` and `decode` a large message (`proto_wire.is_large`), and may `decode` a
    message that has tensors in shared memory.
    """

    def __init__(self, profile: TritonProfile = V2_51) -> None:
        self._profile = profile
        self._cache: RequestCache[_CachedMessage] = RequestCache()

    def read(self, data: Data) -> ReceivedRequest:
        """Parse a message. Raises ServerError INTERNAL if it is malformed."""
        found, request_id, raw = proto_wire.split(data)
        if request_id is None:
            message = proto_wire.parse(found)
            return ReceivedRequest(message, message.id, raw)
        # The cache is not used for large messages, which codec threads read.
        if len(found) > LONGEST_KEY or proto_wire.is_large(data):
            return ReceivedRequest(proto_wire.parse(found), request_id, raw)
        head = bytes(found)
        known = self._cache.find(head)
        if known is None:
            known = _CachedMessage(proto_wire.parse(head))
            self._cache.keep(head, known)
        return ReceivedRequest(known.message, request_id, raw, head)

    def decode(
        self, signature: Signature, received: ReceivedRequest, sink: ResponseSink, regions: Regions
    ) -> tuple[InferRequest, ResponseForm]:
        """Return the request that `read` has parsed, and the form of its response.

        Raises ServerError.
        """
        known = None if received.head is None else self._cache.find(received.head)
        layout = None if known is None else known.layout
        if (
            layout is not None
            and len(received.raw) >= layout.raw_count
            and layout.template.model_name == signature.name
        ):
            return layout.request(received, sink, regions)
        request, form = decode(signature, received, sink, regions, self._profile)
        if known is not None:
            layout = _Layout.of(received.message, request, form)
            is_repeated = len(request.requested_outputs) < len(received.message.outputs)
            # Not with typed contents, which differ from request to request.
            if len(received.raw) >= layout.raw_count and not is_repeated:
                known.layout = layout
        return request, form


def decode(
    signature: Signature,
    received: ReceivedRequest,
    sink: ResponseSink,
    regions: Regions,
    profile: TritonProfile = V2_51,
) -> tuple[InferRequest, ResponseForm]:
    """Return the request, and the form of its response. Raises ServerError.

    Tensors with raw contents are views of the received bytes; inputs in shared memory are read from
    `regions`.
    """
    message = received.message
    request = InferRequest(signature.name, {}, sink, id=received.request_id)
    _read_parameters(message, request)
    for tensor in gil.with_pauses(message.inputs):
        if tensor.name in request.inputs:
            raise invalid_arg(f"{request.label} input '{tensor.name}' already exists in request")
        check_rank(tensor.name, len(tensor.shape))
        request.inputs[tensor.name] = Tensor(
            tensor.name, DATATYPES.get(tensor.datatype), tuple(tensor.shape), raw=_NOTHING
        )
    names = [output.name for output in gil.with_pauses(message.outputs)]
    request.requested_outputs = tuple(dict.fromkeys(names))
    if profile.newer_request_checks and len(request.requested_outputs) < len(names):
        again = Counter(names).most_common(1)[0][0]
        raise invalid_arg(f"{request.label} output '{again}' already exists in request")
    _read_inputs(signature.name, received, request, regions)
    forms: dict[str, OutputForm] = {}
    for output in gil.with_pauses(message.outputs):
        form = _read_form(output, regions, profile.max_classified_elements)
        if form != _PLAIN:  # the first of several forms of an output wins
            forms.setdefault(output.name, form)
    return request, ResponseForm(outputs=forms)


def wants_empty_final(message: ModelInferRequest) -> bool:
    """Return whether the client of a stream requests an empty last response."""
    parameters = message.parameters
    return _EMPTY_FINAL_RESPONSE in parameters and parameters[_EMPTY_FINAL_RESPONSE].bool_param


def _read_parameters(message: ModelInferRequest, request: InferRequest) -> None:
    passed: dict[str, Parameter] = {}
    # A map has no order; sorted names give the same order each time.
    for key in gil.sorted_names(message.parameters):
        value = message.parameters[key]
        kind = value.WhichOneof("parameter_choice")
        if key == "sequence_id":
            request.correlation_id = _read_correlation_id(value)
        elif key in ("sequence_start", "sequence_end"):
            if kind != "bool_param":
                raise _wrong_kind(key, "bool_param.")
            if value.bool_param:
                request.flags |= SequenceFlag.START if key == "sequence_start" else SequenceFlag.END
        elif key == "priority":
            request.priority = _read_priority(value)
        elif key == "timeout":
            if kind != "int64_param":
                raise _wrong_kind(key, "int64_param.")
            request.timeout_us = value.int64_param % _UINT64
        elif key.startswith("triton_"):
            if key != _EMPTY_FINAL_RESPONSE:
                raise invalid_arg(
                    "parameter keys starting with 'triton_' are reserved for Triton usage. Only "
                    "the following keys starting with 'triton_' are allowed: "
                    f"{_EMPTY_FINAL_RESPONSE}"
                )
            if kind != "bool_param":
                raise _wrong_kind(key, "bool_param.")
        elif kind in (None, "uint64_param"):
            raise _wrong_kind(key, "int64_param, bool_param, or string_param.")
        else:
            passed[key] = getattr(value, kind)
    request.parameters = passed


def _wrong_kind(key: str, expected: str) -> ServerError:
    return invalid_arg(f"invalid value type for '{key}' parameter, expected {expected}")


def _read_correlation_id(value: InferParameter) -> int | str:
    kind = value.WhichOneof("parameter_choice")
    if kind == "int64_param":
        number: int = value.int64_param
        return number % _UINT64
    if kind != "string_param":
        raise _wrong_kind("sequence_id", "int64_param or string_param.")
    return request.string_id(value.string_param)


def _read_priority(value: InferParameter) -> int:
    kind = value.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "uint64_param"):
        raise _wrong_kind("priority", "int64_param or uint64_param.")
    priority: int = getattr(value, kind)
    if priority < 0:
        raise invalid_arg("invalid value for 'priority', expected value >= 0.")
    return priority


def _read_form(
    output: ModelInferRequest.InferRequestedOutputTensor,
    regions: Regions,
    most_classified: int | None,
) -> OutputForm:
    span = read_span(output)
    classes = 0
    if "classification" in output.parameters:
        value = output.parameters["classification"]
        if value.WhichOneof("parameter_choice") != "int64_param":
            raise _wrong_kind("classification", "int64_param")
        classes = value.int64_param
        if classes <= 0:
            raise invalid_arg("invalid value for 'classification' parameter, expected >= 0")
    if span is None:
        return OutputForm(classes=classes, most_classified=most_classified) if classes else _PLAIN
    if classes:
        raise invalid_arg("output can't set both 'shared_memory_region' and 'classification'")
    return OutputForm(buffer=regions.output_buffer(*span))


def _read_inputs(
    model: str, received: ReceivedRequest, request: InferRequest, regions: Regions
) -> None:
    raw = iter(received.raw)
    for tensor in gil.with_pauses(received.message.inputs):
        placed = request.inputs[tensor.name]
        span = read_span(tensor)
        if span is not None:
            if tensor.HasField("contents"):
                raise invalid_arg(
                    "unexpected 'content' provided when using shared memory for input tensor "
                    f"'{tensor.name}' for model '{model}'"
                )
            request.inputs[tensor.name] = _with_data(placed, regions.read(*span))
            continue
        if not tensor.HasField("contents"):
            content = next(raw, None)
            if content is None:
                raise invalid_arg(
                    f"unable to find data for input tensor '{tensor.name}' for model '{model}' "
                    "in request."
                )
            request.inputs[tensor.name] = _with_data(placed, content)
            continue
        if received.raw:
            raise invalid_arg(
                "contents field must not be specified when using raw_input_contents for "
                f"'{tensor.name}' for model '{model}'"
            )
        request.inputs[tensor.name] = _typed(model, placed, tensor.contents)


def _with_data(tensor: Tensor, data: memoryview) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, tensor.shape, raw=data)


def _typed(model: str, tensor: Tensor, contents: InferTensorContents) -> Tensor:
    """Return `tensor` with the elements of the only non-empty field of `contents`."""
    where = f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model}'"
    filled = named = ""
    for field, (datatype_name, allowed) in _TYPED.items():
        if not getattr(contents, field):
            continue
        if filled:
            raise invalid_arg(f"{where}, binary data was already supplied.")
        if tensor.datatype not in allowed:
            expected = tensor.datatype.value if tensor.datatype else "<invalid>"
            raise invalid_arg(f"{where} of type '{datatype_name}', expected datatype '{expected}'")
        filled, named = field, datatype_name
    if not filled:
        return tensor
    values = getattr(contents, filled)
    datatype = tensor.datatype
    assert datatype is not None
    if datatype.is_bytes:
        # Flat: the elements are counted before they get their shape.
        array = byte_strings.as_array(values, (len(values),))
        return Tensor(tensor.name, datatype, tensor.shape, array=array)
    numbers: npt.NDArray[Any] = np.empty(len(values), DATATYPES[named].numpy)
    start = 0
    for some in gil.slices(values):
        numbers[start : start + len(some)] = some
        start += len(some)
    _check_range(numbers, datatype, where)
    raw = numbers.astype(datatype.numpy, copy=False).data.cast("B")
    return _with_data(tensor, raw)


def _check_range(numbers: npt.NDArray[Any], datatype: DataType, where: str) -> None:
    """Refuse integers out of range, whose upper bits the real server drops silently."""
    if numbers.dtype.kind not in "iu" or numbers.dtype == datatype.numpy:
        return
    limits = np.iinfo(np.dtype(datatype.numpy))
    outside = numbers[(numbers < limits.min) | (numbers > limits.max)]
    if outside.size:
        raise invalid_arg(f"{where}, value {outside[0]} is out of range for '{datatype.value}'")
