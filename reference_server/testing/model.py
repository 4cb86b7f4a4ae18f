"""A model under test, called as by a client, but with arrays."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

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
from reference_server.core.tensor import DataType, Tensor, datatype_of
from reference_server.frontends.grpc.inference import REFUSES_DECOUPLED
from reference_server.gateway.gateway import Gateway
from reference_server.testing.clients import call_on

if TYPE_CHECKING:  # Python 3.10 has no Unpack, and it is not needed at run time
    from typing_extensions import Unpack
import inspect
from collections.abc import Callable

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.backends.python_host.model_code import describe
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import internal, invalid_arg
from reference_server.core.health import Health
from reference_server.repository.bls import CalledModel, Models
from reference_server.repository.model_folders import Override

#: Values by input. Lists and scalars become arrays of the input's type: `{"TEXT": ["hello"]}`.
Inputs = Mapping[str, npt.ArrayLike]


class Options(TypedDict, total=False):
    """Options of a request, with the names of NVIDIA's client library.

    Attributes:
        outputs: the names of the requested outputs; all outputs by default.
        parameters: custom parameters by name.
        request_id: the request's id.
        sequence_id: the id of the sequence; 0: no sequence.
        sequence_start: True for the first request of a sequence.
        sequence_end: True for the last request of a sequence.
        priority: the priority level; 0 is the model's default.
        timeout: the queue timeout in microseconds; 0: no timeout.
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
    """One response of a model.

    Attributes:
        model_name: the name of the model that answered.
        model_version: the version of that model.
        request_id: the id of the request.
        outputs: arrays by output name. They are copies. BYTES are arrays of `bytes`, BF16 are
            uint16.
        parameters: response parameters by name.
    """

    model_name: str
    model_version: int
    request_id: str
    outputs: Mapping[str, npt.NDArray[Any]]
    parameters: Mapping[str, Parameter]


class ResponseStream(Iterator[Response]):
    """An iterator over the responses to one request, in the order of their arrival.

    Iteration blocks until the next response arrives, and raises ServerError for a response that is
    an error. Use it from one thread at a time.
    """

    def __init__(self, request: InferRequest, received: queue.SimpleQueue[_Received]) -> None:
        self._request = request
        self._received = received
        self._has_ended = False

    def __next__(self) -> Response:
        """Wait for the next response, and return it.

        Raises:
            ServerError: the response is an error.
            StopIteration: there are no more responses.
        """
        __tracebackhide__ = True
        received = None if self._has_ended else self._received.get()
        if received is None:
            self._has_ended = True
            raise StopIteration
        if isinstance(received, ServerError):
            raise received
        return received

    def cancel(self) -> None:
        """Cancel the request, as a client that disconnects.

        Responses that the model still sends are returned all the same.
        """
        self._request.cancellation.cancel()

    def single(self) -> Response:
        """Return the only response of a request that has exactly one.

        Raises:
            ServerError: the response is an error.
            ValueError: there is another number of responses.
        """
        __tracebackhide__ = True
        (response,) = self
        return response


#: None ends the stream.
_Received = Response | ServerError | None


class Model:
    """A model by its name and version. Thread-safe.

    A call uses the version that is loaded at that time.
    """

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
        """Send one request and wait for its response.

        Args:
            inputs: arrays by input name, with the batch dimension if the model has one. Lists and
                scalars are converted to the input's data type.
            **options: see `Options`.

        Returns:
            The response.

        Raises:
            ServerError: the request was rejected or failed; text and code are Triton's.
        """
        __tracebackhide__ = True
        return self._submit([inputs], options, decoupled=False)[0].single()

    def infer_many(self, requests: Sequence[Inputs], **options: Unpack[Options]) -> list[Response]:
        """Submit several requests at once and wait for their responses.

        An idle instance takes the first request at once, unless the model has a queue delay; the
        other requests form batches as in a server.

        Args:
            requests: the inputs of each request, see `infer`.
            **options: the options of all requests, see `Options`.

        Returns:
            The responses in the order of the requests.

        Raises:
            ServerError: the error of the first request that failed.
        """
        __tracebackhide__ = True
        streams = self._submit(requests, options, decoupled=False)
        return [stream.single() for stream in streams]

    def stream(self, inputs: Inputs, **options: Unpack[Options]) -> ResponseStream:
        """Send one request, and return an iterator over its responses.

        A decoupled model may send any number of responses.

        Args:
            inputs: arrays by input name, see `infer`.
            **options: see `Options`.

        Returns:
            The responses in the order of their arrival.

        Raises:
            ServerError: the model is not loaded. Other errors are raised by the iterator.
        """
        return self._submit([inputs], options, decoupled=True)[0]

    def statistics(self) -> Snapshot:
        """Return the counters of the version.

        Raises:
            ServerError: the model is not loaded.
        """
        return self._gateway.statistics(self.name, self.version)[-1]

    def config(self) -> dict[str, Any]:
        """Return the completed configuration, with the field names of config.pbtxt.

        Raises:
            ServerError: the model is not loaded.
        """
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
                streams.append(ResponseStream(request, sink.received))
                try:
                    served.infer(request)
                except ServerError as error:
                    sink.received.put(error)
                    sink.received.put(None)
            return streams

        return call_on(self._loop, submit)


