"""Triton's requests and responses: reads requests, and makes one response for each.

An error of one request becomes the error response of that request and does not affect others.
`triton_python_backend_utils` is always an argument and never imported; the protocols here describe
the part of it that this package uses.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from ge_runtime.errors import (
    Abandoned,
    Cancelled,
    EngineLost,
    HandleGone,
    PoolFault,
    RequestFault,
    RuntimeClosed,
    RuntimeFault,
    SizeDisabled,
    forget_frames,
)
from ge_runtime.specs import Array, Tensors


class TritonTensor(Protocol):
    """The used part of `pb_utils.Tensor`."""

    def name(self) -> str:
        """Return the name in config.pbtxt."""

    def as_numpy(self) -> Array:
        """Return the content; BYTES are an object array."""

    def to_dlpack(self) -> object:
        """Return a DLPack capsule of the memory, which is the only access to BF16."""


class Request(Protocol):
    """The used part of `pb_utils.InferenceRequest`."""

    def inputs(self) -> Sequence[TritonTensor]:
        """Return all inputs of the request."""

    def requested_output_names(self) -> Collection[str]:
        """Return the outputs that the client requested; all if it named none."""

    def request_id(self) -> str:
        """Return the client's id of the request, or ""."""

    def correlation_id(self) -> int | str:
        """Return the sequence of the request; 0 or "" if it belongs to none."""

    def flags(self) -> int:
        """Return the sequence flags: 1 for the first request, 2 for the last, 3 for both."""

    def timeout(self) -> int:
        """Return the client's timeout in microseconds, or 0."""

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request.

        tritonserver crashes if this is called after the request's last response was sent.
        """

    def trace(self) -> Any:  # noqa: ANN401 - `get_context()`, and the server's own methods
        """Return the request's trace."""

    def get_response_sender(self) -> Any:  # noqa: ANN401 - `send(response, flags)`
        """Return the sender for responses that are sent before `execute` returns."""


class PbUtils(Protocol):
    """The used part of the module `triton_python_backend_utils`."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL: int
    """The flag of a request's last response."""

    @property
    def Tensor(self) -> Any:  # noqa: ANN401 - a class, of a name and content; `from_dlpack`
        """Class of outputs."""

    @property
    def InferenceResponse(self) -> Callable[..., object]:
        """Class of responses: output_tensors, error."""

    @property
    def TritonError(self) -> Any:  # noqa: ANN401 - a callable with codes as attributes
        """Class of errors: message and code."""

    @property
    def Logger(self) -> Any:  # noqa: ANN401 - a class of static methods
        """The server's log."""

    def get_model_dir(self) -> str:
        """Return the folder of the model's version."""

    @property
    def MetricFamily(self) -> Any:  # noqa: ANN401 - a class with kinds as attributes
        """Class of metric families: name, description and kind."""


# BF16 is exchanged with Triton by DLPack, as NumPy has no such type: the runtime keeps the bits in
# a uint16 array. Changing the type code in a capsule turns uint16 into BF16 and back: no copy.

# Type codes and the device of DLPack: https://dmlc.github.io/dlpack/latest/c_api.html
_UINT: Final = 1
_BFLOAT: Final = 4
_CPU: Final = (1, 0)


class _TensorHeader(ctypes.Structure):
    """The first fields of a DLManagedTensor, up to its type."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
    )


# A separate prototype: setting argtypes of a function in ctypes.pythonapi changes it for all code.
_header = ctypes.PYFUNCTYPE(ctypes.POINTER(_TensorHeader), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Capsule:
    """A capsule with the methods that NumPy requires."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(self, *, stream: None = None, **_: object) -> Any:  # noqa: ANN401 - a capsule
        # NumPy's other arguments are about versions, which Triton's capsules do not have.
        return self._capsule


def bits_of(name: str, tensor: TritonTensor) -> Array:
    """Return the bits of a BF16 tensor as a uint16 array of the same shape, without a copy.

    The array keeps the tensor's memory alive.

    Args:
        name: The input, for errors.
        tensor: The tensor.

    Raises:
        RequestFault: The tensor is not BF16 in host memory.
    """
    capsule = tensor.to_dlpack()
    header = _header(capsule, b"dltensor").contents
    if (header.code, header.bits, header.device_type) != (_BFLOAT, 16, _CPU[0]):
        raise RequestFault(
            f"input '{name}': found DLPack type {header.code} of {header.bits} bits on device type "
            f"{header.device_type}, expected BF16 on the CPU"
        )
    header.code = _UINT
    bits: Array = np.from_dlpack(_Capsule(capsule))
    return bits


