"""The inputs that the server adds to requests of sequences: controls and states; null requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from reference_server.config.scheduler_settings import (
    ControlKind,
    SequenceBatching,
    SequenceControl,
    SequenceState,
)
from reference_server.core.dtypes import DataType
from reference_server.core.hash_order import arranged
from reference_server.core.request import InferRequest, InferResponse, ResponseSink, SequenceFlag
from reference_server.core.tensor import Shape, Tensor
from reference_server.scheduling.sequence.slots import SequenceQueue


class AddedInputs:
    """Adds controls and states to requests as the model's configuration says.

    `initial` has the bytes that a sequence's states begin with, by input; others begin with zeros.
    `shown` are the state outputs that clients may see.
    """

    def __init__(
        self,
        config: SequenceBatching,
        *,
        batches: bool,
        initial: Mapping[str, bytes],
        shown: frozenset[str],
    ) -> None:
        self._batch: Shape = (1,) if batches else ()
        self._controls = config.controls
        self._states = config.states
        self._initial = initial
        self._inputs = {state.output_name: state.input_name for state in config.states}
        self._shown = shown
        added = [
            *(control.name for control in config.controls),
            *(state.input_name for state in config.states),
        ]
        self._added = tuple(dict.fromkeys(added))

    def add(self, sequence: SequenceQueue, request: InferRequest) -> None:
        """Give `request`, the next one of `sequence`, its controls and states."""
        self._add_controls(request, ready=True)
        if self._states:
            self._add_states(sequence, request)
        # Triton puts them into the table of the request's own inputs, whose order models see.
        own = tuple(name for name in request.inputs if name not in self._added)
        request.inputs = {name: request.inputs[name] for name in arranged(self._added, own)}

    def _add_states(self, sequence: SequenceQueue, request: InferRequest) -> None:
        if request.flags & SequenceFlag.START:
            sequence.states.clear()
        for state in self._states:
            left = sequence.states.get(state.input_name)
            request.inputs[state.input_name] = self._begun(state) if left is None else left
        if not request.is_begun:  # it has one when it comes again
            request.sink = _StateSink(request.sink, sequence.states, self._inputs, self._shown)

    def null(self, like: InferRequest) -> InferRequest:
        """A request that fills the slot of a sequence which has none; nobody hears its answer.

        `like` is a request of the same batch with its inputs added: shapes are the same, elements
        are zeros.
        """
        inputs = {name: zeros_like(tensor) for name, tensor in like.inputs.items()}
        request = InferRequest(
            like.model_name,
            inputs,
            _DISCARD,
            like.model_version,
            batch_size=0,
            batch_key=like.batch_key,
            received_ns=like.received_ns,
            queued_ns=like.queued_ns,
        )
        self._add_controls(request, ready=False)
        return request

    def _add_controls(self, request: InferRequest, *, ready: bool) -> None:
        for control in self._controls:
            array = self._control(control, request, ready=ready)
            request.inputs[control.name] = Tensor(
                control.name, control.datatype, array.shape, array=array
            )

    def _control(
        self, control: SequenceControl, request: InferRequest, *, ready: bool
    ) -> npt.NDArray[np.generic]:
        shape = (*self._batch, 1)
        if control.kind is ControlKind.CORRID:
            value = correlation_value(request.correlation_id, control.datatype)
            return np.full(shape, value, control.datatype.numpy)
        holds = {
            ControlKind.START: bool(request.flags & SequenceFlag.START),
            ControlKind.END: bool(request.flags & SequenceFlag.END),
            ControlKind.READY: ready,
        }[control.kind]
        return np.full(shape, control.values[holds], control.datatype.numpy)

    def _begun(self, state: SequenceState) -> Tensor:
        shape = (*self._batch, *state.initial_dims)
        data = self._initial.get(state.input_name)
        if data is None:
            data = _zero_bytes(state.datatype, shape)
        return Tensor(state.input_name, state.datatype, shape, raw=memoryview(data))


def correlation_value(correlation_id: int | str, datatype: DataType) -> int | bytes:
    """What a correlation id is in a control tensor of that type.

    An integer is cut to the type. A string in an integer is its wire form, read as one: four bytes
    of length and the first of its letters, as Triton has it.
    """
    if datatype is DataType.BYTES:
        return _text(str(correlation_id or ""))
    size = datatype.byte_size
    if isinstance(correlation_id, str):
        text = _text(correlation_id)
        wire = len(text).to_bytes(4, "little") + text
        bits = wire[:size].ljust(size, b"\0")
    else:
        bits = (correlation_id % 2 ** (8 * size)).to_bytes(size, "little")
    return int.from_bytes(bits, "little", signed=datatype in (DataType.INT32, DataType.INT64))


def _text(text: str) -> bytes:
    """The bytes that arrived, be they UTF-8 or not."""
    return text.encode("utf-8", "surrogateescape")


def _zero_bytes(datatype: DataType, shape: Sequence[int]) -> bytes:
    """The wire form of zeros, or of empty strings."""
    return bytes(prod(shape) * (4 if datatype.is_bytes else datatype.byte_size))


def zeros_like(tensor: Tensor) -> Tensor:
    """Zeros, or empty strings, under the same name and in the same shape."""
    assert tensor.datatype is not None
    data = memoryview(_zero_bytes(tensor.datatype, tensor.shape))
    return Tensor(tensor.name, tensor.datatype, tensor.shape, raw=data)


class _StateSink:
    """Takes the state outputs out of a request's responses, and keeps them in `states`.

    `inputs` names the input that each state output becomes; `shown` are those that go to the
    client as well. A response with an error leaves the states as they were.
    """

    def __init__(
        self,
        sink: ResponseSink,
        states: dict[str, Tensor],
        inputs: Mapping[str, str],
        shown: frozenset[str],
    ) -> None:
        self._sink = sink
        self._states = states
        self._inputs = inputs
        self._shown = shown

    def send(self, response: InferResponse) -> None:
        """Keep the states, and pass on the rest."""
        if response.error is None and not response.empty:
            passed: list[Tensor] = []
            for tensor in response.outputs:
                name = self._inputs.get(tensor.name)
                if name is not None:
                    # A copy: the model may go on writing to what it answered, or was given.
                    array = tensor.array().copy()
                    self._states[name] = Tensor(name, tensor.datatype, tensor.shape, array=array)
                if name is None or tensor.name in self._shown:
                    passed.append(tensor)
            response.outputs = passed
        self._sink.send(response)


class _DiscardingSink:
    """Where the answers to null requests go."""

    def send(self, response: InferResponse) -> None:
        """Drop it."""


_DISCARD = _DiscardingSink()
