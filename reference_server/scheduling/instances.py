"""The shell around a WorkQueue: one thread per instance, each taking what the queue decides.

A request is handed to an idle instance by the thread that submits it; a busy instance takes its
next batch itself. Nothing polls.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from reference_server.core.clock import Clock
from reference_server.core.errors import ServerError, internal, unavailable
from reference_server.core.ports import ModelInstance, Recorder
from reference_server.core.request import InferRequest
from reference_server.core.response import InferResponse
from reference_server.scheduling.batcher import WorkQueue

log = logging.getLogger(__name__)

Batch = list[InferRequest]
#: An idle instance's wake-up: a batch to run, or None to look at the queue again.
_Wake = Batch | None


class InstanceScheduler:
    """Runs the requests of one model version on its instances.

    `open` before anything else; `submit` from any thread; `close` once, from a thread that may
    wait. Never reopened.
    """

    def __init__(
        self,
        model_name: str,
        model_version: int,
        work: WorkQueue,
        instances: Sequence[ModelInstance],
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._model = model_name, model_version
        self._work = work
        self._recorder = recorder
        self._clock = clock
        self._lock = threading.Lock()
        self._closing = False
        self._workers = [_Worker(self, instance) for instance in instances]
        self._idle: list[_Worker] = []

    def __repr__(self) -> str:
        name, version = self._model
        return (
            f"InstanceScheduler({name} version {version}: {len(self._work)} waiting, "
            f"{len(self._idle)} of {len(self._workers)} instances idle)"
        )

    @property
    def pending(self) -> int:
        """How many requests no instance has begun to execute."""
        with self._lock:
            return len(self._work)

    def open(self) -> None:
        """Open all instances, side by side. If one fails, close the others and raise its error."""
        for worker in self._workers:
            worker.start()
        failures = [error for worker in self._workers if (error := worker.opened.exception())]
        if failures:
            self.close()
            raise failures[0]

    def submit(self, request: InferRequest) -> None:
        """Queue `request`, or hand it over at once if an instance is idle."""
        now = self._clock.monotonic_ns()
        request.queued_ns = now
        with self._lock:
            if self._closing:
                raise unavailable(
                    f"{request.label} Server is stopping, scheduler for model has stopped "
                    "accepting new inference requests"
                )
            had_deadline = self._work.next_deadline_ns() is not None
            self._work.offer(request, now)
            wakes = self._assign(now, had_deadline=had_deadline)
        for worker, wake in wakes:
            worker.inbox.put(wake)

    def _assign(self, now: int, *, had_deadline: bool) -> list[tuple[_Worker, _Wake]]:
        """Decide, under the lock, which idle instances wake up and for what."""
        wakes: list[tuple[_Worker, _Wake]] = []
        while self._idle and (batch := self._work.take(now)):
            wakes.append((self._idle.pop(), batch))
        begins_delay = not had_deadline or bool(wakes)
        if self._idle and begins_delay and self._work.next_deadline_ns() is not None:
            # Somebody has to wait out the delay that this request began: it is the only one that
            # waits, or whoever waited for those before it has just been sent off with them.
            wakes.append((self._idle.pop(), None))
        return wakes

    def next_batch(self, worker: _Worker) -> Batch | None:
        """The next batch for `worker`, waiting for one; None when the model closes."""
        while True:
            with self._lock:
                now = self._clock.monotonic_ns()
                batch = self._work.take(now)
                if batch or self._closing:
                    return batch
                deadline = self._work.next_deadline_ns()
                self._idle.append(worker)
            wake = self._wait(worker, None if deadline is None else (deadline - now) / 1e9)
            if wake is not None:
                return wake

    def _wait(self, worker: _Worker, timeout_s: float | None) -> _Wake:
        try:
            return worker.inbox.get(timeout=timeout_s)
        except queue.Empty:
            with self._lock:
                if worker in self._idle:
                    self._idle.remove(worker)
                    return None
            return worker.inbox.get()  # taken off the idle list just now: the wake-up is coming

    def run(self, instance: ModelInstance, batch: Batch) -> None:
        """Execute one batch on `instance`, count it, and answer its requests."""
        start = self._clock.monotonic_ns()
        try:
            execution = instance.execute(batch)
        except ServerError as error:
            self._fail(batch, start, error)
            return
        except Exception as error:  # a defect of a host must not leave clients waiting
            log.exception("instance %s failed", instance.name)
            self._fail(batch, start, internal(f"{type(error).__name__}: {error}"))
            return
        timing = self._recorder.executed(batch, execution, start)
        times = start, execution.input_end_ns, execution.output_start_ns
        for request, response in zip(batch, execution.responses, strict=True):
            response.timing = timing
            if request.trace is not None:
                request.trace.answered(() if response.error else response.outputs, times)
            _deliver(request, response)

    def _fail(self, batch: Batch, start_ns: int, error: ServerError) -> None:
        self._recorder.failed(batch, start_ns)
        name, version = self._model
        for request in batch:
            if request.trace is not None:
                now = self._clock.monotonic_ns()
                request.trace.answered((), (start_ns, start_ns, now))
            _deliver(request, InferResponse(name, version, request.id, error=error))

    def close(self) -> None:
        """Run what waits, without further delay, then close the instances; waits for both."""
        with self._lock:
            self._closing = True
            self._work.flush()
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.inbox.put(None)
        for worker in self._workers:
            worker.join()


def _deliver(request: InferRequest, response: InferResponse) -> None:
    try:
        request.sink.send(response)
    except Exception:  # a defect of whoever takes it must not end the instance
        log.exception("the response to %s of %s was lost", request.label, request.model_name)


class _Worker(threading.Thread):
    """The one thread on which an instance lives: opens it, runs batches, closes it."""

    def __init__(self, scheduler: InstanceScheduler, instance: ModelInstance) -> None:
        super().__init__(name=instance.name, daemon=True)
        self._scheduler = scheduler
        self._instance = instance
        self.inbox: queue.SimpleQueue[_Wake] = queue.SimpleQueue()
        self.opened: Future[None] = Future()

    def run(self) -> None:
        try:
            self._instance.open()
        except BaseException as error:  # whoever waits for `opened` must hear of anything
            self.opened.set_exception(error)
            return
        self.opened.set_result(None)
        while batch := self._scheduler.next_batch(self):
            self._scheduler.run(self._instance, batch)
            del batch  # an idle instance holds no tensors, nor the shared memory behind them
        self._instance.close()