def bfloat16_of(bits: TritonTensor) -> object:
    """Return a BF16 capsule of a uint16 tensor of bits, for `pb_utils.Tensor.from_dlpack`.

    The capsule must be Triton's own. Triton renames capsules that it has consumed to `used_dlpack`,
    which the destructors of NumPy's capsules do not accept: they raise an error, and handling it
    destroys the capsule again, recursively, until the process dies of a stack overflow.
    """
    capsule = bits.to_dlpack()
    _header(capsule, b"dltensor").contents.code = _BFLOAT
    return capsule


Result: TypeAlias = Tensors | Exception
"""The result of a request: its outputs by name, or the exception in their place."""

Read = TypeVar("Read")

OnResult: TypeAlias = Callable[[int, Result], None]
"""Receives the index of a request and its result while other requests are still executed."""

Send: TypeAlias = Callable[[Request, object], None]
"""Sends the one response to a request."""

_MOST_LOST: Final = 16
"""Maximum number of remembered messages about lost engines.

Each attempt to reconnect may fail with a different message.
"""


def answer_each(
    pb_utils: PbUtils, requests: Sequence[Request], function: Callable[[Tensors], Tensors]
) -> list[object]:
    """Call a function for each request, and return one InferenceResponse per request, in order.

    For models without a graph.

    Args:
        pb_utils: The module `triton_python_backend_utils`.
        requests: The argument of `execute`.
        function: Maps a request's inputs by name to its outputs by name. If it raises RequestFault,
            the client gets INVALID_ARG; other exceptions are INTERNAL errors, and logged.

    Returns:
        The return value of `execute`.
    """
    return answer_batch(
        pb_utils, requests, lambda batch: [attempt(function, inputs) for inputs in batch]
    )


def answer_batch(
    pb_utils: PbUtils,
    requests: Sequence[Request],
    function: Callable[[Sequence[Tensors]], Sequence[Result]],
) -> list[object]:
    """Call a function once for all requests, and return one InferenceResponse per request.

    Args:
        pb_utils: The module `triton_python_backend_utils`.
        requests: The argument of `execute`.
        function: Maps the inputs by name of each request to its outputs by name, or to an
            exception, as in `answer_each`. An exception that it raises is the error of all
            requests.

    Returns:
        The return value of `execute`, without outputs that a client did not request.
    """
    return respond_to(
        pb_utils, requests, read_inputs, lambda batch, _: function(batch), (), FaultLog(pb_utils)
    )


