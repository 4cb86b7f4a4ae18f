"""The parts of inference that HTTP and gRPC share: forms of outputs, and a cache of requests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from reference_server.core import gil
from reference_server.core.errors import Code, ServerError, StringClasses, internal, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.ports import OutputBuffer
from reference_server.core.request import (
    InferRequest,
    InferResponse,
    Parameter,
    ResponseSink,
    SequenceFlag,
)
from reference_server.core.tensor import DataType, Shape, Tensor

#: A part of a shared memory region: its name, an offset and a size in bytes.
Span: TypeAlias = tuple[str, int, int]
#: The lines of the label files, by output.
Labels: TypeAlias = Mapping[str, tuple[str, ...]]
#: Datatypes without an order or, as in Triton, without a text.
_UNCLASSIFIED = frozenset({DataType.BYTES, DataType.FP16, DataType.BF16, DataType.BOOL})


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The requested form of one output.

    Attributes:
        binary: Whether the output is sent as binary data.
        classes: If positive, the number of best classes that replace the values.
        buffer: The part of shared memory that the output is written to; the response then has no
            data.
        most_classified: The most elements of a batch item that can be classified; None is no limit.
    """

    binary: bool = False
    classes: int = 0
    buffer: OutputBuffer | None = None
    most_classified: int | None = None


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """The forms of the outputs of a response, by name; `default` applies to other outputs."""

    default: OutputForm = OutputForm()
    outputs: Mapping[str, OutputForm] = field(default_factory=dict)
    #: Whether no output is requested as classes or in shared memory.
    is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        forms = (self.default, *self.outputs.values())
        plain = all(not form.classes and form.buffer is None for form in forms)
        object.__setattr__(self, "is_plain", plain)

    def of(self, name: str) -> OutputForm:
        """Return the form of output `name`."""
        return self.outputs.get(name, self.default)

    def is_large_response(self, outputs: Sequence[Tensor]) -> bool:
        """Return True if a codec thread must encode the outputs.

        That is so if encoding classifies many values, joins many strings, or writes many bytes to
        shared memory.
        """
        if self.is_plain:
            return _has_many_strings(outputs)
        shared_bytes = 0
        for tensor in outputs:
            form = self.of(tensor.name)
            if form.buffer is not None:
                shared_bytes += tensor.byte_size
            if form.classes and gil.is_long(elements=math.prod(tensor.shape)):
                return True
        return gil.is_long(shared_bytes=shared_bytes) or _has_many_strings(outputs)


def _has_many_strings(outputs: Sequence[Tensor]) -> bool:
    """Return whether an output has many strings that must be joined."""
    for tensor in outputs:
        is_long = gil.is_long(elements=math.prod(tensor.shape))
        if is_long and tensor.datatype is DataType.BYTES and not tensor.is_raw:
            return True
    return False


def outputs_with_forms(
    response: InferResponse, form: ResponseForm, signature: Signature, labels: Labels
) -> Iterator[tuple[Tensor, OutputForm]]:
    """Yield the outputs and their forms; classes replace an output that is requested as classes.

    Raises ServerError if an output cannot have the requested form.
    """
    for tensor in response.outputs:
        own = form.of(tensor.name)
        if own.classes:
            known = labels.get(tensor.name, ())
            tensor = classify(
                tensor,
                own.classes,
                known,
                batches=signature.batches,
                most_elements=own.most_classified,
            )
        yield tensor, own


def write(tensor: Tensor, buffer: OutputBuffer) -> None:
    """Write the bytes of `tensor` to shared memory. Raises ServerError if they do not fit."""
    raw = tensor.raw()
    if len(raw) > buffer.byte_size:
        raise internal(
            f"shared memory size specified with the request for output '{tensor.name}' "
            f"({buffer.byte_size} bytes) should be at least {len(raw)} bytes to hold the results"
        )
    buffer.write(raw)