class _Sink:
    """Keeps the responses to one request until the test reads them."""

    def __init__(self) -> None:
        self.received: queue.SimpleQueue[_Received] = queue.SimpleQueue()

    def send(self, response: InferResponse) -> None:
        if response.error is not None:
            self.received.put(response.error)
        elif not response.empty:
            # Copied now: the model may still write to the array.
            outputs = {tensor.name: tensor.array().copy() for tensor in response.outputs}
            self.received.put(
                Response(
                    response.model_name,
                    response.model_version,
                    response.id,
                    outputs,
                    dict(response.parameters),
                )
            )
        if response.final:
            self.received.put(None)


def _tensors(inputs: Inputs, signature: Signature) -> dict[str, Tensor]:
    declared = {tensor.name: tensor.datatype for tensor in signature.inputs}
    return {name: tensor_of(name, value, declared.get(name)) for name, value in inputs.items()}


def tensor_of(name: str, value: npt.ArrayLike, declared: DataType | None = None) -> Tensor:
    """Return a tensor with its own elements, as the model would get them from the network."""
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
        name, DataType.BF16 if is_bfloat16 else datatype_of(array), array.shape, array=array
    )


# -- stubs of models that the model under test calls by BLS

#: Outputs by name.
Outputs = Mapping[str, npt.ArrayLike]
#: Returns outputs for input arrays by name; it may change the arrays. A generator function yields
#: any number of responses, like a decoupled model. An exception becomes the error of the response.
Stub = Callable[[Mapping[str, npt.NDArray[Any]]], Outputs | Iterator[Outputs]]


class StubbedModels:
    """The models that can be called by BLS: stubs, then loaded models. Thread-safe."""

    def __init__(self, loaded: Models) -> None:
        self._loaded = loaded
        self._stubs: dict[str, StubModel] = {}

    def add(self, name: str, stub: Stub) -> None:
        """Let `stub` answer calls to the model `name` from now on."""
        self._stubs[name] = StubModel(name, stub)

    def find(self, name: str, version: int = LATEST) -> CalledModel:
        """Return the stub, which replaces all versions, or the loaded model. Raises ServerError."""
        return self._stubs.get(name) or self._loaded.find(name, version)

    def load(
        self,
        name: str,
        override: Override | None = None,
        *,
        joins: bool = True,
        initializing: str = "",
    ) -> None:
        """Load a model. Raises ServerError."""
        self._loaded.load(name, override, joins=joins, initializing=initializing)

    def unload(self, name: str, *, with_unused: bool = False, initializing: str = "") -> None:
        """Start to unload a model. Raises ServerError."""
        self._loaded.unload(name, with_unused=with_unused, initializing=initializing)


class StubModel:
    """One stub: a CalledModel that answers at once, on the calling thread."""

    group = None

    def __init__(self, name: str, stub: Stub) -> None:
        self.health = Health()
        self._stub = stub
        message = ConfigProto(name=name, backend="python")
        message.model_transaction_policy.decoupled = inspect.isgeneratorfunction(stub)
        self.config = ModelConfig.from_proto(message)

    def infer(self, request: InferRequest) -> None:
        """Answer `request`; errors are sent as responses."""
        given = {name: tensor.array().copy() for name, tensor in request.inputs.items()}
        try:
            answer = self._stub(given)
            if isinstance(answer, Mapping):
                _send(request, outputs=self._outputs(request, answer))
                return
            for outputs in answer:
                _send(request, outputs=self._outputs(request, outputs), final=False)
        except ServerError as error:
            _send(request, error=error)
        except Exception as error:  # like an exception of a model
            _send(request, error=internal(describe(error)))
        else:
            _send(request, empty=True)

    def _outputs(self, request: InferRequest, outputs: Outputs) -> list[Tensor]:
        wanted = request.requested_outputs or outputs
        for name in wanted:
            if name not in outputs:
                raise invalid_arg(
                    f"unexpected inference output '{name}' for model '{request.model_name}'"
                )
        return [tensor_of(name, outputs[name]) for name in wanted]


def _send(request: InferRequest, **fields: Any) -> None:  # noqa: ANN401 - those of InferResponse
    request.sink.send(InferResponse(request.model_name, 1, request.id, **fields))
