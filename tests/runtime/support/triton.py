"""A stand-in for `triton_python_backend_utils`: its own refusals, nothing more permissive.

Only what the adapter may use is here. Contract tests elsewhere meet the real module.
"""

from __future__ import annotations

import enum

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

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class Bfloat16Tensor:
    """An input that NumPy cannot show."""

    def __init__(self, name):
        self._name = name

    def name(self):
        return self._name

    def as_numpy(self):
        raise TritonModelException(
            "Tensor dtype is BF16 and cannot be converted to NumPy. "
            "Use to_dlpack() and from_dlpack() instead."
        )


class InferenceRequest:
    """An incoming request; the real one cannot be made like this."""

    __slots__ = ("_inputs", "_requested")

    def __init__(self, inputs, requested):
        self._inputs, self._requested = list(inputs), set(requested)

    def inputs(self):
        return list(self._inputs)

    def requested_output_names(self):
        return set(self._requested)


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
    """Keeps lines per level; `clear` before a test that reads them."""

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


class PbUtils:
    """The module, with a log of its own."""

    def __init__(self):
        self.Tensor = Tensor
        self.InferenceResponse = InferenceResponse
        self.TritonError = TritonError
        self.TritonModelException = TritonModelException
        self.Logger = Logger()
