"""Triton's requests and responses: what is read of a request, and one response for each.

Whatever goes wrong with one request becomes the error response of that request and leaves the
others alone. `triton_python_backend_utils` is always an argument, never imported: the protocols
here are what is used of it.
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
    forget_frames,
)
from ge_runtime.specs import Array, Tensors


class TritonTensor(Protocol):
    """What is used of `pb_utils.Tensor`."""

    def name(self) -> str:
        """The name in config.pbtxt."""

    def as_numpy(self) -> Array:
        """The content; BYTES are an object array."""

    def to_dlpack(self) -> object:
        """A capsule of its memory: the only way to BF16."""


class Request(Protocol):
    """What is used of `pb_utils.InferenceRequest`."""

    def inputs(self) -> Sequence[TritonTensor]:
        """All inputs sent."""

    def requested_output_names(self) -> Collection[str]:
        """The outputs the client wants: all, if it named none."""

    def request_id(self) -> str:
        """The client's name for the request, "" if it gave none."""

    def correlation_id(self) -> int | str:
        """The sequence of the request; 0 or "" if it is of none."""

    def flags(self) -> int:
        """Of the sequence: 1 if the request starts it, 2 if it ends it, or both."""

    def timeout(self) -> int:
        """Microseconds that the client grants the request, 0 for no end."""

    def is_cancelled(self) -> bool:
        """Whether the client has taken the request back.

        tritonserver dies if it is asked about a request whose last response has been sent.
        """

    def trace(self) -> Any:  # noqa: ANN401 - `get_context()`, and the server's own methods
        """The request's trace."""

    def get_response_sender(self) -> Any:  # noqa: ANN401 - `send(response, flags)`
        """What sends responses before `execute` returns."""


class PbUtils(Protocol):
    """What is used of the module `triton_python_backend_utils`."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL: int
    """The flag of a request's last response."""

    @property
    def Tensor(self) -> Any:  # noqa: ANN401 - a class, of a name and content; `from_dlpack`
        """An output."""

    @property
    def InferenceResponse(self) -> Callable[..., object]:
        """An answer: output_tensors, error."""

    @property
    def TritonError(self) -> Any:  # noqa: ANN401 - a callable with codes as attributes
        """An error: its text and code."""

    @property
    def Logger(self) -> Any:  # noqa: ANN401 - a class of static methods
        """The server's log."""

    def get_model_dir(self) -> str:
        """The folder of the model's version."""

    @property
    def MetricFamily(self) -> Any:  # noqa: ANN401 - a class with kinds as attributes
        """A family of metrics: its name, description and kind."""


# BF16 goes to and from Triton by DLPack, since NumPy has no such type: inside the runtime it is the
# array of its bits, uint16. Capsules of uint16 arrays become those of BF16 and the other way round
# by an exchange of the type's code. Nothing is copied.

# Type codes and the device of DLPack: https://dmlc.github.io/dlpack/latest/c_api.html
_UINT: Final = 1
_BFLOAT: Final = 4
_CPU: Final = (1, 0)


class _TensorHeader(ctypes.Structure):
    """The first fields of a DLManagedTensor, up to the type's."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
    )


# A prototype of our own: setting argtypes of a function in ctypes.pythonapi changes it for all.
_header = ctypes.PYFUNCTYPE(ctypes.POINTER(_TensorHeader), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Capsule:
    """A capsule as NumPy wants it."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(self, *, stream: None = None, **_: object) -> Any:  # noqa: ANN401 - a capsule
        # What else NumPy asks for is about versions, which Triton's capsules lack.
        return self._capsule


