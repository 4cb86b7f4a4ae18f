"""The scheduler of a model's instances: one thread for each executes the batches of a WorkQueue.

The thread that submits a request passes it to an idle instance. Requests that the event loop
submits in one iteration are passed on together. A busy instance takes its next batch itself.
No thread polls: a timer fires at the queue's next deadline.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from reference_server.config.scheduler_settings import InstanceConfig
from reference_server.core.errors import unavailable
from reference_server.core.ports import Clock, LoopIterations, ModelInstance, Recorder
from reference_server.core.request import InferRequest
from reference_server.observability import logs
from reference_server.scheduling.execution import BatchExecutor
from reference_server.scheduling.rate_limiter import RateLimitedInstance, RateLimiter
from reference_server.scheduling.sequence_strategies import DirectSequences, OldestSequences
from reference_server.scheduling.work_queue import (
    STOPPED,
    Batch,
    Fifo,
    Refusal,
    WorkQueue,
    stopped,
)


class _Decision(NamedTuple):
    """Actions that are decided under the lock and executed without it.

    The workers in `requesting` request resources from the rate limiter.
    """

    refused: Sequence[Refusal]
    requesting: Sequence[_Worker]


class InstanceScheduler:
    """Runs the requests of one model version on its instances.

    Call `open` first, `submit` from any thread, and `close` once, from a thread that may block. It
    cannot be reopened. Instances are numbered from 0; `change` adds and removes instances without
    interrupting requests.

    Args:
        model_name: The model's name.
        model_version: The model's version.
        work: The queue; guarded by this scheduler.
        instances: The instances, not yet open.
        recorder: Counts the results.
        clock: The source of all times.
        limiter: If given, an instance executes a batch only when the limiter grants it.
        rate_limited: The registrations of `instances` with the limiter.
        iterations: The iterations of the event loop that submits requests, if any.
    """

    def __init__(
        self,
        model_name: str,
        model_version: int,
        work: WorkQueue,
        instances: Sequence[ModelInstance],
        recorder: Recorder,
        clock: Clock,
        limiter: RateLimiter | None = None,
        rate_limited: Sequence[RateLimitedInstance] = (),
        iterations: LoopIterations | None = None,
    ) -> None:
        self._model = model_name, model_version
        self._work = work
        self._sequences = (
            work.slots if isinstance(work, DirectSequences | OldestSequences) else None
        )
        self._executor = BatchExecutor(model_name, model_version, recorder, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._iterations = iterations if work.takes_all else None
        self._refusing = self._closing = False
        self._workers = {
            number: _Worker(self, number, instance) for number, instance in enumerate(instances)
        }
        self._leaving: list[_Worker] = []  # stop as soon as they are idle
        self._left: Callable[[str, bool], None] = lambda name, was_last: None
        self._idle: list[_Worker] = []
        self._busy = 0  # instances that are open and not idle
        self._timer = Timer(f"{model_name} timer", clock, self._check_queue)
        self._limiter = limiter
        self._rate_limited = dict(enumerate(rate_limited))
        self._requesting: set[int] = set()  # instances that wait for the limiter

    def __repr__(self) -> str:
        name, version = self._model
        return (
            f"InstanceScheduler({name} version {version}: {len(self._work)} waiting, "
            f"{len(self._idle)} of {len(self._workers)} instances idle)"
        )

    @property
    def pending(self) -> int:
        """The number of requests that no instance has started to execute."""
        with self._lock:
            return len(self._work)

    @property
    def in_flight(self) -> int:
        """The number of requests that wait in a batcher, or of open sequences; otherwise 0."""
        if self._sequences is not None:
            with self._lock:
                return self._sequences.open
        return 0 if isinstance(self._work, Fifo) else self.pending

    def open(self) -> None:
        """Open all instances in parallel. If one fails, close the others and raise its error."""
        try:
            self._idle += _open_all(self._workers.values())
        except BaseException:
            self._workers.clear()
            self.close()
            raise

    def change(
        self,
        added: Sequence[ModelInstance],
        leaving: Collection[int],
        settings: Sequence[InstanceConfig],
        left: Callable[[str, bool], None],
    ) -> list[int]:
        """Add and remove instances. Blocks until the added instances are open.

        A removed instance is closed when it is idle and its sequences have ended. Only one thread
        at a time may call this method.

        Args:
            added: New instances, not yet open.
            leaving: The numbers of the instances to remove.
            settings: The settings of `added`.
            left: Called on any thread after an instance is closed, one call at a time, with its
                name and whether no other instance has this name.

        Returns:
            The numbers of the added instances.

        Raises:
            ServerError: An added instance could not be opened. Nothing has changed.
        """
        limited = () if self._limiter is None else self._limiter.add(settings)
        with self._lock:
            free = (number for number in itertools.count() if number not in self._workers)
            new_workers = {
                number: _Worker(self, number, instance)
                for number, instance in zip(free, added, strict=False)
            }
        try:
            opened = _open_all(new_workers.values())
        except BaseException:
            if self._limiter is not None:
                self._limiter.remove(limited)
            raise
        with self._lock:
            now = self._clock.monotonic_ns()
            self._left = left
            self._workers |= new_workers
            self._rate_limited.update(zip(new_workers, limited, strict=False))
            self._idle += opened
            self._leaving += [self._workers[number] for number in leaving]
            self._work.resize(new_workers.keys(), leaving, now)
            decision = self._decide(now)
        if decision is not None:
            self._carry_out(decision)
        return list(new_workers)

    def join_removed(self) -> None:
        """Wait until the removed instances without open sequences are closed."""
        with self._lock:
            removed = [
                worker
                for worker in self._workers.values()
                if worker.leaves or self._is_done(worker)
            ]
        for worker in removed:
            worker.join()

    def submit(self, request: InferRequest) -> None:
        """Queue `request`.

        Idle instances receive it immediately, or at the end of the event loop's iteration.
        """
        now = self._clock.monotonic_ns()
        request.queued_ns = now
        with self._lock:
            if self._refusing and not self._continues(request):
                # As in Triton, whose sequence batcher does not name the request.
                raise stopped(request) if self._sequences is None else unavailable(STOPPED)
            self._work.offer(request, now)
            # One hand-over for each loop iteration, because all threads share the GIL.
            iterations = self._iterations
            if iterations is not None and self._idle and iterations.at_end(self._check_queue):
                return
            decision = self._decide(now)
        if decision is not None:
            self._carry_out(decision)

    def run(self, worker: _Worker, instance: ModelInstance, batch: Batch) -> Batch | None:
        """Execute one batch on `instance`. Return its next batch; None if it becomes idle."""
        again = self._executor.run(instance, batch)
        with self._lock:
            now = self._clock.monotonic_ns()
            self._work.finished(worker.number, batch, again, now)
            self._busy -= 1
            own = self._take(worker, now) if self._limiter is None else None
            if own:
                self._busy += 1
            else:
                self._idle.append(worker)
            decision = self._decide(now)
        if decision is not None:
            self._carry_out(decision)
        if self._limiter is not None:
            # Released after the next request of this instance, so that the request competes by its
            # rank.
            self._limiter.release(self._rate_limited[worker.number])
        return own

    def _check_queue(self) -> None:
        """Start the batches that are ready now."""
        with self._lock:
            decision = self._decide(self._clock.monotonic_ns())
        if decision is not None:
            self._carry_out(decision)

    def _decide(self, now: int, *, may_request: bool = True) -> _Decision | None:
        """Under the lock: start the batches that can start now; return the remaining actions.

        Without `may_request` no instance requests resources from the rate limiter.
        """
        work = self._work
        requesting: Sequence[_Worker] = ()
        if self._idle and len(work):
            if self._limiter is None:
                self._assign(now)
            elif may_request:
                requesting = self._start_requesting()
        refused = work.refused(now)
        if self._leaving:
            self._remove_idle()
        if self._closing and not self._busy and not self._requesting and not len(work):
            for worker in self._idle:
                worker.inbox.put(None)
            self._idle.clear()
        deadline = work.next_deadline_ns()
        # A deadline in the past has been handled above, as far as instances are free.
        if deadline is not None and deadline > now:
            self._timer.set(deadline)
        return _Decision(refused, requesting) if refused or requesting else None

    def _take(self, worker: _Worker, now: int) -> Batch | None:
        """Under the lock: return the next batch of an instance; None if the instance is done."""
        return None if self._is_done(worker) else self._work.take(worker.number, now)

    def _is_done(self, worker: _Worker) -> bool:
        """Under the lock: return whether a leaving instance has nothing more to execute."""
        return worker in self._leaving and not self._work.keeps(worker.number)

    def _remove_idle(self) -> None:
        """Under the lock: stop the leaving instances that are idle and done."""
        for worker in [*self._leaving]:
            idle = worker in self._idle and worker.number not in self._requesting
            if idle and self._is_done(worker):
                self._leaving.remove(worker)
                self._idle.remove(worker)
                worker.leaves = True
                worker.inbox.put(None)

    def closed(self, worker: _Worker) -> None:
        """Remove a leaving instance that is closed. Called on the instance's thread."""
        with self._lock:
            # From here on a new instance may reuse the number.
            del self._workers[worker.number]
            limited = self._rate_limited.pop(worker.number, None)
            others = {other.name for other in self._workers.values()}
            self._left(worker.name, worker.name not in others)
        if self._limiter is not None and limited is not None:
            self._limiter.remove([limited])

    def _assign(self, now: int) -> None:
        """Under the lock: give ready batches to idle instances, the most recently busy first."""
        for worker in self._idle[::-1]:
            batch = self._take(worker, now)
            if batch:
                self._start(worker, batch)
            if not len(self._work):
                return

    def _start(self, worker: _Worker, batch: Batch) -> None:
        """Under the lock: make an idle instance execute `batch`. Does not block."""
        self._idle.remove(worker)
        self._busy += 1
        worker.inbox.put(batch)

    def _start_requesting(self) -> Sequence[_Worker]:
        """Under the lock: return the idle instances that must request resources now."""
        requesting = [
            worker
            for worker in self._idle
            if worker.number not in self._requesting and not self._is_done(worker)
        ]
        self._requesting.update(worker.number for worker in requesting)
        return requesting

    def _granted(self, worker: _Worker) -> None:
        """Execute the next batch on an idle instance to which the rate limiter grants resources."""
        assert self._limiter is not None
        limited = self._rate_limited[worker.number]  # read first: `_decide` may remove the worker
        with self._lock:
            now = self._clock.monotonic_ns()
            batch = self._take(worker, now)
            self._requesting.discard(worker.number)
            if batch:
                self._start(worker, batch)
            # An instance without a batch requests again only after the next event.
            decision = self._decide(now, may_request=batch is not None)
        if not batch:
            self._limiter.release(limited, used=False)
        if decision is not None:
            self._carry_out(decision)

    def _carry_out(self, decision: _Decision) -> None:
        for refusal in decision.refused:
            self._executor.refuse(refusal)
        for worker in decision.requesting:
            assert self._limiter is not None
            self._limiter.request(self._rate_limited[worker.number], partial(self._granted, worker))

    def _continues(self, request: InferRequest) -> bool:
        """Under the lock: return whether a request of an open sequence is still accepted."""
        if self._sequences is None or self._closing:
            return False
        return self._sequences.continues(request)

    def refuse(self) -> None:
        """Refuse new requests from now on; open sequences continue until `close`."""
        with self._lock:
            self._refusing = True

    def close(self) -> None:
        """Execute all waiting requests without delay, then close the instances. Blocks."""
        self.refuse()
        with self._lock:
            self._closing = True
            self._work.flush()
            decision = self._decide(self._clock.monotonic_ns())
        if decision is not None:
            self._carry_out(decision)
        for worker in [*self._workers.values()]:
            worker.join()
        self._timer.close()
        if self._limiter is not None:
            self._limiter.remove(self._rate_limited.values())


