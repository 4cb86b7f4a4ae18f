"""The checks of every inference request before it is scheduled, in Triton's order.

A request that fails here changes no counter and reaches no model. This module also applies
`reshape` to inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from reference_server.core import byte_strings
from reference_server.core.cpp import arranged
from reference_server.core.errors import BackendError, Code, ServerError, internal, invalid_arg
from reference_server.core.metadata import Dims, Signature, TensorConfig
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.request import InferRequest, InferResponse, ResponseSink
from reference_server.core.tensor import DataType, Shape, Tensor

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)
_MAX_INT64 = 2**63 - 1


class Correlation(NamedTuple):
    """The input that receives the id of a request's sequence."""

    name: str
    datatype: DataType


class _Admission(NamedTuple):
    """The result of admitting a request, with the order and byte sizes of its inputs."""

    batch_size: int
    batch_key: Hashable
    order: tuple[str, ...]
    sizes: list[int]


#: The largest number of cached results per model.
_MAX_PATTERNS = 256


class RequestRules:
    """The checks of requests to one loaded model. Thread-safe.

    Without `reads_strings`, truncated strings are accepted: the steps of an ensemble check them.
    `correlation` is the input that receives sequence ids, if the model has one.
    """

    def __init__(
        self,
        signature: Signature,
        *,
        reads_strings: bool = True,
        profile: TritonProfile = V2_51,
        correlation: Correlation | None = None,
    ) -> None:
        self._checks_sizes = profile.newer_size_checks
        self._correlation = correlation if profile.newer_request_checks else None
        self._reads_strings = reads_strings
        self._name = signature.name
        self._signature = signature
        self._batches = signature.batches  # a property, read for every tensor
        self._inputs = {tensor.name: tensor for tensor in signature.inputs}
        self._outputs = frozenset(tensor.name for tensor in signature.outputs)
        self._required = [tensor.name for tensor in signature.inputs if not tensor.optional]
        # Requests share a batch only if these shapes are equal, as in Triton.
        self._compared = tuple(
            tensor.name for tensor in signature.inputs if tensor.has_free_dims and not tensor.ragged
        )
        self._compares_names = len(self._required) < len(self._inputs)
        self._reshapes = any(tensor.reshape is not None for tensor in signature.inputs)
        # Strings are checked one by one, and a reshape makes new tensors.
        self._is_cacheable = not self._reshapes and not any(
            tensor.datatype is DataType.BYTES for tensor in signature.inputs
        )
        self._admitted: dict[Hashable, _Admission] = {}  # by pattern or `_cache_key`

    def admit(self, request: InferRequest) -> None:
        """Check `request`, set its batch size and batch key, and reorder and reshape its inputs.

        Raises ServerError INVALID_ARG with the first error that Triton would find, or BackendError,
        which must be sent to the sink, for a truncated string.
        """
        if not self._is_cacheable:
            self._check(request)
            return
        pattern = request.pattern
        if pattern is None:
            pattern = _cache_key(request)
        sizes = [tensor.byte_size for tensor in request.inputs.values()]
        known = self._admitted.get(pattern)
        if known is None or known.sizes != sizes:
            if self._check(request):
                if len(self._admitted) >= _MAX_PATTERNS:
                    self._admitted.clear()
                order = tuple(request.inputs)
                self._admitted[pattern] = _Admission(
                    request.batch_size, request.batch_key, order, sizes
                )
            return
        request.batch_size = known.batch_size
        request.batch_key = known.batch_key
        if len(sizes) > 2:
            request.inputs = {name: request.inputs[name] for name in known.order}

    def _check(self, request: InferRequest) -> bool:
        """Check without the cache; return True if the result may be cached for similar requests."""
        unknown = [name for name in request.requested_outputs if name not in self._outputs]
        if unknown:  # Triton has them in a sorted set
            raise invalid_arg(
                f"unexpected inference output '{min(unknown)}' for model '{self._name}'"
            )
        if not len(self._required) <= len(request.inputs) <= len(self._inputs):
            raise self._wrong_count(request)
        try:
            rows = self._check_inputs(request, request.inputs)
        except ServerError:
            # Of several errors, Triton reports the first in the order of its table.
            order = arranged(tuple(request.inputs))
            self._check_inputs(request, {name: request.inputs[name] for name in order})
            raise
        request.batch_size = max(1, rows or 1)
        if rows == 0:
            # Zero rows carry the data of one row, without the batch dimension.
            for name, tensor in request.inputs.items():
                request.inputs[name] = tensor.renamed(name, tensor.shape[1:])
        if len(request.inputs) > 2:  # two names keep their order through two tables
            passed_on = arranged(arranged(tuple(request.inputs)))
            request.inputs = {name: request.inputs[name] for name in passed_on}
        first = 1 if rows else 0
        request.batch_key = self._batch_key(request.inputs, first)
        self._reshape(request, first)
        if self._correlation is not None:
            self._check_correlation(request, self._correlation)
        return rows != 0

    def _check_correlation(self, request: InferRequest, correlation: Correlation) -> None:
        given = DataType.BYTES if isinstance(request.correlation_id, str) else DataType.UINT64
        if given.is_bytes is not correlation.datatype.is_bytes:
            raise invalid_arg(
                f"{request.label} sequence batching control '{correlation.name}' data-type is "
                f"'{given.value}', but model '{self._name}' expects '{correlation.datatype.value}'"
            )

    def _wrong_count(self, request: InferRequest) -> ServerError:
        given = ",".join(f"'{name}'" for name in arranged(tuple(request.inputs)))
        missing = [f"'{name}'" for name in self._required if name not in request.inputs]
        # Triton loses the opening bracket when nothing is missing.
        missing_text = f"[{','.join(missing)}]" if missing else "]"
        total = len(self._inputs)
        expected = (
            f"expected {total} inputs"
            if len(self._required) == total
            else f"expected number of inputs between {len(self._required)} and {total}"
        )
        return invalid_arg(
            f"{request.label} {expected} but got {len(request.inputs)} inputs for model "
            f"'{self._name}'. Got input(s) [{given}], but missing required input(s) "
            f"{missing_text}. Please provide all required input(s)."
        )

    def _check_inputs(self, request: InferRequest, inputs: Mapping[str, Tensor]) -> int | None:
        """Check `inputs` in their order; return the number of rows, None without batching."""
        rows = self._rows(request, inputs) if self._batches else None
        for tensor in inputs.values():
            self._check_tensor(request, tensor, self._configured(tensor))
        return rows

    def _configured(self, tensor: Tensor) -> TensorConfig:
        config = self._inputs.get(tensor.name)
        if config is None:
            raise invalid_arg(
                f"unexpected inference input '{tensor.name}' for model '{self._name}'"
            )
        return config

    def _rows(self, request: InferRequest, inputs: Mapping[str, Tensor]) -> int:
        size: int | None = None
        for tensor in inputs.values():
            self._configured(tensor)
            if not tensor.shape:
                raise invalid_arg(
                    f"{request.label} input '{tensor.name}' has no shape but model requires "
                    f"batch dimension for '{self._name}'"
                )
            if size is None:
                size = tensor.shape[0]
            elif tensor.shape[0] != size:
                raise invalid_arg(
                    f"{request.label} input '{tensor.name}' batch size does not match other "
                    f"inputs for '{self._name}'"
                )
        if size is None:
            if not self._reads_strings:  # an ensemble
                return 1
            # Triton's Python backend reads the batch size from the first input.
            raise BackendError(
                Code.INVALID_ARG, f"{request.label} out of bounds index 0: request has 0 inputs"
            )
        if size > self._signature.max_batch_size or (size < 0 and self._checks_sizes):
            raise invalid_arg(
                f"{request.label} inference request batch-size must be <= "
                f"{self._signature.max_batch_size} for '{self._name}'"
            )
        return size

    def _check_tensor(self, request: InferRequest, tensor: Tensor, config: TensorConfig) -> None:
        if tensor.datatype is not config.datatype:
            got = tensor.datatype.value if tensor.datatype else "<invalid>"
            raise invalid_arg(
                f"{request.label} inference input '{tensor.name}' data-type is '{got}', but "
                f"model '{self._name}' expects '{config.datatype.value}'"
            )
        shape = tensor.shape[1:] if self._batches else tensor.shape
        if -1 in shape and len(shape) == len(config.dims):
            raise invalid_arg(
                f"{request.label} All input dimensions should be specified for input "
                f"'{tensor.name}' for model '{self._name}', got {_shape_text(tensor.shape)}"
            )
        if not _fits(shape, config.dims):
            note = _BATCH_NOTE if self._signature.batches else ""
            raise invalid_arg(
                f"{request.label} unexpected shape for input '{tensor.name}' for model "
                f"'{self._name}'. Expected {_shape_text(self._signature.full_dims(config))}, "
                f"got {_shape_text(tensor.shape)}. {note}"
            )
        if self._checks_sizes:
            _check_sizes(tensor, config.datatype)
        # Zero rows count as one row. A negative number wraps at 32 bits, as in Triton.
        rows = tensor.shape[0] % 2**32 if self._batches else 1
        elements = prod(shape) * max(1, rows)
        if config.datatype is DataType.BYTES:
            self._check_strings(request, tensor, elements)
        elif tensor.byte_size != (expected := elements * config.datatype.byte_size):
            raise invalid_arg(
                f"{request.label} input byte size mismatch for input '{tensor.name}' for model "
                f"'{self._name}'. Expected {expected}, got {tensor.byte_size}"
            )
        if min(tensor.shape, default=0) < 0:  # two negative sizes can give the right byte size
            raise invalid_arg(
                f"{request.label} invalid shape for input '{tensor.name}': shape "
                f"{_shape_text(tensor.shape)} contains one or more invalid dimensions"
            )

    def _check_strings(self, request: InferRequest, tensor: Tensor, expected: int) -> None:
        fault: byte_strings.Malformed | None = None
        try:
            found = tensor.string_count()
        except byte_strings.Malformed as malformed:
            fault = malformed
            # Triton counts a string when it has read its length, and checks its bytes last.
            found = fault.elements + (fault.length is not None)
        limit = max(0, expected)  # the error text has the negative number
        if found > limit:
            raise invalid_arg(
                f"{request.label} unexpected number of string elements {limit + 1} for "
                f"inference input '{tensor.name}' for model '{self._name}', expecting {expected}"
            )
        if fault is not None and fault.length is None:
            raise self._malformed(request, tensor, fault) from fault
        if found != expected:
            raise invalid_arg(
                f"{request.label} expected {expected} string elements for inference input "
                f"'{tensor.name}' for model '{self._name}', got {found}"
            )
        if fault is not None and self._reads_strings:
            raise self._malformed(request, tensor, fault) from fault

    def _malformed(
        self, request: InferRequest, tensor: Tensor, fault: byte_strings.Malformed
    ) -> ServerError:
        if fault.length is None:
            return invalid_arg(
                f"{request.label} incomplete string length indicator for inference input "
                f"'{tensor.name}' for model '{self._name}', expecting 4 bytes but only "
                f"{fault.available} bytes available. Please make sure the string length "
                "indicator is in one buffer."
            )
        return BackendError(
            Code.INVALID_ARG,
            f"incomplete string data for inference input '{tensor.name}', expecting string of "
            f"length {fault.length} but only {fault.available} bytes available",
        )

    def _batch_key(self, inputs: dict[str, Tensor], first: int) -> tuple[object, ...]:
        if not self._compared and not self._compares_names:
            return ()
        shapes: list[Dims] = [
            inputs[name].shape[first:] for name in self._compared if name in inputs
        ]
        if self._compares_names:
            return (*shapes, frozenset(inputs))
        return tuple(shapes)

    def _reshape(self, request: InferRequest, first: int) -> None:
        for name, config in self._inputs.items():
            if config.reshape is not None and name in request.inputs:
                tensor = request.inputs[name]
                inner = reshaped(tensor.shape[first:], config.dims, config.reshape)
                request.inputs[name] = tensor.renamed(name, tensor.shape[:first] + inner)