def read_inputs(request: Request) -> Tensors:
    """Return the inputs of a request by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def respond_to(
    pb_utils: PbUtils,
    requests: Sequence[Request],
    read: Callable[[Request], Read],
    function: Callable[[Sequence[Read], OnResult], Sequence[Result]],
    bfloat16: Collection[str],
    log: FaultLog,
    send: Send = lambda request, response: None,
    always: Collection[str] = (),
    derive: Callable[[Tensors], Tensors] | None = None,
) -> list[object]:
    """Call a function once for all requests, and return one InferenceResponse per request.

    Args:
        pb_utils: The module `triton_python_backend_utils`.
        requests: The requests.
        read: Returns the function's input for a request; an exception becomes the response.
        function: Returns one result per input. Results that it passes to its second argument are
            sent immediately; the returned list has None for them.
        bfloat16: The outputs that are uint16 arrays of BF16 bits.
        log: Receives errors that are not the client's.
        send: Sends the response to a request immediately.
        always: Outputs that are returned even if the client did not request them, because the
            server stores them, such as the next state of a sequence.
        derive: Returns a request's outputs together with the outputs computed from them; an
            exception becomes the response.
    """
    results: list[Any] = []
    batch: list[Read] = []
    places: list[int] = []  # the index of the request of each item of `batch`
    for place, request in enumerate(requests):
        try:
            batch.append(read(request))
            places.append(place)
            results.append(None)
        except Exception as error:
            results.append(error)
    responses = _Responses(pb_utils, bfloat16, log, always, derive)
    sent: set[int] = set()

    def on_result(index: int, result: Result) -> None:
        place = places[index]
        sent.add(place)
        send(requests[place], responses.of(requests[place], result))

    answers: Sequence[Result] = []
    try:
        if batch:
            answers = list(function(batch, on_result))
        if len(answers) != len(batch):
            raise RuntimeFault(f"found {len(answers)} results, expected {len(batch)}")
    except Exception as error:
        answers = [error] * len(batch)
    for place, answer in zip(places, answers, strict=True):
        results[place] = answer
    complete: list[object] = []
    for place, request in enumerate(requests):
        complete.append(None if place in sent else responses.of(request, results[place]))
    return complete


class FaultLog:
    """Logs failures of one model instance's requests. For one thread at a time.

    The loss of an engine is logged once for each reason, not for each request.
    """

    def __init__(self, pb_utils: PbUtils, instance_name: str = "") -> None:
        """instance_name: the prefix of all lines, if known."""
        self._write = pb_utils.Logger.log_error
        self._prefix = f"{instance_name}: " if instance_name else ""
        self.lost: set[str] = set()
        """The losses logged since the last successful request."""

    def write(self, error: Exception) -> None:
        """Log an error."""
        text = _text_of(error)
        if isinstance(error, EngineLost):
            if text in self.lost:
                return
            if len(self.lost) >= _MOST_LOST:
                self.lost.clear()
            self.lost.add(text)
        self._write(self._prefix + text)


def attempt(function: Callable[[Any], Read], argument: object) -> Read | Exception:
    """Call the function, and return its result or the exception."""
    try:
        return function(argument)
    except Exception as error:
        return error


class _Responses:
    """Makes the responses of one request batch."""

    def __init__(
        self,
        pb_utils: PbUtils,
        bfloat16: Collection[str],
        log: FaultLog,
        always: Collection[str],
        derive: Callable[[Tensors], Tensors] | None,
    ) -> None:
        self._pb_utils = pb_utils
        self._always = always
        self._derive = derive
        self._bfloat16 = bfloat16
        self._log = log
        # Ids of exceptions: all requests of a request batch that fails get the same exception.
        self._logged: set[int] = set()

    def of(self, request: Request, result: Result) -> object:
        """Return the InferenceResponse to a request."""
        if not isinstance(result, Exception):
            try:
                response = self._success(request, result)
                if self._log.lost:  # the next loss is logged again
                    self._log.lost.clear()
                return response
            except Exception as error:
                result = error
        # A disabled size was logged when it was disabled.
        known = isinstance(result, (RequestFault, Abandoned, SizeDisabled))
        if not known and id(result) not in self._logged:
            self._logged.add(id(result))
            self._log.write(result)
        forget_frames(result)  # frames hold the requests' tensors, whose memory is Triton's
        return failure(self._pb_utils, result)

    def _success(self, request: Request, outputs: Tensors) -> object:
        if self._derive is not None:
            outputs = self._derive(outputs)
        wanted = request.requested_output_names()
        tensors = []
        for name, array in outputs.items():
            if name in wanted or name in self._always:
                tensor = self._pb_utils.Tensor(name, array)
                if name in self._bfloat16:
                    tensor = self._pb_utils.Tensor.from_dlpack(name, bfloat16_of(tensor))
                tensors.append(tensor)
        return self._pb_utils.InferenceResponse(output_tensors=tensors)


def _text_of(error: Exception) -> str:
    """Return the traceback of an error; of a RuntimeFault only the message, which is complete."""
    if isinstance(error, RuntimeFault):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def failure(pb_utils: PbUtils, error: Exception) -> object:
    """Return the InferenceResponse for an error."""
    text = str(error) if isinstance(error, RuntimeFault) else f"{type(error).__name__}: {error}"
    code = _code(pb_utils.TritonError, error)
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(text, code))


def _code(codes: Any, error: Exception) -> object:  # noqa: ANN401 - pb_utils.TritonError
    if isinstance(error, HandleGone):  # the client's request was valid, and may be repeated
        return codes.UNAVAILABLE
    if isinstance(error, RequestFault):
        return codes.INVALID_ARG
    if isinstance(error, Cancelled):
        return codes.CANCELLED
    if isinstance(error, (Abandoned, PoolFault, RuntimeClosed, EngineLost)):
        return codes.UNAVAILABLE
    return codes.INTERNAL
