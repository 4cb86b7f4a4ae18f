"""A double of `triton_python_backend_utils` that refuses all that the real one refuses.

Only what the adapter may use is here. Contract tests elsewhere meet the real module.
"""

from __future__ import annotations

import enum
import re

import numpy as np

_SUPPORTED = frozenset("?bBhHiIlLqQefdO")


class TritonModelException(Exception):
    pass


class TritonError:
    class _ErrorCode(enum.Enum):
        UNKNOWN = 0
        INTERNAL = 1
        NOT_FOUND = 2
        INVALID_ARG = 3
        UNAVAILABLE = 4
        UNSUPPORTED = 5
        ALREADY_EXISTS = 6
        CANCELLED = 7

    INTERNAL = _ErrorCode.INTERNAL
    INVALID_ARG = _ErrorCode.INVALID_ARG
    UNAVAILABLE = _ErrorCode.UNAVAILABLE
    CANCELLED = _ErrorCode.CANCELLED

    __slots__ = ("_code", "_message")

    def __init__(self, message, code=_ErrorCode.INTERNAL):
        if not isinstance(message, str) or not isinstance(code, self._ErrorCode):
            raise TypeError("__init__(): incompatible constructor arguments.")
        self._message, self._code = message, code

    def message(self):
        return self._message

    def code(self):
        return self._code


class Tensor:
    __slots__ = ("_array", "_name")

    def __init__(self, name, numpy_array, /):
        if not isinstance(name, str) or not isinstance(numpy_array, np.ndarray):
            raise TypeError("__init__(): incompatible constructor arguments.")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        dtype = numpy_array.dtype
        if dtype.kind != "S" and (dtype.char not in _SUPPORTED or not dtype.isnative):
            raise TritonModelException("NumPy dtype is not supported.")
        contiguous = numpy_array.flags.c_contiguous
        self._name, self._array = name, numpy_array if contiguous else numpy_array.copy()

    @staticmethod
    def from_dlpack(name, capsule):
        """Return a tensor for BF16, which alone needs this."""
        import torch

        # The real one lets the process crash on capsules of other libraries.
        assert any(capsule is own for own in OWN_CAPSULES)
        return Bfloat16Tensor(name, torch.utils.dlpack.from_dlpack(capsule))

    def to_dlpack(self):
        OWN_CAPSULES.append(self._array.__dlpack__())
        return OWN_CAPSULES[-1]

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


OWN_CAPSULES = []


class Bfloat16Tensor:
    """A tensor of a type that NumPy lacks; torch keeps it."""

    def __init__(self, name, tensor):
        self._name, self.tensor = name, tensor

    def name(self):
        return self._name

    def as_numpy(self):
        raise TritonModelException(
            "Tensor dtype is BF16 and cannot be converted to NumPy. "
            "Use to_dlpack() and from_dlpack() instead."
        )

    def to_dlpack(self):
        import torch

        return torch.utils.dlpack.to_dlpack(self.tensor)


class InferenceRequest:
    """An incoming request; the real one cannot be created like this."""

    __slots__ = (
        "_cancelled",
        "_flags",
        "_id",
        "_inputs",
        "_requested",
        "_sender",
        "_sequence",
        "_timeout",
    )

    def __init__(
        self, inputs, requested, request_id="", timeout=0, cancelled=False, sequence=0, flags=0
    ):
        self._sequence, self._flags = sequence, flags
        self._inputs, self._requested = list(inputs), set(requested)
        self._sender = ResponseSender()
        self._id, self._timeout, self._cancelled = request_id, timeout, cancelled

    def inputs(self):
        return list(self._inputs)

    def requested_output_names(self):
        return set(self._requested)

    def request_id(self):
        return self._id

    def correlation_id(self):
        return self._sequence

    def flags(self):
        return self._flags

    def timeout(self):
        return self._timeout

    def is_cancelled(self):
        assert not self._sender.sent, "the real server dies of this"
        return self._cancelled

    def trace(self):
        return InferenceTrace()

    def get_response_sender(self):
        return self._sender


class InferenceTrace:
    """The trace of a request that is not traced; the real one has no other method."""

    def get_context(self):
        return None


class ResponseSender:
    """The response sender of a request; records responses."""

    def __init__(self):
        self.sent = []

    def send(self, response=None, flags=0):
        assert isinstance(response, InferenceResponse)
        assert flags == 1, "in a call of its own, the flag can end the real server"
        if self.sent:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        self.sent.append(response)


class InferenceResponse:
    __slots__ = ("_error", "_tensors")

    def __init__(self, output_tensors=(), error=None):
        if not isinstance(output_tensors, (list, tuple)):
            raise TypeError("__init__(): incompatible constructor arguments.")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError("__init__(): incompatible constructor arguments.")
        if any(tensor is None for tensor in output_tensors):
            raise TritonModelException("Output tensor for inference response should not be empty.")
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self):
        return self._tensors

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error


class Logger:
    """Records lines per level; `clear` before a test that reads them."""

    lines: list[tuple[str, str]]

    def __init__(self):
        self.lines = []

    def _log(self, level, message):
        if not isinstance(message, (str, bytes)):
            raise TypeError("incompatible function arguments.")
        self.lines.append((level, message))

    def log_info(self, message):
        self._log("info", message)

    def log_error(self, message):
        self._log("error", message)


class _Kind(enum.Enum):
    COUNTER = 0
    GAUGE = 1


class Metric:
    """One series of a family."""

    def __init__(self, kind):
        self._kind, self.number = kind, 0.0

    def increment(self, amount):
        if self._kind is _Kind.COUNTER and amount < 0:
            raise TritonModelException("can only be incremented monotonically")
        self.number += amount

    def set(self, value):
        assert self._kind is _Kind.GAUGE
        self.number = value


def metric_family(series):
    """A `MetricFamily` whose series are in `series` by name and labels."""

    class MetricFamily:
        COUNTER, GAUGE = _Kind

        def __init__(self, name, description, kind):
            if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) or not isinstance(kind, _Kind):
                raise TritonModelException("Invalid metric name")
            assert description
            self._name, self._kind = name, kind

        def Metric(self, labels=None):
            if any(not isinstance(value, str) for value in (labels or {}).values()):
                raise TritonModelException("attempt to access JSON non-string as string")
            key = (self._name, *sorted((labels or {}).items()))
            return series.setdefault(key, Metric(self._kind))

    return MetricFamily


class PbUtils:
    """The module, with its own log and metrics."""

    def __init__(self):
        self.Tensor = Tensor
        self.InferenceResponse = InferenceResponse
        self.TritonError = TritonError
        self.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
        self.TritonModelException = TritonModelException
        self.Logger = Logger()
        self.series = {}
        self.MetricFamily = metric_family(self.series)

    def metric(self, name, **labels):
        """Return the series of this name whose labels include these."""
        (found,) = (
            metric
            for (own, *pairs), metric in self.series.items()
            if own == f"ge_runtime_{name}" and labels.items() <= dict(pairs).items()
        )
        return found