class _Worker(threading.Thread):
    """The only thread that uses an instance: opens it, executes batches, closes it."""

    def __init__(self, scheduler: InstanceScheduler, number: int, instance: ModelInstance) -> None:
        super().__init__(name=instance.name, daemon=True)
        self.number = number
        self._scheduler = scheduler
        self._instance = instance
        self.inbox: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self.opened: Future[None] = Future()
        self.leaves = False

    def run(self) -> None:
        logs.speak_as(self.name)
        try:
            self._instance.open()
        except BaseException as error:  # the thread that reads `opened` raises it
            self.opened.set_exception(error)
            return
        self.opened.set_result(None)
        # `batch` is empty while the thread is idle: it references neither tensors nor the shared
        # memory behind them.
        batch: Batch | None = None
        while batch := batch or self.inbox.get():
            batch = self._scheduler.run(self, self._instance, batch)
        self._instance.close()
        if self.leaves:
            self._scheduler.closed(self)


def _open_all(workers: Collection[_Worker]) -> list[_Worker]:
    """Open the instances in parallel. If one fails, close the others and raise its error."""
    for worker in workers:
        worker.start()
    failures = [error for worker in workers if (error := worker.opened.exception())]
    if failures:
        for worker in workers:
            worker.inbox.put(None)
            worker.join()
        raise failures[0]
    return list(workers)


class Timer:
    """Calls `fire` at a given time, on its own thread. Thread-safe.

    The thread starts when a time is set for the first time.
    """

    def __init__(self, name: str, clock: Clock, fire: Callable[[], None]) -> None:
        self._name = name
        self._clock = clock
        self._fire = fire
        self._changed = threading.Condition()
        self._at: int | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def set(self, at_ns: int) -> None:
        """Fire at `at_ns` of the monotonic clock. The earliest of several set times counts.

        Later times are dropped when the timer fires; the caller sets them again.
        """
        with self._changed:
            if self._closed or (self._at is not None and self._at <= at_ns):
                return
            self._at = at_ns
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Stop the timer and wait for a running `fire` to return."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self._fire()

    def _wait(self) -> bool:
        """Wait for the set time and return True; return False when the timer is closed."""
        with self._changed:
            while not self._closed:
                if self._at is None:
                    self._changed.wait()
                elif (left_ns := self._at - self._clock.monotonic_ns()) > 0:
                    self._changed.wait(left_ns / 1e9)
                else:
                    self._at = None
                    return True
        return False