def _cache_key(request: InferRequest) -> Hashable:
    """Return a key that is equal for requests with the same result, if their sizes are equal.

    The key has ids of data types, because ids hash faster than enum members.
    """
    return (
        request.requested_outputs,
        type(request.correlation_id),
        *((tensor.name, id(tensor.datatype), tensor.shape) for tensor in request.inputs.values()),
    )


def _check_sizes(tensor: Tensor, datatype: DataType) -> None:
    """Raise ServerError for a dimension below -1 and for sizes that overflow 64 bits."""
    what = "element count" if datatype.is_bytes else "byte size"
    if min(tensor.shape, default=0) < -1:
        in_shape = "in shape " if datatype.is_bytes else ""
        raise invalid_arg(
            f"tensor '{tensor.name}' contains an invalid dimension "
            f"{in_shape}{_shape_text(tensor.shape)}"
        )
    if abs(prod(tensor.shape)) * max(1, datatype.byte_size) > _MAX_INT64:
        raise invalid_arg(f"{what} for tensor '{tensor.name}' exceeds maximum size of {_MAX_INT64}")


def reshaped(shape: Shape, dims: Dims, other: Dims) -> Shape:
    """Return `shape`, which fits `dims`, in the layout `other`.

    The sizes of free dimensions keep their order.
    """
    free = iter(size for size, dim in zip(shape, dims, strict=True) if dim == -1)
    return tuple(next(free) if dim == -1 else dim for dim in other)


