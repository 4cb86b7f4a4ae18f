"""The plan of an ensemble, shared by its requests: order of steps, shapes, requests, responses.

`EnsembleGraph` is the order of the steps. A step is ready when every step that writes one of its
tensors has finished, even if a tensor was not produced: Triton starts the step, and its model then
reports the missing input.

A decoupled step sends any number of responses, and the steps after it run once for each response.
Therefore the steps form stages: a decoupled step is the last of its stage, and each of its
responses starts the next stage. All tensors that a step reads must come from the same response, so
the stages form a chain, and the last stage produces the ensemble's outputs.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar

from reference_server.config.schema import EnsembleStep
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.metadata import Dims, Signature, TensorConfig
from reference_server.core.ports import Clock, Dispatch, EnsembleRecorder
from reference_server.core.request import (
    InferRequest,
    InferResponse,
    Parameter,
    ResponseSink,
    SequenceFlag,
)
from reference_server.core.tensor import Shape, Tensor

#: The origin of tensors that depend on no decoupled step: the request itself.
_REQUEST = -1
Tensors = Mapping[str, Tensor]


class SequencePlace(NamedTuple):
    """The place of a request or tensor in a sequence: the sequence's id and the flags."""

    correlation_id: int | str
    flags: SequenceFlag


#: For each tensor whose place differs from that of the ensemble's request, the place.
Places = Mapping[str, SequencePlace]


class EnsembleGraph:
    """The steps of one ensemble and their dependencies. Immutable.

    Args:
        steps: The steps, in the order of the configuration.
        outputs: The names of the ensemble's outputs.
        decoupled: The indices of the steps whose models are decoupled.
    """

    def __init__(
        self,
        steps: Sequence[EnsembleStep],
        outputs: Collection[str],
        decoupled: Collection[int] = (),
    ) -> None:
        self.steps = tuple(steps)
        self.decoupled = frozenset(decoupled)
        self._outputs = frozenset(outputs)
        writer = {
            tensor: index for index, step in enumerate(steps) for tensor in step.outputs.values()
        }
        self._sources = tuple(
            frozenset(writer[tensor] for tensor in step.inputs.values() if tensor in writer)
            for step in steps
        )
        self._writer = writer
        holders = Counter(chain(self._outputs, *(step.inputs.values() for step in steps)))
        self._shared = frozenset(tensor for tensor, count in holders.items() if count > 1)
        self._origins, self._mixes = self._trace_origins()
        self._stage = tuple(self._depth(index) for index in range(len(self.steps)))
        self._whole = self._staged(self.needed_for(()))

    def _trace_origins(self) -> tuple[dict[int, int], bool]:
        """Return the origin of each step, and whether a step or the client has several origins.

        The origin is the decoupled step whose responses the inputs depend on, or the request.
        """
        origins: dict[int, int] = {}
        mixes = False
        steps = frozenset(range(len(self.steps)))
        while ready := self.ready(steps, origins.keys(), origins.keys()):
            for index in ready:
                read = self._origins_of(self.steps[index].inputs.values(), origins)
                mixes = mixes or len(read) > 1
                origins[index] = min(read, default=_REQUEST)
        return origins, mixes or len(self._origins_of(self._outputs, origins)) > 1

    def _origins_of(self, tensors: Iterable[str], origins: dict[int, int]) -> set[int]:
        writers = {self._writer.get(tensor, _REQUEST) for tensor in tensors}
        return {
            writer if writer in self.decoupled else origins.get(writer, _REQUEST)
            for writer in writers
        }

    def _depth(self, index: int) -> int:
        origin = self._origins.get(index, _REQUEST)
        return 0 if origin == _REQUEST else 1 + self._depth(origin)

    @property
    def mixes_answers(self) -> bool:
        """True if a step or the client would receive tensors of different responses."""
        return self._mixes

    @property
    def last_stage(self) -> int:
        """The number of the stage that produces the outputs; 0 if no step is decoupled."""
        return len(self._whole) - 1

    def is_shared(self, tensor: str) -> bool:
        """Return whether several steps, or a step and the client, receive `tensor`."""
        return tensor in self._shared

    def stages(self, requested: Collection[str]) -> tuple[frozenset[int], ...]:
        """Return the steps that produce the `requested` outputs, by default all, by stage."""
        return self._staged(self.needed_for(requested)) if requested else self._whole

    def _staged(self, needed: Iterable[int]) -> tuple[frozenset[int], ...]:
        last = max((self._stage[index] + 1 for index in self.decoupled), default=0)
        stages: list[set[int]] = [set() for _ in range(last + 1)]
        for index in needed:
            stages[self._stage[index]].add(index)
        return tuple(map(frozenset, stages))

    def needed_for(self, requested: Collection[str]) -> frozenset[int]:
        """Return the steps that produce the `requested` outputs, by default all."""
        wanted = [
            self._writer[tensor]
            for tensor in (requested or self._outputs)
            if tensor in self._writer
        ]
        needed: set[int] = set()
        while wanted:
            index = wanted.pop()
            if index not in needed:
                needed.add(index)
                wanted.extend(self._sources[index])
        return frozenset(needed)

    def ready(
        self, needed: AbstractSet[int], started: AbstractSet[int], finished: AbstractSet[int]
    ) -> list[int]:
        """Return the steps of `needed` that can start now, in the order of the configuration."""
        return sorted(index for index in needed - started if self._sources[index] <= finished)


