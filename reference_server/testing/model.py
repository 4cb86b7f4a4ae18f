"""One model, called as a client calls it, but with arrays."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from reference_server.core import dtypes
from reference_server.core.dtypes import DataType
from reference_server.core.errors import ServerError, unsupported
from reference_server.core.metadata import Signature
from reference_server.core.ports import SystemClock
from reference_server.core.request import (
    LATEST,
    InferRequest,
    InferResponse,
    Parameter,
    SequenceFlag,
)
from reference_server.core.telemetry import Snapshot
from reference_server.core.tensor import Tensor
from reference_server.frontends.grpc.inference import REFUSES_DECOUPLED
from reference_server.gateway.gateway import Gateway
from reference_server.testing.clients import call_on

if TYPE_CHECKING:  # Python 3.10 has no Unpack, and nobody needs it when this runs
    from typing_extensions import Unpack

#: Values by input. What is no array yet becomes one of the input's type: `{"TEXT": ["hello"]}`.
Inputs = Mapping[str, npt.ArrayLike]


class Options(TypedDict, total=False):
    """What a request may say beside its inputs, under the names of NVIDIA's client library.

    Without `outputs` all are wanted; `timeout` is in microseconds.
    """

    outputs: Sequence[str]
    parameters: Mapping[str, Parameter]
    request_id: str
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    priority: int
    timeout: int


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. Arrays are the test's own; those of BYTES hold `bytes`, of BF16 uint16."""

    model_name: str
    model_version: int
    request_id: str
    outputs: Mapping[str, npt.NDArray[Any]]
    parameters: Mapping[str, Parameter]


class ResponseStream(Iterator[Response]):
    """The responses to one request, as they come. Raises ServerError for one that is an error."""

    def __init__(self, request: InferRequest, came: queue.SimpleQueue[_Came]) -> None:
        self._request = request
        self._came = came
        self._has_ended = False

    def __next__(self) -> Response:
        """Wait for a response; StopIteration after the last."""
        __tracebackhide__ = True
        came = None if self._has_ended else self._came.get()
        if came is None:
            self._has_ended = True
            raise StopIteration
        if isinstance(came, ServerError):
            raise came
        return came

    def cancel(self) -> None:
        """Tell the model, if it asks, and the scheduler that the answers are not wanted."""
        self._request.cancellation.cancel()

    def single(self) -> Response:
        """The one response of a request that has one. Raises ServerError."""
        __tracebackhide__ = True
        (response,) = self
        return response


#: None: there will be no more.
_Came = Response | ServerError | None


class Model:
    """A model by its name: whichever is loaded under it when it is called. Any thread."""

    def __init__(
        self, gateway: Gateway, loop: asyncio.AbstractEventLoop, name: str, version: int = LATEST
    ) -> None:
        self.name = name
        self.version = version
        self._gateway = gateway
        self._loop = loop
        self._clock = SystemClock()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {'latest' if self.version == LATEST else self.version})"

    def infer(self, inputs: Inputs, **options: Unpack[Options]) -> Response:
        """The answer to one request. Raises ServerError with the text and code of Triton."""
        __tracebackhide__ = True
        return self._submit([inputs], options, decoupled=False)[0].single()

    def infer_many(self, requests: Sequence[Inputs], **options: Unpack[Options]) -> list[Response]:
        """The answers to requests that are submitted together, in their order.

        An idle instance takes the first of them at once, unless the model's queue delay lets it
        wait for more; the others meet in batches as they would in a server. Raises the first
        ServerError.
        """
        __tracebackhide__ = True
        streams = self._submit(requests, options, decoupled=False)
        return [stream.single() for stream in streams]

    def stream(self, inputs: Inputs, **options: Unpack[Options]) -> ResponseStream:
        """The answers to one request, which is sent now: any number from a decoupled model."""
        return self._submit([inputs], options, decoupled=True)[0]

    def statistics(self) -> Snapshot:
        """The counters of the version. Raises ServerError if it is not loaded."""
        return self._gateway.statistics(self.name, self.version)[-1]

    def config(self) -> dict[str, Any]:
        """The completed configuration. Raises ServerError if the model is not loaded."""
        config: dict[str, Any] = json.loads(self._gateway.model_config(self.name, self.version))
        return config

    def _submit(
        self, requests: Sequence[Inputs], options: Options, *, decoupled: bool
    ) -> list[ResponseStream]:
        """Find the model and submit the requests in one callback, as the frontends do."""
        sequence = SequenceFlag.NONE
        if options.get("sequence_start"):
            sequence |= SequenceFlag.START
        if options.get("sequence_end"):
            sequence |= SequenceFlag.END

        def submit() -> list[ResponseStream]:
            served = self._gateway.find(self.name, self.version)
            if served.config.decoupled and not decoupled:
                raise unsupported(REFUSES_DECOUPLED)
            streams: list[ResponseStream] = []
            for inputs in requests:
                sink = _Sink()
                request = InferRequest(
                    self.name,
                    _tensors(inputs, served.config.signature),
                    sink,
                    model_version=served.version,
                    id=options.get("request_id", ""),
                    requested_outputs=tuple(options.get("outputs", ())),
                    parameters=dict(options.get("parameters", {})),
                    correlation_id=options.get("sequence_id", 0),
                    flags=sequence,
                    priority=options.get("priority", 0),
                    timeout_us=options.get("timeout", 0),
                    received_ns=self._clock.monotonic_ns(),
                )
                streams.append(ResponseStream(request, sink.came))
                try:
                    served.infer(request)
                except ServerError as error:
                    sink.came.put(error)
                    sink.came.put(None)
            return streams

        return call_on(self._loop, submit)


class _Sink:
    """Keeps the responses to one request until the test asks for them."""

    def __init__(self) -> None:
        self.came: queue.SimpleQueue[_Came] = queue.SimpleQueue()

    def send(self, response: InferResponse) -> None:
        if response.error is not None:
            self.came.put(response.error)
        elif not response.empty:
            # Copied now: a model may go on writing to an array that it has answered with.
            outputs = {tensor.name: tensor.array().copy() for tensor in response.outputs}
            self.came.put(
                Response(
                    response.model_name,
                    response.model_version,
                    response.id,
                    outputs,
                    dict(response.parameters),
                )
            )
        if response.final:
            self.came.put(None)


def _tensors(inputs: Inputs, signature: Signature) -> dict[str, Tensor]:
    declared = {tensor.name: tensor.datatype for tensor in signature.inputs}
    return {name: tensor_of(name, value, declared.get(name)) for name, value in inputs.items()}


def tensor_of(name: str, value: npt.ArrayLike, declared: DataType | None = None) -> Tensor:
    """A tensor with elements of its own, as the model would get them from the wire."""
    array: npt.NDArray[Any]
    if isinstance(value, np.ndarray) or declared is None:
        array = np.array(value, order="C")
    else:
        array = np.array(value, declared.numpy)
    if array.dtype.kind in "USO":
        strings = np.empty(array.size, np.object_)
        strings[:] = [
            element if isinstance(element, bytes) else str(element).encode()
            for element in array.reshape(-1).tolist()
        ]
        array = strings.reshape(array.shape)
    is_bfloat16 = declared is DataType.BF16 and array.dtype == DataType.BF16.numpy
    return Tensor(
        name, DataType.BF16 if is_bfloat16 else dtypes.of_array(array), array.shape, array=array
    )
