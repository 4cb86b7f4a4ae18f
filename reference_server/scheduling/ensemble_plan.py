"""The plan of an ensemble, for all of its requests: order of steps, shapes, requests, answers.

`EnsembleGraph` is the order of the steps. A step is ready when every step that writes one of its
tensors has finished, whether or not the tensor was produced: Triton starts it all the same, and the
step's model then says what it misses.

A decoupled step answers any number of times, and what follows it runs once for each answer. So the
steps fall into stages: a decoupled step is the last of its stage, and each of its answers begins
the next one. All that a step reads must come from one and the same answer, so the stages stand in
a row, and the ensemble's outputs come from the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

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

#: Where tensors come from that no decoupled step has answered with: the request itself.
_REQUEST = -1
Tensors = Mapping[str, Tensor]


class SequencePlace(NamedTuple):
    """Which sequence something belongs to, and whether it begins or ends it."""

    correlation_id: int | str
    flags: SequenceFlag


#: For tensors by name, where it is not that of the ensemble's request.
Places = Mapping[str, SequencePlace]


class EnsembleGraph:
    """The steps of one ensemble and who waits for whom. Immutable; any thread.

    `steps` by index; `outputs` are the ensemble's output tensors; `decoupled` the steps whose
    models answer as often as they like.
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
        self._origins, self._mixes = self._traced()
        self._stage = tuple(self._depth(index) for index in range(len(self.steps)))
        self._whole = self._staged(self.needed_for(()))

    def _traced(self) -> tuple[dict[int, int], bool]:
        """For each step whose answer its inputs belong to, and whether any has more than one."""
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
        """True if a step, or the client, would be given tensors of different answers."""
        return self._mixes

    @property
    def last_stage(self) -> int:
        """The number of the stage that the outputs come from; 0 if no step is decoupled."""
        return len(self._whole) - 1

    def is_shared(self, tensor: str) -> bool:
        """True if more than one step, or a step and the client, are given `tensor`."""
        return tensor in self._shared

    def stages(self, requested: Collection[str]) -> tuple[frozenset[int], ...]:
        """The steps that must run to give `requested` outputs, by stage; all if it is empty."""
        return self._staged(self.needed_for(requested)) if requested else self._whole

    def _staged(self, needed: Iterable[int]) -> tuple[frozenset[int], ...]:
        last = max((self._stage[index] + 1 for index in self.decoupled), default=0)
        stages: list[set[int]] = [set() for _ in range(last + 1)]
        for index in needed:
            stages[self._stage[index]].add(index)
        return tuple(map(frozenset, stages))

    def needed_for(self, requested: Collection[str]) -> frozenset[int]:
        """The steps that must run to give `requested` outputs; all outputs if it is empty."""
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
        """The steps among `needed` that can start now, in the order of the configuration."""
        return sorted(index for index in needed - started if self._sources[index] <= finished)


class BatchDimAdapter:
    """The shapes of an ensemble's tensors, as its models and its client take them. Immutable.

    Between models of which only one has a batch dimension, that is put on or taken off. Where both
    have it, or neither does, a tensor goes on as it is; a shape that then does not fit is refused
    by the model that it is given to.

    `signature` is the ensemble's, `models` are those of its `steps`, in their order.
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
        made = [tensor.inner for tensor in signature.outputs]  # clients see them reshaped
        names = {tensor.name: tensor.name for tensor in signature.outputs}
        self._outputs = _differing(signature, made, names, batched)
        self._model_batches = tuple(model.batches for model in models)
        self._batches = signature.batches

    def for_step(self, step: int, name: str, shape: Shape) -> Shape:
        """The shape of the input `name` of a step's model."""
        dims = self._inputs[step].get(name)
        return shape if dims is None else _adapted(shape, dims, batches=self._model_batches[step])

    def for_client(self, name: str, shape: Shape) -> Shape:
        """The shape of the ensemble's output `name`, before any `reshape`."""
        dims = self._outputs.get(name)
        return shape if dims is None else _adapted(shape, dims, batches=self._batches)


def _differing(
    taker: Signature,
    tensors: Sequence[TensorConfig],
    names: Mapping[str, str],
    batched: Mapping[str, bool],
) -> dict[str, Dims]:
    """The dims of those `tensors` that come from a model that batches otherwise than `taker`."""
    return {
        tensor.name: tensor.dims
        for tensor in tensors
        if tensor.name in names
        and batched.get(names[tensor.name], taker.batches) is not taker.batches
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
    """One ensemble. Any thread.

    `outputs` in the order of answers.
    """

    name: str
    version: int
    outputs: tuple[str, ...]
    graph: EnsembleGraph
    fitting: BatchDimAdapter
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
        """What a step is asked on behalf of `request`, with those of its `tensors` there are."""
        step = self.graph.steps[step_index]
        place = self.place_of_step(request, step_index, places) if places else request
        return InferRequest(
            step.model_name,
            {
                name: self._handed_over(step_index, name, tensors[tensor])
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
        """Where a step is in which sequence: as one of its inputs says, else as the request."""
        read = self.graph.steps[step_index].inputs.values()
        return next((places[name] for name in read if name in places), place_of(request))

    def _handed_over(self, step_index: int, name: str, tensor: Tensor) -> Tensor:
        """By reference; models may change what they are given, so not if others hold it too."""
        given = tensor.renamed(name, self.fitting.for_step(step_index, name, tensor.shape))
        return given.protected() if self.graph.is_shared(tensor.name) else given

    def answer(
        self,
        request: InferRequest,
        tensors: Tensors,
        places: Places = MappingProxyType({}),
        *,
        final: bool,
    ) -> InferResponse:
        """An answer with those of the wanted outputs that were made."""
        wanted = request.requested_outputs or self.outputs
        outputs = [
            self._returned(tensors[name])
            for name in self.outputs
            if name in wanted and name in tensors
        ]
        # Triton repeats them for each output; one without elements counts as not given.
        own = place_of(request)
        parameters = [
            parameter
            for tensor in outputs
            if 0 not in tensor.shape
            for parameter in _sequence_parameters(places.get(tensor.name, own))
        ]
        return InferResponse(self.name, self.version, request.id, outputs, parameters, final=final)

    def _returned(self, tensor: Tensor) -> Tensor:
        shape = self.fitting.for_client(tensor.name, tensor.shape)
        return tensor if shape is tensor.shape else tensor.renamed(tensor.name, shape)

    def failure(self, request: InferRequest, error: ServerError) -> InferResponse:
        """The answer when a step has failed."""
        named = ServerError(error.code, f"in ensemble '{self.name}', {error.message}")
        return InferResponse(self.name, self.version, request.id, error=named)

    def ending(self, request: InferRequest, *, has_answered: bool) -> InferResponse:
        """The last answer where no step is left that could give one."""
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
    """Where a request is in which sequence."""
    return SequencePlace(request.correlation_id, request.flags)


_START, _END = int(SequenceFlag.START), int(SequenceFlag.END)
_FLAGS = {"sequence_start": SequenceFlag.START, "sequence_end": SequenceFlag.END}


def placed_by(parameters: Iterable[tuple[str, Parameter]], place: SequencePlace) -> SequencePlace:
    """`place` as the parameters of a step's response change it. Raises ServerError."""
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
    # Triton's ensembles report these three on every reply.
    flags = int(place.flags)  # an enum's `&` is slow
    return [
        ("sequence_id", place.correlation_id),
        ("sequence_start", bool(flags & _START)),
        ("sequence_end", bool(flags & _END)),
    ]