class BatchDimAdapter:
    """Adapts the shapes of an ensemble's tensors to the receiving model or client. Immutable.

    If only the sender or only the receiver has a batch dimension, the dimension is removed or
    added. Otherwise a tensor keeps its shape; a model refuses a shape that does not fit.

    Args:
        signature: The ensemble's inputs and outputs.
        steps: The steps, in the order of the configuration.
        models: The inputs and outputs of the steps' models, in the same order.
    """

    def __init__(
        self, signature: Signature, steps: Sequence[EnsembleStep], models: Sequence[Signature]
    ) -> None:
        batched = {tensor.name: signature.batches for tensor in signature.inputs}
        for step, model in zip(steps, models, strict=True):
            batched.update(dict.fromkeys(step.outputs.values(), model.batches))
        self._inputs = tuple(
            _differing(model, model.inputs, step.inputs, batched)
            for step, model in zip(steps, models, strict=True)
        )
        inner = [tensor.inner for tensor in signature.outputs]  # before any `reshape`
        names = {tensor.name: tensor.name for tensor in signature.outputs}
        self._outputs = _differing(signature, inner, names, batched)
        self._model_batches = tuple(model.batches for model in models)
        self._batches = signature.batches

    def for_step(self, step: int, name: str, shape: Shape) -> Shape:
        """Return the shape for the input `name` of a step's model."""
        dims = self._inputs[step].get(name)
        return shape if dims is None else _adapted(shape, dims, batches=self._model_batches[step])

    def for_client(self, name: str, shape: Shape) -> Shape:
        """Return the shape for the ensemble's output `name`, before any `reshape`."""
        dims = self._outputs.get(name)
        return shape if dims is None else _adapted(shape, dims, batches=self._batches)


def _differing(
    receiver: Signature,
    tensors: Sequence[TensorConfig],
    names: Mapping[str, str],
    batched: Mapping[str, bool],
) -> dict[str, Dims]:
    """Return the dims of `tensors` whose writer and `receiver` differ in the batch dimension."""
    return {
        tensor.name: tensor.dims
        for tensor in tensors
        if tensor.name in names
        and batched.get(names[tensor.name], receiver.batches) is not receiver.batches
    }


def _adapted(shape: Shape, dims: Dims, *, batches: bool) -> Shape:
    fits = len(shape) == len(dims) and all(
        size == dim or dim == -1 for size, dim in zip(shape, dims, strict=True)
    )
    if batches:
        return (1, *shape) if fits else shape
    return shape[1:] if not fits and shape[:1] == (1,) else shape


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """The plan of one ensemble; `outputs` are in the order of the responses. Thread-safe."""

    name: str
    version: int
    outputs: tuple[str, ...]
    graph: EnsembleGraph
    shapes: BatchDimAdapter
    dispatch: Dispatch
    recorder: EnsembleRecorder
    clock: Clock

    def step_request(
        self,
        request: InferRequest,
        step_index: int,
        tensors: Tensors,
        sink: ResponseSink,
        places: Places = MappingProxyType({}),
    ) -> InferRequest:
        """Return the request of a step on behalf of `request`. Missing tensors are left out."""
        step = self.graph.steps[step_index]
        place = self.place_of_step(request, step_index, places) if places else request
        return InferRequest(
            step.model_name,
            {
                name: self._step_input(step_index, name, tensors[tensor])
                for name, tensor in step.inputs.items()
                if tensor in tensors
            },
            sink,
            model_version=step.model_version,
            id=request.id,
            requested_outputs=tuple(step.outputs),
            parameters=request.parameters,
            correlation_id=place.correlation_id,
            flags=place.flags,
            priority=request.priority,
            timeout_us=request.timeout_us,
            cancellation=request.cancellation,
        )

    def place_of_step(
        self, request: InferRequest, step_index: int, places: Places
    ) -> SequencePlace:
        """Return a step's sequence place: the place of an input, else the place of the request."""
        read = self.graph.steps[step_index].inputs.values()
        return next((places[name] for name in read if name in places), place_of(request))

    def _step_input(self, step_index: int, name: str, tensor: Tensor) -> Tensor:
        """Return the input `name` of a step.

        The tensor is passed by reference. A shared tensor is read-only, because models may modify
        inputs.
        """
        passed = tensor.renamed(name, self.shapes.for_step(step_index, name, tensor.shape))
        return passed.protected() if self.graph.is_shared(tensor.name) else passed

    def answer(
        self,
        request: InferRequest,
        tensors: Tensors,
        places: Places = MappingProxyType({}),
        *,
        final: bool,
    ) -> InferResponse:
        """Return a response with the requested outputs that were produced."""
        wanted = request.requested_outputs or self.outputs
        outputs = [
            self._client_output(tensors[name])
            for name in self.outputs
            if name in wanted and name in tensors
        ]
        # Triton repeats the parameters for each output that has elements.
        own = place_of(request)
        parameters = [
            parameter
            for tensor in outputs
            if 0 not in tensor.shape
            for parameter in _sequence_parameters(places.get(tensor.name, own))
        ]
        return InferResponse(self.name, self.version, request.id, outputs, parameters, final=final)

    def _client_output(self, tensor: Tensor) -> Tensor:
        shape = self.shapes.for_client(tensor.name, tensor.shape)
        return tensor if shape is tensor.shape else tensor.renamed(tensor.name, shape)

    def failure(self, request: InferRequest, error: ServerError) -> InferResponse:
        """Return the response after a step has failed."""
        named = ServerError(error.code, f"in ensemble '{self.name}', {error.message}")
        return InferResponse(self.name, self.version, request.id, error=named)

    def ending(self, request: InferRequest, *, has_answered: bool) -> InferResponse:
        """Return the final response of a request of which no step is left."""
        if has_answered or self.graph.decoupled:
            return InferResponse(self.name, self.version, request.id, empty=True)
        return self.failure(
            request,
            invalid_arg(
                "unexpected deadlock, at least one output is not set while no more ensemble "
                "steps can be made"
            ),
        )