def bits_of(name: str, tensor: TritonTensor) -> Array:
    """A tensor's bits: uint16, of its shape, in its own memory, which they keep alive.

    name: for errors. Raises RequestFault if the tensor is not BF16 in the host's memory.
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
    """A capsule of BF16, of a tensor of its bits, uint16; for `pb_utils.Tensor.from_dlpack`.

    The capsule is Triton's own, because Triton takes no others unharmed: it calls those that it
    has taken `used_dlpack`, a name which the destructors of NumPy's do not know. They complain of
    it, which destroys the capsule once more, and again, until the process dies of a full stack.
    """
    capsule = bits.to_dlpack()
    _header(capsule, b"dltensor").contents.code = _BFLOAT
    return capsule


Result: TypeAlias = Tensors | Exception
"""What becomes of a request: its outputs by name, or why there are none."""

Read = TypeVar("Read")

Leave: TypeAlias = Callable[[int, Result], None]
"""Takes what becomes of the request at a place while others are still executed."""

Send: TypeAlias = Callable[[Request, object], None]
"""Sends the one response to a request."""

_MOST_LOST: Final = 16
"""Texts of losses that are kept: each attempt to have a service back may tell another."""


def answer_each(
    pb_utils: PbUtils, requests: Sequence[Request], function: Callable[[Tensors], Tensors]
) -> list[object]:
    """One InferenceResponse per request, in order, from calls of `function` for each.

    function: a request's inputs by name to its outputs by name. It raises RequestFault for what
    the caller did wrong, which the client gets as INVALID_ARG; anything else that it raises is
    INTERNAL, and logged. For models without a graph.
    """
    return answer_batch(
        pb_utils, requests, lambda batch: [attempt(function, inputs) for inputs in batch]
    )


def answer_batch(
    pb_utils: PbUtils,
    requests: Sequence[Request],
    function: Callable[[Sequence[Tensors]], Sequence[Result]],
) -> list[object]:
    """One InferenceResponse per request, in order, from one call of `function` for all.

    function: the inputs by name of each request to its outputs by name, or to the exception that
    stands for them. What it raises is the error of every request.
    Errors are mapped as in `answer_each`. Outputs that a client did not request are left out.
    """
    return respond_to(
        pb_utils, requests, _read, lambda batch, leave: function(batch), (), FaultLog(pb_utils)
    )


def _read(request: Request) -> Tensors:
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def respond_to(
    pb_utils: PbUtils,
    requests: Sequence[Request],
    read: Callable[[Request], Read],
    function: Callable[[Sequence[Read], Leave], Sequence[Result]],
    bfloat16: Collection[str],
    log: FaultLog,
    send: Send = lambda request, response: None,
    always: Collection[str] = (),
) -> list[object]:
    """One InferenceResponse per request, in order, from one call of `function` for all.

    read: what `function` gets of a request; a request that it raises for is answered with that.
    function: one result per reading. What it gives to its second argument is sent at once, and
    None takes the response's place in the list. bfloat16: the outputs that are arrays of bits.
    always: outputs that are answered whether or not the client wants them: the server keeps them.
    """
    results: list[Any] = [attempt(read, request) for request in requests]
    places = [place for place, own in enumerate(results) if not isinstance(own, Exception)]
    responses = _Responses(pb_utils, bfloat16, log, always)
    sent: set[int] = set()

    def leave(index: int, result: Result) -> None:
        place = places[index]
        sent.add(place)
        send(requests[place], responses.of(requests[place], result))

    batch = [results[place] for place in places]
    try:
        answers = list(function(batch, leave)) if batch else []
        if len(answers) != len(batch):
            raise RuntimeFault(f"found {len(answers)} results, expected {len(batch)}")
    except Exception as error:
        answers = [error] * len(batch)
    for place, answer in zip(places, answers, strict=True):
        results[place] = answer
    return [
        None if place in sent else responses.of(request, results[place])
        for place, request in enumerate(requests)
    ]


class FaultLog:
    """The server's log, for what fails of one model instance's requests. For one thread at a time.

    That an engine is lost is one line for each reason that is told, not one for each request.
    """

    def __init__(self, pb_utils: PbUtils, instance_name: str = "") -> None:
        """instance_name: where it is known."""
        self._write = pb_utils.Logger.log_error
        self._who = f"{instance_name}: " if instance_name else ""
        self._lost: set[str] = set()  # what was said since a request was answered

    def tell(self, error: Exception) -> None:
        """Write what went wrong."""
        text = _text_of(error)
        if isinstance(error, EngineLost):
            if text in self._lost:
                return
            if len(self._lost) >= _MOST_LOST:
                self._lost.clear()
            self._lost.add(text)
        self._write(self._who + text)

    def note_success(self) -> None:
        """A request was answered: the next loss is another one."""
        if self._lost:
            self._lost.clear()


def attempt(function: Callable[[Any], Read], argument: object) -> Read | Exception:
    """The function's result, or what it raised."""
    try:
        return function(argument)
    except Exception as error:
        return error


class _Responses:
    """Makes the responses to one request batch."""

    def __init__(
        self,
        pb_utils: PbUtils,
        bfloat16: Collection[str],
        log: FaultLog,
        always: Collection[str] = (),
    ) -> None:
        self._pb_utils = pb_utils
        self._always = always
        self._bfloat16 = bfloat16
        self._log = log
        # A request batch that fails gives all its requests the same exception.
        self._logged: set[int] = set()

    def of(self, request: Request, result: Result) -> object:
        """The InferenceResponse to a request."""
        if not isinstance(result, Exception):
            try:
                response = _success(self._pb_utils, request, result, self._bfloat16, self._always)
                self._log.note_success()
                return response
            except Exception as error:
                result = error
        if not isinstance(result, (RequestFault, Abandoned)) and id(result) not in self._logged:
            self._logged.add(id(result))
            self._log.tell(result)
        forget_frames(result)  # which hold what Triton lent: the requests' tensors
        return _failure(self._pb_utils, result)


def _success(
    pb_utils: PbUtils,
    request: Request,
    outputs: Tensors,
    bfloat16: Collection[str],
    always: Collection[str],
) -> object:
    wanted = request.requested_output_names()
    tensors = []
    for name, array in outputs.items():
        if name in wanted or name in always:
            tensor = pb_utils.Tensor(name, array)
            if name in bfloat16:
                tensor = pb_utils.Tensor.from_dlpack(name, bfloat16_of(tensor))
            tensors.append(tensor)
    return pb_utils.InferenceResponse(output_tensors=tensors)


def _text_of(error: Exception) -> str:
    """A sentence for what is raised on purpose, which says all; for all else where it was."""
    if isinstance(error, RuntimeFault):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def _failure(pb_utils: PbUtils, error: Exception) -> object:
    text = str(error) if isinstance(error, RuntimeFault) else f"{type(error).__name__}: {error}"
    code = _code(pb_utils.TritonError, error)
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(text, code))


def _code(codes: Any, error: Exception) -> object:  # noqa: ANN401 - pb_utils.TritonError
    """Triton's code for an error; the frontends of a server make statuses of it."""
    if isinstance(error, HandleGone):  # the client's request was right, and may come again
        return codes.UNAVAILABLE
    if isinstance(error, RequestFault):
        return codes.INVALID_ARG
    if isinstance(error, Cancelled):
        return codes.CANCELLED
    if isinstance(error, (Abandoned, PoolFault, RuntimeClosed, EngineLost)):
        return codes.UNAVAILABLE
    return codes.INTERNAL
