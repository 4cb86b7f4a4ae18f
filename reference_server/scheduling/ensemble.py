"""The shell that runs an ensemble: each step is a request of its own, sent when it is ready.

Tensors go from step to step by reference. A step is started by the thread that finished the
step before it; nothing waits.
"""

from __future__ import annotations

import logging
import threading

from reference_server.config.schema import ModelConfig
from reference_server.core.clock import Clock
from reference_server.core.errors import ServerError, internal, unavailable
from reference_server.core.ports import Dispatch, EnsembleRecorder
from reference_server.core.request import InferRequest, SequenceFlag
from reference_server.core.response import InferResponse, Timing
from reference_server.core.tensor import Tensor
from reference_server.scheduling.ensemble_graph import EnsembleGraph

log = logging.getLogger(__name__)


class EnsembleScheduler:
    """Runs the requests of one ensemble by sending its steps through `dispatch`."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        dispatch: Dispatch,
        recorder: EnsembleRecorder,
        clock: Clock,
    ) -> None:
        self.name = config.name
        self.version = version
        self.outputs = tuple(output.name for output in config.signature.outputs)
        self.graph = EnsembleGraph(config.ensemble, self.outputs)
        self.dispatch = dispatch
        self.recorder = recorder
        self.clock = clock
        self._closing = False
        self._running = 0
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"EnsembleScheduler({self.name} version {self.version}: {self._running} running)"

    @property
    def pending(self) -> int:
        """None: a request is with its steps at once, and waits there."""
        return 0

    def submit(self, request: InferRequest) -> None:
        """Start the steps that need nothing but the request's inputs."""
        request.queued_ns = self.clock.monotonic_ns()
        with self._changed:
            if self._closing:
                raise unavailable(
                    f"{request.label} Server is stopping, scheduler for model has stopped "
                    "accepting new inference requests"
                )
            self._running += 1
        _Run(self, request).advance()

    def finished(self) -> None:
        """A run has answered its request."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse new requests and wait for those that run."""
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not self._running)


class _Run:
    """One request on its way through the steps; answers it exactly once."""

    def __init__(self, ensemble: EnsembleScheduler, request: InferRequest) -> None:
        self._ensemble = ensemble
        self._request = request
        self._lock = threading.Lock()
        self._tensors: dict[str, Tensor] = dict(request.inputs)
        self._needed = ensemble.graph.needed_for(request.requested_outputs)
        self._started: set[int] = set()
        self._finished: set[int] = set()
        self._timings: list[Timing] = []
        self._began_ns = 0
        self._answered = False

    def advance(self) -> None:
        """Start what is ready; answer when nothing is left to run."""
        with self._lock:
            if self._answered:
                return
            ready = self._ensemble.graph.ready(self._needed, self._started, self._finished)
            self._started.update(ready)
            requests = [self._step_request(index) for index in ready]
            done = self._finished >= self._needed
            self._answered = done
            # The first steps are started within `submit`, before any other call of this.
            self._began_ns = self._began_ns or self._ensemble.clock.monotonic_ns()
        if done:
            self._answer()
        trace = self._request.trace
        for request in requests:
            if trace is not None:
                request.trace = trace.child()
            try:
                self._ensemble.dispatch(request)
            except ServerError as error:
                self._dispatch_failed(request, error)
                return
            except Exception as error:  # a defect of ours must not leave the client waiting
                log.exception("ensemble %s", self._ensemble.name)
                self._dispatch_failed(request, internal(f"{type(error).__name__}: {error}"))
                return

    def _dispatch_failed(self, step: InferRequest, error: ServerError) -> None:
        if step.trace is not None:
            step.trace.close()
        self.fail(error)

    def _step_request(self, index: int) -> InferRequest:
        step = self._ensemble.graph.steps[index]
        request = self._request
        return InferRequest(
            step.model_name,
            {
                name: self._handed_over(tensor).renamed(name)
                for name, tensor in step.inputs.items()
                if tensor in self._tensors
            },
            _StepSink(self, index),
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

    def _handed_over(self, name: str) -> Tensor:
        """By reference; models may change what they are given, so not if others hold it too."""
        tensor = self._tensors[name]
        return tensor.protected() if self._ensemble.graph.is_shared(name) else tensor

    def step_answered(self, index: int, response: InferResponse) -> None:
        """Step `index` has its response: keep its tensors and go on."""
        if response.error is not None:
            self.fail(response.error)
            return
        outputs = self._ensemble.graph.steps[index].outputs
        with self._lock:
            for tensor in response.outputs:
                name = outputs.get(tensor.name)
                if name is not None:
                    self._tensors[name] = tensor.renamed(name)
            if response.timing is not None:
                self._timings.append(response.timing)
            self._finished.add(index)
        self.advance()

    def fail(self, error: ServerError) -> None:
        """Answer with a step's error, unless the request has its answer already."""
        with self._lock:
            if self._answered:
                return
            self._answered = True
        ensemble = self._ensemble
        ensemble.recorder.refused(self._request)
        named = ServerError(error.code, f"in ensemble '{ensemble.name}', {error.message}")
        self._send(InferResponse(ensemble.name, ensemble.version, self._request.id, error=named))

    def _answer(self) -> None:
        ensemble, request = self._ensemble, self._request
        wanted = request.requested_outputs or ensemble.outputs
        outputs = [
            self._tensors[name]
            for name in ensemble.outputs
            if name in wanted and name in self._tensors
        ]
        timing = ensemble.recorder.composed(request, self._began_ns, self._timings)
        self._send(
            InferResponse(
                ensemble.name,
                ensemble.version,
                request.id,
                outputs,
                self._sequence_parameters() * self._answering_steps(outputs),
                timing=timing,
            )
        )

    def _sequence_parameters(self) -> list[tuple[str, bool | int | float | str]]:
        # Triton's ensembles report these three on every reply.
        flags = self._request.flags
        return [
            ("sequence_id", self._request.correlation_id),
            ("sequence_start", bool(flags & SequenceFlag.START)),
            ("sequence_end", bool(flags & SequenceFlag.END)),
        ]

    def _answering_steps(self, outputs: list[Tensor]) -> int:
        """How many steps the reply's tensors come from; Triton repeats the parameters for each.

        A tensor without elements counts as if nobody had given it.
        """
        given = {tensor.name for tensor in outputs if 0 not in tensor.shape}
        return sum(
            not given.isdisjoint(step.outputs.values()) for step in self._ensemble.graph.steps
        )

    def _send(self, response: InferResponse) -> None:
        if self._request.trace is not None:
            self._request.trace.answered(response.outputs)
        self._request.sink.send(response)
        self._ensemble.finished()


class _StepSink:
    """Takes a step's response back to its run."""

    __slots__ = ("_index", "_run")

    def __init__(self, run: _Run, index: int) -> None:
        self._run = run
        self._index = index

    def send(self, response: InferResponse) -> None:
        self._run.step_answered(self._index, response)