def place_of(request: InferRequest) -> SequencePlace:
    """Return the sequence place of a request."""
    return SequencePlace(request.correlation_id, request.flags)


_START, _END = int(SequenceFlag.START), int(SequenceFlag.END)
_FLAGS = {"sequence_start": SequenceFlag.START, "sequence_end": SequenceFlag.END}


def placed_by(parameters: Iterable[tuple[str, Parameter]], place: SequencePlace) -> SequencePlace:
    """Return `place`, changed by the parameters of a step's response. Raises ServerError."""
    correlation_id, flags = place
    for name, value in parameters:
        if name == "sequence_id":
            if isinstance(value, (bool, float)):
                raise invalid_arg(
                    "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or "
                    "TRITONSERVER_PARAMETER_STRING"
                )
            correlation_id = value % 2**64 if isinstance(value, int) else value
        elif (flag := _FLAGS.get(name)) is not None:
            if not isinstance(value, bool):
                raise invalid_arg(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
            flags = flags | flag if value else flags & ~flag
    return SequencePlace(correlation_id, flags)


def _sequence_parameters(place: SequencePlace) -> list[tuple[str, Parameter]]:
    # Triton's ensembles send these three parameters with every response.
    flags = int(place.flags)  # an enum's `&` is slow
    return [
        ("sequence_id", place.correlation_id),
        ("sequence_start", bool(flags & _START)),
        ("sequence_end", bool(flags & _END)),
    ]


# -- `max_inflight_requests`: limits on the in-flight requests of each step

# As in newer releases of Triton, the limit applies to a step and is shared by all requests of the
# ensemble: a step has `limit` places for requests in flight. A waiting step blocks no thread: the
# thread that frees a place starts the next step.

BranchT = TypeVar("BranchT", contravariant=True)


class Starter(Protocol[BranchT]):
    """The run of one ensemble request."""

    def start_held(self, branch: BranchT, index: int) -> None:
        """Start step `index`, which waited for a place, or release the place."""


class StepLimits(Generic[BranchT]):
    """Limits the in-flight requests of each step of one ensemble to `limit`. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._sent: Counter[int] = Counter()
        self._held: dict[int, deque[tuple[Starter[BranchT], BranchT]]] = {}
        self._freed: deque[tuple[Starter[BranchT], BranchT, int]] = deque()
        self._is_starting = False

    def may_start(self, starter: Starter[BranchT], branch: BranchT, index: int) -> bool:
        """Take a place of step `index`. Return False if the step must wait for a free place."""
        with self._lock:
            if self._sent[index] < self._limit:
                self._sent[index] += 1
                return True
            self._held.setdefault(index, deque()).append((starter, branch))
            return False

    def release(self, index: int) -> None:
        """Release the place of a step that has ended or was never sent.

        The caller calls `start_freed` afterwards.
        """
        with self._lock:
            held = self._held.get(index)
            if held:  # the first waiting step takes over the place
                self._freed.append((*held.popleft(), index))
            else:
                self._sent[index] -= 1

    def forget(self, starter: Starter[BranchT]) -> int:
        """Drop the waiting steps of `starter`. Return their number."""
        count = 0
        with self._lock:
            for index, held in self._held.items():
                kept = deque(each for each in held if each[0] is not starter)
                count += len(held) - len(kept)
                self._held[index] = kept
        return count

    def start_freed(self) -> None:
        """Start the waiting steps that have received a place. Sends requests, so hold no lock.

        Only one thread at a time does this, in a loop. Otherwise the calls would nest, since a step
        that is answered immediately frees its place for the next step.
        """
        while True:
            with self._lock:
                if self._is_starting or not self._freed:
                    return
                self._is_starting = True
                starter, branch, index = self._freed.popleft()
            try:
                starter.start_held(branch, index)
            finally:
                with self._lock:
                    self._is_starting = False
