"""The scheduler of ensembles: each step is a separate request, sent when it is ready.

Tensors are passed from step to step by reference. The thread that delivers a step's response starts
the steps that depend on it; no thread waits. Each response of a decoupled step starts a new branch,
so that tensors of different responses are never mixed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from reference_server.config.schema import ModelConfig
from reference_server.core.cpp import arranged
from reference_server.core.errors import Code, ServerError, internal
from reference_server.core.ports import Clock, Dispatch, EnsembleRecorder
from reference_server.core.request import InferRequest, InferResponse, Timing, answer, deliver
from reference_server.core.rules import OutputLayouts, ShowingSink
from reference_server.core.telemetry import FailureReason
from reference_server.core.tensor import Tensor
from reference_server.scheduling.ensemble_plan import (
    BatchDimAdapter,
    EnsembleGraph,
    EnsemblePlan,
    SequencePlace,
    StepLimits,
    place_of,
    placed_by,
)
from reference_server.scheduling.execution import COUNTING
from reference_server.scheduling.work_queue import CANCELLED, stopped

log = logging.getLogger(__name__)


class EnsembleScheduler:
    """Runs the requests of one ensemble by sending its steps. Thread-safe.

    Args:
        config: The ensemble's configuration.
        version: The ensemble's version.
        models: The configurations of the steps' models, in the order of the steps.
        dispatch: Sends the request of a step.
        recorder: Counts the results.
        clock: The source of all times.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        models: Sequence[ModelConfig],
        dispatch: Dispatch,
        recorder: EnsembleRecorder,
        clock: Clock,
    ) -> None:
        # Responses list outputs in the order of Triton's hash table of the configuration.
        outputs = arranged(tuple(output.name for output in config.signature.outputs))
        decoupled = [index for index, model in enumerate(models) if model.decoupled]
        self._plan = EnsemblePlan(
            config.name,
            version,
            outputs,
            EnsembleGraph(config.ensemble, outputs, decoupled),
            BatchDimAdapter(
                config.signature, config.ensemble, [model.signature for model in models]
            ),
            dispatch,
            recorder,
            clock,
        )
        limit = config.max_inflight_requests
        self._limits: StepLimits[_Branch] | None = StepLimits(limit) if limit else None
        if limit:
            log.info(
                "Ensemble model '%s' configured with max_inflight_requests: %d", config.name, limit
            )
        self._layouts = OutputLayouts(config.signature)
        self._closing = False
        self._running = 0
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        plan = self._plan
        return f"EnsembleScheduler({plan.name} version {plan.version}: {self._running} running)"

    @property
    def pending(self) -> int:
        """Zero, because the steps of a request are sent immediately, and wait at their models."""
        return 0

    @property
    def in_flight(self) -> int:
        """The number of requests without a final response."""
        return self._running

    def refuse(self) -> None:
        """Do nothing: as in Triton, the models of the steps refuse, even requests in flight."""

    def submit(self, request: InferRequest) -> None:
        """Start the steps that need only the request's inputs."""
        request.queued_ns = self._plan.clock.monotonic_ns()
        with self._changed:
            if self._closing:
                raise stopped(request)
            self._running += 1
        if self._layouts:
            request.sink = ShowingSink(self._layouts, request.sink)
        EnsembleRun(self._plan, request, self._finished, self._limits).start()

    def _finished(self) -> None:
        """Record that a run has sent its final response."""
        with self._changed:
            self._running -= 1
            if self._closing:
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse new requests and wait for the requests in flight."""
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not self._running)


class _Branch:
    """The tensors of the request, or the tensors that depend on one response of a decoupled step.

    `places` has the sequence places of the tensors whose place differs from the request's.
    """

    __slots__ = ("finished", "places", "stage", "started", "tensors")

    def __init__(self, stage: int, tensors: dict[str, Tensor]) -> None:
        self.stage = stage
        self.tensors = tensors
        self.places: dict[str, SequencePlace] = {}
        self.started: set[int] = set()
        self.finished: set[int] = set()


#: A step to send: the branch that has its tensors, and the step's index.
_Start = tuple[_Branch, int]


class EnsembleRun:
    """The run of one request; calls `finished` after the final response. Thread-safe."""

    def __init__(
        self,
        plan: EnsemblePlan,
        request: InferRequest,
        finished: Callable[[], None],
        limits: StepLimits[_Branch] | None = None,
    ) -> None:
        self._plan = plan
        self._limits = limits
        self._request = request
        self._finished = finished
        self._needed = plan.graph.stages(request.requested_outputs)
        self._lock = threading.Lock()
        self._running = 0  # steps without a final response, including steps that a limit delays
        self._timings: list[Timing] = []
        self._start_ns = 0
        self._has_answered = False
        self._is_over = False
        self._has_failed = False
        self._failed_alone = False
        self._outbox: deque[InferResponse] = deque()
        self._is_sending = False

    def start(self) -> None:
        """Send the first steps."""
        self._start_ns = self._plan.clock.monotonic_ns()
        with self._lock:
            starts = self._advance(_Branch(0, dict(self._request.inputs)))
        self._act(starts)
        if self._limits is not None:
            self._limits.start_freed()

    def start_held(self, branch: _Branch, index: int) -> None:
        """Send a step that a limit has delayed, unless the request has its final response."""
        with self._lock:
            is_over = self._is_over
        if is_over:
            self._release([(branch, index)])
        else:
            self._act([(branch, index)])

    def step_answered(self, branch: _Branch, index: int, response: InferResponse) -> None:
        """Store the tensors of a step's response and start the steps that are ready."""
        limits = self._limits
        if limits is None:
            self._step_answered(branch, index, response)
            return
        if response.final:
            limits.release(index)
        self._step_answered(branch, index, response)
        limits.start_freed()

    def _step_answered(self, branch: _Branch, index: int, response: InferResponse) -> None:
        if response.error is not None:
            self._fail(response.error, ended=int(response.final))
            return
        try:
            place = self._place(branch, index, response)
        except ServerError as error:
            self._fail(error, ended=int(response.final))
            return
        with self._lock:
            if self._is_over:
                return
            if response.timing is not None:
                self._timings.append(response.timing)
            if response.final:
                self._running -= 1
            changed = None if response.empty else self._store(branch, index, response, place)
            starts = self._advance(changed)
        self._act(starts)

    def step_timed(self, timing: Timing) -> None:
        """Record the timing of a step whose responses carry no timing.

        The call may come after the final response of the ensemble.
        """
        with self._lock:
            if not self._is_over:
                self._timings.append(timing)
                return
            if self._has_failed:
                return
        self._plan.recorder.took_longer(self._request, timing)
        if self._request.timed is not None:
            self._request.timed(timing)

    def _place(self, branch: _Branch, index: int, response: InferResponse) -> SequencePlace | None:
        """Return the sequence place of a response's tensors; None: the place of the request."""
        if not response.parameters and not branch.places:
            return None
        own = self._plan.place_of_step(self._request, index, branch.places)
        place = placed_by(response.parameters, own)
        return None if place == place_of(self._request) else place

    def _store(
        self, branch: _Branch, index: int, response: InferResponse, place: SequencePlace | None
    ) -> _Branch:
        """Store the tensors of a response. Return the branch that has them."""
        graph = self._plan.graph
        if index in graph.decoupled:
            branch = _Branch(branch.stage + 1, {})
        outputs = graph.steps[index].outputs
        for tensor in response.outputs:
            name = outputs.get(tensor.name)
            if name is not None:
                branch.tensors[name] = tensor.renamed(name)
                if place is not None:
                    branch.places[name] = place
        branch.finished.add(index)
        return branch

    def _advance(self, branch: _Branch | None) -> list[_Start]:
        """Return the steps of a changed branch that can start now.

        If the branch is complete, or no step is left, queue a response.
        """
        plan, starts, is_complete = self._plan, [], False
        if branch is not None:
            needed = self._needed[branch.stage]
            ready = plan.graph.ready(needed, branch.started, branch.finished)
            branch.started.update(ready)
            self._running += len(ready)
            starts = [(branch, index) for index in ready if self._may_start(branch, index)]
            is_complete = branch.stage == plan.graph.last_stage and needed <= branch.finished
        self._is_over = not self._running
        if branch is not None and is_complete:
            self._has_answered = True
            self._outbox.append(
                plan.answer(self._request, branch.tensors, branch.places, final=self._is_over)
            )
        elif self._is_over:
            ending = plan.ending(self._request, has_answered=self._has_answered)
            self._has_failed = ending.error is not None
            self._outbox.append(ending)
        return starts

    def _may_start(self, branch: _Branch, index: int) -> bool:
        """Return whether the limit allows the step to start now."""
        return self._limits is None or self._limits.may_start(self, branch, index)

    def _release(self, starts: Sequence[_Start]) -> None:
        """Release the places, under the limits, of steps that are never sent."""
        if self._limits is not None:
            for _, index in starts:
                self._limits.release(index)

    def _act(self, starts: list[_Start]) -> None:
        """Send queued responses to the client, and the steps in `starts`. Not under the lock."""
        if self._outbox:
            self._send_responses()
        for number, (branch, index) in enumerate(starts):
            not_sent = len(starts) - number
            if self._request.cancellation.is_cancelled:
                self._fail(CANCELLED, not_sent)
                self._release(starts[number:])
                return
            sink = _StepSink(self, branch, index)
            try:
                self._dispatch(
                    self._plan.step_request(
                        self._request, index, branch.tensors, sink, branch.places
                    )
                )
            except ServerError as error:
                self._fail(error, not_sent)
                self._release(starts[number:])
                return
            except Exception as error:  # clients must get an answer even after a server defect
                log.exception("ensemble %s failed", self._plan.name)
                self._fail(internal(f"{type(error).__name__}: {error}"), not_sent)
                self._release(starts[number:])
                return

    def _dispatch(self, step: InferRequest) -> None:
        step.timed = self.step_timed
        if self._request.trace is not None:
            step.trace = self._request.trace.child()
        try:
            self._plan.dispatch(step)
        except BaseException:
            if step.trace is not None:
                step.trace.close()
            raise

    def _fail(self, error: ServerError, ended: int) -> None:
        """Answer with a step's error, unless the request has its final response already.

        `ended` is the number of running steps that have ended or were never sent.
        """
        with self._lock:
            if self._is_over:
                return
            self._is_over = self._has_failed = True
            waiting = 0 if self._limits is None else self._limits.forget(self)
            self._failed_alone = self._running - ended == waiting
            self._outbox.append(self._plan.failure(self._request, error))
        self._send_responses()

    def _send_responses(self) -> None:
        """Send the queued responses in order, unless another thread is sending them."""
        while True:
            with self._lock:
                if self._is_sending or not self._outbox:
                    return
                self._is_sending = True
                response = self._outbox.popleft()
            with COUNTING:
                self._count(response)
            if response.final:
                answer(self._request, response)
                self._finished()
            else:
                deliver(self._request.sink, response)
            with self._lock:
                self._is_sending = False

    def _count(self, response: InferResponse) -> None:
        request, recorder = self._request, self._plan.recorder
        if response.error is not None:
            cancelled = response.error.code is Code.CANCELLED
            recorder.refused(request, FailureReason.CANCELED if cancelled else FailureReason.OTHER)
            if self._failed_alone and not cancelled:
                # Triton counts the failure twice if no other step is in flight.
                recorder.refused(request, FailureReason.OTHER)
        elif response.final:
            response.timing = recorder.composed(request, self._start_ns, self._timings)


class _StepSink:
    """A sink that passes a step's responses to its run."""

    __slots__ = ("_branch", "_index", "_run")

    def __init__(self, run: EnsembleRun, branch: _Branch, index: int) -> None:
        self._run = run
        self._branch = branch
        self._index = index

    def send(self, response: InferResponse) -> None:
        self._run.step_answered(self._branch, self._index, response)
