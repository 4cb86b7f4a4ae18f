"""The enumerations and errors of the API, and checks of types."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator

from reference_server.core.errors import Code, ServerError


class _Constant(enum.Enum):
    """A constant that compares equal only to itself, and converts to `int`.

    Its text has Triton's prefix, because error texts quote it.
    """

    def __int__(self) -> int:
        return int(self.value)

    def __str__(self) -> str:
        return f"TRITONSERVER_{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {self.value}>"


class DataType(_Constant):
    """The type of a tensor's elements."""

    INVALID, BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16 = range(8)
    INT32, INT64, FP16, FP32, FP64, BYTES, BF16 = range(8, 15)


class InstanceGroupKind(_Constant):
    """The kind of device that a model runs on."""

    AUTO, CPU, GPU, MODEL = range(4)


class LogFormat(_Constant):
    """The form of the time in log lines."""

    DEFAULT, ISO8601 = range(2)


class LogLevel(_Constant):
    """The level of a log record."""

    INFO, WARN, ERROR, VERBOSE = range(4)


class MemoryType(_Constant):
    """The kind of memory that a tensor is in. This server has CPU memory only."""

    CPU, CPU_PINNED, GPU = range(3)


class MetricFormat(_Constant):
    """The format of the metrics."""

    PROMETHEUS = 0


class MetricKind(_Constant):
    """The type of a metric."""

    COUNTER, GAUGE = range(2)


class ModelControlMode(_Constant):
    """The source of load requests: the start, `poll_model_repository`, or `load`."""

    NONE, POLL, EXPLICIT = range(3)


class RateLimitMode(_Constant):
    """The rate limiter: off, or executions wait for resources."""

    OFF, EXEC_COUNT = range(2)


class ModelBatchFlag(enum.IntFlag):
    """FIRST_DIM if the first dimension of a model's tensors is the batch dimension."""

    UNKNOWN, FIRST_DIM = 1, 2


class ModelTxnPropertyFlag(enum.IntFlag):
    """The number of responses to a request: one, or any number."""

    ONE_TO_ONE, DECOUPLED = 1, 2


class TritonError(Exception):
    """The base of all errors. The first argument is the text.

    An error of a response has the response as its second argument.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownError(TritonError):
    """An error without a more exact class, such as a cancellation."""


class InternalError(TritonError):
    """A model or the server failed."""


class NotFoundError(TritonError):
    """The model or version is not loaded."""


class InvalidArgumentError(TritonError):
    """A value is invalid, or the server is not started."""


class UnavailableError(TritonError):
    """The operation is not possible in the current state."""


class UnsupportedError(TritonError):
    """The operation is not supported."""


class AlreadyExistsError(TritonError):
    """The object exists already."""


_CLASSES = {
    Code.INTERNAL: InternalError,
    Code.NOT_FOUND: NotFoundError,
    Code.INVALID_ARG: InvalidArgumentError,
    Code.UNAVAILABLE: UnavailableError,
    Code.UNSUPPORTED: UnsupportedError,
    Code.ALREADY_EXISTS: AlreadyExistsError,
}


def error_of(error: ServerError) -> TritonError:
    """Return the API's error for an error of the server."""
    return _CLASSES.get(error.code, UnknownError)(error.message)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Raise errors of the server as errors of the API."""
    try:
        yield
    except ServerError as error:
        raise error_of(error) from None


def check_type(name: str, value: object, *types: type) -> None:
    """Raise TypeError unless `value` has one of the types. A bool counts as an int."""
    if not isinstance(value, types):
        expected = " or ".join(each.__name__ for each in types)
        raise TypeError(f"{name}: found {type(value).__name__} {value!r}; expected {expected}")


def check_unsigned(name: str, value: object, bits: int) -> int:
    """Return `value`. Raise TypeError unless it is an integer from 0 below 2**bits."""
    number = int(value) if hasattr(value, "__index__") else -1
    if not 0 <= number < 1 << bits:
        raise TypeError(f"{name}: found {value!r}; expected an integer from 0 to {(1 << bits) - 1}")
    return int(number)
