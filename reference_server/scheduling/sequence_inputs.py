"""Inputs that the server adds to sequence requests (controls and states), and null requests."""

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
from reference_server.core.cpp import arranged
from reference_server.core.request import InferRequest, InferResponse, ResponseSink, SequenceFlag
from reference_server.core.tensor import DataType, Shape, Tensor
from reference_server.scheduling.sequence_slots import SequenceQueue


class AddedInputs:
    """Adds controls and states to requests, as the model's configuration requires.

    Args:
        config: The model's sequence batching.
        batches: Whether tensors have a batch dimension.
        initial: The initial bytes of states, by input; other states start with zeros.
        shown: The outputs that clients may see; other state outputs are removed.
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
        """Add controls and states to `request`, the next request of `sequence`."""
        self._add_controls(request, ready=True)
        if self._states:
            self._add_states(sequence, request)
        # Triton adds these inputs to the hash table of the request's inputs, whose order models
        # see.
        own = tuple(name for name in request.inputs if name not in self._added)
        request.inputs = {name: request.inputs[name] for name in arranged(self._added, own)}

    def _add_states(self, sequence: SequenceQueue, request: InferRequest) -> None:
        if request.flags & SequenceFlag.START:
            sequence.states.clear()
        for state in self._states:
            current = sequence.states.get(state.input_name)
            request.inputs[state.input_name] = self._first(state) if current is None else current
        if not request.is_started:  # a rescheduled request has this sink already
            request.sink = _StateSink(request.sink, sequence.states, self._inputs, self._shown)

    def null(self, like: InferRequest) -> InferRequest:
        """Return a request that fills an empty slot; its responses are dropped.

        `like` is a request of the same batch with its inputs added. The null request has the same
        shapes, and all elements are zero.
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

    def _first(self, state: SequenceState) -> Tensor:
        """Return the state for the first request of a sequence."""
        shape = (*self._batch, *state.initial_dims)
        data = self._initial.get(state.input_name)
        if data is None:
            data = _zero_bytes(state.datatype, shape)
        return Tensor(state.input_name, state.datatype, shape, raw=memoryview(data))


def correlation_value(correlation_id: int | str, datatype: DataType) -> int | bytes:
    """Return the element of a control tensor of type `datatype` for a correlation id.

    An integer is truncated to the type. For an integer type, a string is read as Triton does: the
    first bytes of its wire form (four bytes of length, then the text) as an integer.
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
    """Return the bytes of a text as received, even if they are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def _zero_bytes(datatype: DataType, shape: Sequence[int]) -> bytes:
    """Return the wire form of zeros or empty strings."""
    return bytes(prod(shape) * (4 if datatype.is_bytes else datatype.byte_size))


def zeros_like(tensor: Tensor) -> Tensor:
    """Return a tensor of zeros or empty strings with the same name, type and shape."""
    assert tensor.datatype is not None
    data = memoryview(_zero_bytes(tensor.datatype, tensor.shape))
    return Tensor(tensor.name, tensor.datatype, tensor.shape, raw=data)


class _StateSink:
    """A sink that moves the state outputs of a request's responses to `states`.

    `inputs` maps each state output to the input that it becomes. Outputs in `shown` are also sent
    to the client. An error response does not change the states.
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
        if response.error is None and not response.empty:
            passed: list[Tensor] = []
            for tensor in response.outputs:
                name = self._inputs.get(tensor.name)
                if name is not None:
                    # A copy: the model may still write to its outputs and inputs.
                    array = tensor.array().copy()
                    self._states[name] = Tensor(name, tensor.datatype, tensor.shape, array=array)
                if name is None or tensor.name in self._shown:
                    passed.append(tensor)
            response.outputs = passed
        self._sink.send(response)


class _DiscardingSink:
    """A sink that drops the responses to null requests."""

    def send(self, response: InferResponse) -> None:
        """Drop the response."""


_DISCARD = _DiscardingSink()