def _fits(shape: Shape, dims: Dims) -> bool:
    return shape == dims or (
        len(shape) == len(dims)
        and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))
    )


def _shape_text(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


class OutputLayouts:
    """The reshaped outputs of a model. False if no output is reshaped. Immutable."""

    def __init__(self, signature: Signature) -> None:
        self._first = 1 if signature.batches else 0
        self._layouts = {
            output.name: (output.reshape, output.dims)
            for output in signature.outputs
            if output.reshape is not None
        }

    def __bool__(self) -> bool:
        return bool(self._layouts)

    def show(self, response: InferResponse) -> None:
        """Reshape the outputs of `response` for clients; set an error if an output does not fit."""
        outputs: list[Tensor] = []
        for tensor in response.outputs:
            shape = self._client_shape(tensor)
            if prod(shape) != prod(tensor.shape):
                response.outputs, response.error = (), _misfit(tensor)
                return
            outputs.append(tensor.renamed(tensor.name, shape))
        response.outputs = outputs

    def _client_shape(self, tensor: Tensor) -> Shape:
        made, dims = self._layouts.get(tensor.name, (None, ()))
        inner = tensor.shape[self._first :]
        if made is None or len(inner) != len(made):
            return tensor.shape  # like Triton, this server does not check output shapes
        return tensor.shape[: self._first] + reshaped(inner, made, dims)


def _misfit(tensor: Tensor) -> ServerError:
    return internal(f"output tensor shape does not match size of output for '{tensor.name}'")


class ShowingSink:
    """A sink that reshapes the outputs of each response for clients."""

    __slots__ = ("_layouts", "_sink")

    def __init__(self, layouts: OutputLayouts, sink: ResponseSink) -> None:
        self._layouts = layouts
        self._sink = sink

    def send(self, response: InferResponse) -> None:
        """Pass on `response` with reshaped outputs."""
        self._layouts.show(response)
        self._sink.send(response)
