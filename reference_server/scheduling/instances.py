"""The shell around a WorkQueue: one thread per instance, each taking what the queue decides.

A request is handed to an idle instance by the thread that submits it; a busy instance takes its
next batch itself. Nothing polls.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from reference_server.core.clock import Clock
from reference_server.core.errors import unavailable
from reference_server.core.ports import ModelInstance, Recorder
from reference_server.core.request import InferRequest
from reference_server.scheduling.execution import Executor
from reference_server.scheduling.work import Batch, WorkQueue

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
        self._executor = Executor(model_name, model_version, recorder, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._closing = False
        self._workers = [
            _Worker(self, number, instance) for number, instance in enumerate(instances)
        ]
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
        while self._idle and (batch := self._work.take(self._idle[-1].number, now)):
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
                batch = self._work.take(worker.number, now)
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

    def run(self, worker: _Worker, instance: ModelInstance, batch: Batch) -> None:
        """Execute one batch on `instance`."""
        again = self._executor.run(instance, batch)
        with self._lock:
            now = self._clock.monotonic_ns()
            self._work.finished(worker.number, batch, again, now)

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


class _Worker(threading.Thread):
    """The one thread on which an instance lives: opens it, runs batches, closes it."""

    def __init__(self, scheduler: InstanceScheduler, number: int, instance: ModelInstance) -> None:
        super().__init__(name=instance.name, daemon=True)
        self.number = number
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
            self._scheduler.run(self, self._instance, batch)
            del batch  # an idle instance holds no tensors, nor the shared memory behind them
        self._instance.close()