def classify(
    tensor: Tensor,
    count: int,
    labels: Sequence[str],
    *,
    batches: bool,
    most_elements: int | None = None,
) -> Tensor:
    """Return the greatest values of each batch item as `<value>:<index>[:<label>]`, descending.

    Args:
        tensor: The output. The dimensions of a batch item are flattened.
        count: The number of values.
        labels: The labels by index. A missing or empty label is left out.
        batches: Whether the first dimension is the batch dimension.
        most_elements: The most elements of a batch item; None is no limit.

    Returns:
        A BYTES tensor of shape [batch, k], or [k] without a batch dimension; k is at most the
        number of values per item. Equal values keep the order of their index.

    Raises:
        ServerError: INVALID_ARG for a datatype without order, or for too many elements.
    """
    if tensor.datatype is None or tensor.datatype in _UNCLASSIFIED:
        kind = tensor.datatype.value if tensor.datatype else "<invalid>"
        error = StringClasses if tensor.datatype is DataType.BYTES else ServerError
        text = f"class result not available for output due to unsupported type '{kind}'"
        raise error(Code.INVALID_ARG, text)
    values = tensor.array()
    batches = batches and values.ndim > 0  # the shape of a model's output is not checked
    rows = values.shape[0] if batches else 1
    width = values.size // rows if rows else 0
    if most_elements is not None and width > most_elements:
        raise invalid_arg("classification output tensor too large")
    items = values.reshape(rows, width)
    # Sorting the reversed row and reversing again keeps the lower index first among equals.
    order = width - 1 - np.argsort(items[:, ::-1], axis=1, kind="stable")[:, ::-1]
    shown = "{:.6f}" if items.dtype.kind == "f" else "{}"
    texts = [
        _label(f"{shown.format(row[index])}:{index}", labels, index).encode()
        for row, best in zip(items, order[:, :count].tolist(), strict=True)
        for index in best
    ]
    k = min(count, width)
    array = np.empty(len(texts), dtype=np.object_)
    array[:] = texts
    shape = (rows, k) if batches else (k,)
    return Tensor(tensor.name, DataType.BYTES, shape, array=array.reshape(shape))


def _label(text: str, labels: Sequence[str], index: int) -> str:
    return f"{text}:{labels[index]}" if index < len(labels) and labels[index] else text


#: Longer keys contain data, or repeat too seldom to be worth their memory.
LONGEST_KEY = 4096
_MOST_KEYS = 1024

V = TypeVar("V")


class RequestCache(Generic[V]):
    """A cache of requests, by the bytes that repeat in later requests. Used by one thread.

    A client in a loop sends the same JSON or message with new tensors and a new id. The constant
    bytes are parsed once; for a later request with the same bytes, only tensors over its data are
    made.
    """

    def __init__(self) -> None:
        self._values: dict[bytes, V] = {}
        self.find = self._values.get

    def keep(self, key: bytes, value: V) -> None:
        """Store `value`; if the cache is full, it replaces the oldest value."""
        if len(self._values) >= _MOST_KEYS and key not in self._values:
            del self._values[next(iter(self._values))]
        self._values[key] = value


@dataclass(frozen=True, slots=True, eq=False)
class RequestTemplate:
    """A request without its id and data, and the form of its response.

    Requests made from a template have it as their `pattern`. Templates compare by identity, hence
    `eq=False`.
    """

    model_name: str
    inputs: tuple[tuple[str, DataType | None, Shape], ...]
    requested_outputs: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    correlation_id: int | str
    flags: SequenceFlag
    priority: int
    timeout_us: int
    form: ResponseForm

    @classmethod
    def of(cls, request: InferRequest, form: ResponseForm) -> RequestTemplate:
        """Make the template of `request`."""
        return cls(
            request.model_name,
            tuple((each.name, each.datatype, each.shape) for each in request.inputs.values()),
            request.requested_outputs,
            request.parameters,
            request.correlation_id,
            request.flags,
            request.priority,
            request.timeout_us,
            form,
        )

    def request(
        self, model: str, request_id: str, inputs: dict[str, Tensor], sink: ResponseSink
    ) -> InferRequest:
        """Make a request to `model` with this id and these inputs."""
        return InferRequest(
            model,
            inputs,
            sink,
            id=request_id,
            requested_outputs=self.requested_outputs,
            parameters=self.parameters,
            correlation_id=self.correlation_id,
            flags=self.flags,
            priority=self.priority,
            timeout_us=self.timeout_us,
            pattern=self,
        )
