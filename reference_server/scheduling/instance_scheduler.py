"""The scheduler of a model's instances: one thread for each, which runs what a WorkQueue decides.

A request is handed to an idle instance by the thread that submits it, and those that the event loop
submits in one of its turns are handed over together; a busy instance takes its next batch itself.
Nothing polls: a timer fires at the time that the queue names.
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
from reference_server.core.ports import Clock, ModelInstance, Recorder, Turns
from reference_server.core.request import InferRequest
from reference_server.observability import printing
from reference_server.scheduling.execution import BatchExecutor
from reference_server.scheduling.rate_limiter import RateLimitedInstance, RateLimiter
from reference_server.scheduling.timer import Timer
from reference_server.scheduling.work_queue import Batch, Fifo, Refusal, WorkQueue, stopped


class _Decision(NamedTuple):
    """What has been decided under the lock, to be done outside of it.

    Those `asking` have to wait for the rate limiter's word.
    """

    refused: Sequence[Refusal]
    asking: Sequence[_Worker]


class InstanceScheduler:
    """Runs the requests of one model version on its instances.

    `open` before anything else; `submit` from any thread; `close` once, from a thread that may
    wait. Never reopened. With a `limiter` an instance takes a batch only when it is its turn;
    `rate_limited` are the instances there. Instances are known by their numbers, from 0; `change`
    lets some come and others leave while requests go on. `turns` are those of the loop.
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
        turns: Turns | None = None,
    ) -> None:
        self._model = model_name, model_version
        self._work = work
        self._executor = BatchExecutor(model_name, model_version, recorder, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._turns = turns if work.takes_all else None
        self._refusing = self._closing = False
        self._workers = {
            number: _Worker(self, number, instance) for number, instance in enumerate(instances)
        }
        self._leaving: list[_Worker] = []  # as soon as they are idle
        self._left: Callable[[str, bool], None] = lambda name, was_last: None
        self._idle: list[_Worker] = []
        self._busy = 0  # instances that are open and not idle
        self._timer = Timer(f"{model_name} timer", clock, self._ask_again)
        self._limiter = limiter
        self._rate_limited = dict(enumerate(rate_limited))
        self._asking: set[int] = set()

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

    @property
    def in_flight(self) -> int:
        """How many requests wait in a batcher; without one they are the instances' own."""
        return 0 if isinstance(self._work, Fifo) else self.pending

    def open(self) -> None:
        """Open all instances, side by side. If one fails, close the others and raise its error."""
        try:
            self._idle += _opened(self._workers.values())
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
        """Take in instances, and let others leave; returns the numbers of those `added`.

        `settings` are those of `added`. Blocks until these are open; if one fails, nothing has
        changed, and its error is raised. Those `leaving` are closed when they are idle, and have
        ended their sequences; then `left` is called with the name of each, and whether no other has
        it, one after the other on any thread. To be called by one thread at a time.
        """
        limited = () if self._limiter is None else self._limiter.add(settings)
        with self._lock:
            free = (number for number in itertools.count() if number not in self._workers)
            comers = {
                number: _Worker(self, number, instance)
                for number, instance in zip(free, added, strict=False)
            }
        try:
            opened = _opened(comers.values())
        except BaseException:
            if self._limiter is not None:
                self._limiter.remove(limited)
            raise
        with self._lock:
            now = self._clock.monotonic_ns()
            self._left = left
            self._workers |= comers
            self._rate_limited.update(zip(comers, limited, strict=False))
            self._idle += opened
            self._leaving += [self._workers[number] for number in leaving]
            self._work.resize(comers.keys(), leaving, now)
            decision = self._decide(now)
        if decision is not None:
            self._carry_out(decision)
        return list(comers)

    def submit(self, request: InferRequest) -> None:
        """Queue `request`; if an instance is idle, hand it over, with others of the loop's turn."""
        now = self._clock.monotonic_ns()
        request.queued_ns = now
        with self._lock:
            if self._refusing:
                raise stopped(request)
            self._work.offer(request, now)
            # One hand-over for each turn: the threads share one interpreter lock.
            if self._turns is not None and self._idle and self._turns.at_end(self._ask_again):
                return
            decision = self._decide(now)
        if decision is not None:
            self._carry_out(decision)

    def run(self, worker: _Worker, instance: ModelInstance, batch: Batch) -> Batch | None:
        """Execute one batch on `instance`. Returns its next one; None if there is none now."""
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
            # It has asked for another turn by now, so that its rank counts among the others'.
            self._limiter.end(self._rate_limited[worker.number])
        return own

    def _ask_again(self) -> None:
        """Ask the queue again though nothing has happened but time."""
        with self._lock:
            decision = self._decide(self._clock.monotonic_ns())
        if decision is not None:
            self._carry_out(decision)

    def _decide(self, now: int, *, asks: bool = True) -> _Decision | None:
        """Under the lock: start what can start now. Returns what else is to do, if anything."""
        work = self._work
        asking: Sequence[_Worker] = ()
        if self._idle and len(work):
            if self._limiter is None:
                self._assign(now)
            elif asks:
                asking = self._ask()
        refused = work.refused(now)
        if self._leaving:
            self._dismiss()
        if self._closing and not self._busy and not self._asking and not len(work):
            for worker in self._idle:
                worker.inbox.put(None)
            self._idle.clear()
        deadline = work.next_deadline_ns()
        # One that is past has just been acted on, as far as instances and resources are free.
        if deadline is not None and deadline > now:
            self._timer.set(deadline)
        return _Decision(refused, asking) if refused or asking else None

    def _take(self, worker: _Worker, now: int) -> Batch | None:
        """Under the lock: the next batch of an instance, if it is not to leave."""
        return None if self._is_done(worker) else self._work.take(worker.number, now)

    def _is_done(self, worker: _Worker) -> bool:
        """Under the lock: whether an instance is to leave, and executes nothing more."""
        return worker in self._leaving and not self._work.keeps(worker.number)

    def _dismiss(self) -> None:
        """Under the lock: let those leave that are idle, and not needed any more."""
        for worker in [*self._leaving]:
            if worker in self._idle and worker.number not in self._asking and self._is_done(worker):
                self._leaving.remove(worker)
                self._idle.remove(worker)
                worker.leaves = True
                worker.inbox.put(None)

    def closed(self, worker: _Worker) -> None:
        """An instance that was let go is closed, on its thread: forget it."""
        with self._lock:
            # From here on another one may have its number.
            del self._workers[worker.number]
            limited = self._rate_limited.pop(worker.number, None)
            others = {other.name for other in self._workers.values()}
            self._left(worker.name, worker.name not in others)
        if self._limiter is not None and limited is not None:
            self._limiter.remove([limited])

    def _assign(self, now: int) -> None:
        """Under the lock: hand what is ready to idle instances, who was busy last comes first."""
        for worker in self._idle[::-1]:
            batch = self._take(worker, now)
            if batch:
                self._begin(worker, batch)
            if not len(self._work):
                return

    def _begin(self, worker: _Worker, batch: Batch) -> None:
        """Under the lock, since it does not block: an idle instance runs `batch`."""
        self._idle.remove(worker)
        self._busy += 1
        worker.inbox.put(batch)

    def _ask(self) -> Sequence[_Worker]:
        """Under the lock: the idle instances that shall ask for a turn now."""
        asking = [
            worker
            for worker in self._idle
            if worker.number not in self._asking and not self._is_done(worker)
        ]
        self._asking.update(worker.number for worker in asking)
        return asking

    def _granted(self, worker: _Worker) -> None:
        """It is the turn of an idle instance: let it run what is ready by now."""
        assert self._limiter is not None
        limited = self._rate_limited[worker.number]  # which may leave by what is decided here
        with self._lock:
            now = self._clock.monotonic_ns()
            batch = self._take(worker, now)
            self._asking.discard(worker.number)
            if batch:
                self._begin(worker, batch)
            # Whoever got nothing asks again when something has happened, not at once.
            decision = self._decide(now, asks=batch is not None)
        if not batch:
            self._limiter.end(limited, used=False)
        if decision is not None:
            self._carry_out(decision)

    def _carry_out(self, decision: _Decision) -> None:
        for refusal in decision.refused:
            self._executor.refuse(refusal)
        for worker in decision.asking:
            assert self._limiter is not None
            self._limiter.ask(self._rate_limited[worker.number], partial(self._granted, worker))

    def refuse(self) -> None:
        """Take no new requests."""
        with self._lock:
            self._refusing = True

    def close(self) -> None:
        """Run what waits, without further delay, then close the instances; waits for both."""
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
    """The one thread on which an instance lives: opens it, runs batches, closes it."""

    def __init__(self, scheduler: InstanceScheduler, number: int, instance: ModelInstance) -> None:
        super().__init__(name=instance.name, daemon=True)
        self.number = number
        self._scheduler = scheduler
        self._instance = instance
        self.inbox: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self.opened: Future[None] = Future()
        self.leaves = False

    def run(self) -> None:
        printing.speak_as(self.name)
        try:
            self._instance.open()
        except BaseException as error:  # whoever waits for `opened` must hear of anything
            self.opened.set_exception(error)
            return
        self.opened.set_result(None)
        # An idle instance holds no tensors, nor the shared memory behind them.
        batch: Batch | None = None
        while batch := batch or self.inbox.get():
            batch = self._scheduler.run(self, self._instance, batch)
        self._instance.close()
        if self.leaves:
            self._scheduler.closed(self)


def _opened(workers: Collection[_Worker]) -> list[_Worker]:
    """Have all open their instances, side by side. If one fails, close the others and raise."""
    for worker in workers:
        worker.start()
    failures = [error for worker in workers if (error := worker.opened.exception())]
    if failures:
        for worker in workers:
            worker.inbox.put(None)
            worker.join()
        raise failures[0]
    return list(workers)
