"""Runs an ensemble: each step is a request of its own, sent when it is ready.

Tensors go from step to step by reference. A step is started by the thread that brought the answer
it waited for; nothing waits. Each answer of a decoupled step begins a branch of its own, so that
the tensors of different answers do not mix.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from reference_server.config.schema import ModelConfig
from reference_server.core.errors import Code, ServerError, internal
from reference_server.core.hash_order import arranged
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
    place_of,
    placed_by,
)
from reference_server.scheduling.execution import COUNTING
from reference_server.scheduling.step_limits import StepLimits
from reference_server.scheduling.work_queue import CANCELLED, stopped

log = logging.getLogger(__name__)


class EnsembleScheduler:
    """Runs the requests of one ensemble by sending its steps through `dispatch`.

    `models` are the configurations of the models of its steps, in the order of the steps.
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
        # Answers list them as Triton's table of the configuration's outputs does.
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
        most = config.max_inflight_requests
        self._limits: StepLimits[_Branch] | None = StepLimits(most) if most else None
        if most:
            log.info(
                "Ensemble model '%s' configured with max_inflight_requests: %d", config.name, most
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
        """None: a request is with its steps at once, and waits there."""
        return 0

    @property
    def in_flight(self) -> int:
        """How many requests have not had their last answer."""
        return self._running

    def refuse(self) -> None:
        """Nothing: as in Triton the models of the steps refuse, also to requests on their way."""

    def submit(self, request: InferRequest) -> None:
        """Start the steps that need nothing but the request's inputs."""
        request.queued_ns = self._plan.clock.monotonic_ns()
        with self._changed:
            if self._closing:
                raise stopped(request)
            self._running += 1
        if self._layouts:
            request.sink = ShowingSink(self._layouts, request.sink)
        EnsembleRun(self._plan, request, self._finished, self._limits).start()

    def _finished(self) -> None:
        """A run has answered its request for the last time."""
        with self._changed:
            self._running -= 1
            if self._closing:
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse new requests and wait for those that run."""
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not self._running)


class _Branch:
    """The tensors that belong together: of the request, or of one answer of a decoupled step.

    `places` are those that a step has put elsewhere in a sequence, or into another one.
    """

    __slots__ = ("finished", "places", "stage", "started", "tensors")

    def __init__(self, stage: int, tensors: dict[str, Tensor]) -> None:
        self.stage = stage
        self.tensors = tensors
        self.places: dict[str, SequencePlace] = {}
        self.started: set[int] = set()
        self.finished: set[int] = set()


#: A step to be sent: with the tensors of which branch, and its number.
_Start = tuple[_Branch, int]


class EnsembleRun:
    """One request; answers it, and calls `finished` after the last answer. Any thread."""

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
        self._running = 0  # steps that have not had their last answer, or wait for their turn
        self._timings: list[Timing] = []
        self._began_ns = 0
        self._has_answered = False
        self._is_over = False
        self._has_failed = False
        self._failed_alone = False
        self._outbox: deque[InferResponse] = deque()
        self._is_sending = False

    def start(self) -> None:
        """Send the first steps."""
        self._began_ns = self._plan.clock.monotonic_ns()
        with self._lock:
            starts = self._advance(_Branch(0, dict(self._request.inputs)))
        self._act(starts)
        if self._limits is not None:
            self._limits.start_freed()

    def start_held(self, branch: _Branch, index: int) -> None:
        """Send a step that was held back, unless the request has its last answer."""
        with self._lock:
            is_over = self._is_over
        if is_over:
            self._not_sent([(branch, index)])
        else:
            self._act([(branch, index)])

    def step_answered(self, branch: _Branch, index: int, response: InferResponse) -> None:
        """A step of `branch` has answered: keep its tensors and go on."""
        limits = self._limits
        if limits is None:
            self._step_answered(branch, index, response)
            return
        if response.final:
            limits.let_go(index)
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
            reached = None if response.empty else self._arrived(branch, index, response, place)
            starts = self._advance(reached)
        self._act(starts)

    def step_timed(self, timing: Timing) -> None:
        """A step whose answers do not tell it took so long; maybe after the last answer."""
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
        """Where an answer's tensors are in which sequence; None if as the request."""
        if not response.parameters and not branch.places:
            return None
        own = self._plan.place_of_step(self._request, index, branch.places)
        place = placed_by(response.parameters, own)
        return None if place == place_of(self._request) else place

    def _arrived(
        self, branch: _Branch, index: int, response: InferResponse, place: SequencePlace | None
    ) -> _Branch:
        """Put the tensors of an answer where they belong."""
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
        """What can start now that `branch` has come further; answers with it if it is complete."""
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
        """Whether the step is not held back for others of its kind."""
        return self._limits is None or self._limits.may_start(self, branch, index)

    def _not_sent(self, starts: Sequence[_Start]) -> None:
        """Let go of the places of steps that are never sent."""
        if self._limits is not None:
            for _, index in starts:
                self._limits.let_go(index)

    def _act(self, starts: list[_Start]) -> None:
        """Send what is to be sent, to the client and to the steps. Not under the lock."""
        if self._outbox:
            self._send_answers()
        for number, (branch, index) in enumerate(starts):
            not_sent = len(starts) - number
            if self._request.cancellation.is_cancelled:
                self._fail(CANCELLED, not_sent)
                self._not_sent(starts[number:])
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
                self._not_sent(starts[number:])
                return
            except Exception as error:  # a defect of ours must not leave the client waiting
                log.exception("ensemble %s", self._plan.name)
                self._fail(internal(f"{type(error).__name__}: {error}"), not_sent)
                self._not_sent(starts[number:])
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
        """Answer with a step's error, unless the request has its last answer already.

        `ended` of the steps that run are not on their way any more, or never were.
        """
        with self._lock:
            if self._is_over:
                return
            self._is_over = self._has_failed = True
            held_back = 0 if self._limits is None else self._limits.forget(self)
            self._failed_alone = self._running - ended == held_back
            self._outbox.append(self._plan.failure(self._request, error))
        self._send_answers()

    def _send_answers(self) -> None:
        """Send what is in the outbox, in order: who finds another at it leaves it to him."""
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
                # Triton counts it twice, unless another step is on its way.
                recorder.refused(request, FailureReason.OTHER)
        elif response.final:
            response.timing = recorder.composed(request, self._began_ns, self._timings)


class _StepSink:
    """Takes a step's answers back to its run."""

    __slots__ = ("_branch", "_index", "_run")

    def __init__(self, run: EnsembleRun, branch: _Branch, index: int) -> None:
        self._run = run
        self._branch = branch
        self._index = index

    def send(self, response: InferResponse) -> None:
        self._run.step_answered(self._branch, self._index, response)
