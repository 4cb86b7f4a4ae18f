"""What the requests of one ensemble have in common: how steps are asked, and clients answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.ports import Clock, Dispatch, EnsembleRecorder
from reference_server.core.request import InferRequest, Parameter, ResponseSink, SequenceFlag
from reference_server.core.response import InferResponse
from reference_server.core.tensor import Tensor
from reference_server.scheduling.ensemble_graph import EnsembleGraph
from reference_server.scheduling.ensemble_shapes import Fitting

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """One ensemble. Any thread.

    `outputs` in the order of the configuration. Of one step of one request no more than
    `max_inflight` are sent at a time; 0 is any number.
    """

    name: str
    version: int
    outputs: tuple[str, ...]
    graph: EnsembleGraph
    fitting: Fitting
    max_inflight: int
    dispatch: Dispatch
    recorder: EnsembleRecorder
    clock: Clock

    def step_request(
        self, request: InferRequest, step_index: int, tensors: Tensors, sink: ResponseSink
    ) -> InferRequest:
        """What a step is asked on behalf of `request`, with those of its `tensors` there are."""
        step = self.graph.steps[step_index]
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
            correlation_id=request.correlation_id,
            flags=request.flags,
            priority=request.priority,
            timeout_us=request.timeout_us,
            cancellation=request.cancellation,
        )

    def _handed_over(self, step_index: int, name: str, tensor: Tensor) -> Tensor:
        """By reference; models may change what they are given, so not if others hold it too."""
        given = tensor.renamed(name, self.fitting.for_step(step_index, name, tensor.shape))
        return given.protected() if self.graph.is_shared(tensor.name) else given

    def answer(self, request: InferRequest, tensors: Tensors, *, final: bool) -> InferResponse:
        """An answer with those of the wanted outputs that were made."""
        wanted = request.requested_outputs or self.outputs
        outputs = [
            self._returned(tensors[name])
            for name in self.outputs
            if name in wanted and name in tensors
        ]
        # Triton repeats them for each output; one without elements counts as not given.
        given = sum(0 not in tensor.shape for tensor in outputs)
        parameters = _sequence_parameters(request) * given
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


def _sequence_parameters(request: InferRequest) -> list[tuple[str, Parameter]]:
    # Triton's ensembles report these three on every reply.
    return [
        ("sequence_id", request.correlation_id),
        ("sequence_start", bool(request.flags & SequenceFlag.START)),
        ("sequence_end", bool(request.flags & SequenceFlag.END)),
    ]
