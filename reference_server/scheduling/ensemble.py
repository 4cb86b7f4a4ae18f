"""The shell that runs an ensemble: each step is a request of its own, sent when it is ready."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from reference_server.config.schema import ModelConfig
from reference_server.core.ports import Clock, Dispatch, EnsembleRecorder
from reference_server.core.request import InferRequest
from reference_server.core.rules import OutputLayouts, ShowingSink
from reference_server.scheduling.ensemble_graph import EnsembleGraph
from reference_server.scheduling.ensemble_plan import EnsemblePlan
from reference_server.scheduling.ensemble_run import Run
from reference_server.scheduling.ensemble_shapes import Fitting
from reference_server.scheduling.work import stopped


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
        outputs = tuple(output.name for output in config.signature.outputs)
        decoupled = [index for index, model in enumerate(models) if model.decoupled]
        self._plan = EnsemblePlan(
            config.name,
            version,
            outputs,
            EnsembleGraph(config.ensemble, outputs, decoupled),
            Fitting(config.signature, config.ensemble, [model.signature for model in models]),
            config.max_inflight_requests,
            dispatch,
            recorder,
            clock,
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

    def submit(self, request: InferRequest) -> None:
        """Start the steps that need nothing but the request's inputs."""
        request.queued_ns = self._plan.clock.monotonic_ns()
        with self._changed:
            if self._closing:
                raise stopped(request)
            self._running += 1
        if self._layouts:
            request.sink = ShowingSink(self._layouts, request.sink)
        Run(self._plan, request, self._finished).start()

    def _finished(self) -> None:
        """A run has answered its request for the last time."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse new requests and wait for those that run."""
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not self._running)
