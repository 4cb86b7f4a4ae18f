"""The arbiter of a workspace pool: who gets its bytes, and when.

Facts and `now` in, decisions out: no thread, no lock and no clock live here. Waiters form one
order, and only its head is served: higher priority first, among equals the one that came first. A
waiter that needs much is therefore never passed by small ones that happen to fit: the pool lets
itself drain until the head fits.

The order has a bound against starvation, the bypass limit. A waiter that was bypassed
`bypass_limit` times, which only higher priorities can do, is bypassed no more: it and those before
it are served before all that came later. So a waiter is granted at the latest when as many leases
have been released as were live and waiting when it came, plus `bypass_limit`; and when nothing is
live, nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from ge_runtime.memory.suballocator import Suballocator
from ge_runtime.workspace.lease import Held, Outcome, PoolStats, Waiter


class Arbiter:
    """Decides over the bytes [0, capacity). Not thread-safe.

    Methods return the waiters whose waiting they ended; each such waiter's `outcome` says how.
    """

    def __init__(
        self, capacity: int, *, alignment: int, queue_limit: int, bypass_limit: int
    ) -> None:
        """capacity: bytes. alignment: offsets are multiples of it. queue_limit: see WorkspacePool.

        bypass_limit: how often a waiter may be bypassed by higher priorities that came later.
        """
        self.capacity = capacity
        self.closed = False
        self._alignment = alignment
        self._queue_limit = queue_limit
        self._bypass_limit = bypass_limit
        self._range = Suballocator(capacity)
        self._live: set[Waiter] = set()
        self._waiting: list[Waiter] = []  # in order of arrival
        self._peak = 0
        self._granted = 0
        self._waited = 0
        self._wait_s = 0.0
        self._longest_wait_s = 0.0
        self._timeouts = 0
        self._cancelled = 0
        self._refused = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is leased."""
        return not self._live

    def ask(self, waiter: Waiter, now: float) -> Sequence[Waiter]:
        """Take a new waiter: its outcome is WAITING, GRANTED or a refusal afterwards."""
        waiter.asked_at = now
        if self.closed:
            self._refuse(waiter, Outcome.CLOSED)
        elif waiter.nbytes > self.capacity:
            self._refuse(waiter, Outcome.NEVER_FITS)
        elif waiter.deadline <= now:
            waiter.outcome = Outcome.TIMED_OUT
            self._timeouts += 1
        elif self._waiting or not self._grant(waiter):
            self._waiting.append(waiter)
            ended = self._serve(now)
            if waiter.outcome is Outcome.WAITING:
                # Only now, because serving may have made room in the queue.
                if len(self._waiting) > self._queue_limit:
                    self._waiting.pop()
                    self._refuse(waiter, Outcome.FULL)
                else:
                    self._waited += 1
            return ended
        return ()

    def release(self, waiter: Waiter, now: float) -> Sequence[Waiter]:
        """Take back what was granted. A waiter that holds nothing is left as it is."""
        if waiter.outcome is not Outcome.GRANTED:
            return ()
        waiter.outcome = Outcome.RELEASED
        self._live.remove(waiter)
        self._range.free(waiter.offset)
        return self._serve(now) if self._waiting else ()

    def withdraw(self, waiter: Waiter, now: float) -> Sequence[Waiter]:
        """End a waiter whose user has left, whether it waits or was granted meanwhile."""
        # Granted after its user had last looked: the bytes go to others.
        if waiter.outcome is Outcome.GRANTED:
            self._cancelled += 1
            ended = self.release(waiter, now)
            waiter.outcome = Outcome.CANCELLED
            return ended
        if waiter.outcome is not Outcome.WAITING:
            return ()
        self._cancelled += 1
        self._waiting.remove(waiter)
        self._end_wait(waiter, Outcome.CANCELLED, now)
        return [waiter, *self._serve(now)]

    def expire(self, now: float) -> Sequence[Waiter]:
        """End the waiters whose deadlines have come; others may fit without them."""
        return self._serve(now) if self._waiting else ()

    def close(self, now: float) -> Sequence[Waiter]:
        """Grant nothing from now on. What is live stays so until it is released."""
        self.closed = True
        ended, self._waiting = self._waiting, []
        for waiter in ended:
            self._refused += 1
            self._end_wait(waiter, Outcome.CLOSED, now)
        return ended

    def stats(self) -> PoolStats:
        """All that is known now."""
        by_owner: dict[str, Held] = {}
        for waiter in sorted(self._live, key=lambda waiter: waiter.offset):
            held = by_owner.get(waiter.owner, Held(0, 0))
            by_owner[waiter.owner] = Held(held.leases + 1, held.nbytes + waiter.nbytes)
        return PoolStats(
            capacity=self.capacity,
            leased=self.capacity - self._range.free_bytes,
            peak=self._peak,
            largest_free=self._range.largest_free,
            waiting=len(self._waiting),
            granted=self._granted,
            waited=self._waited,
            wait_s=self._wait_s,
            longest_wait_s=self._longest_wait_s,
            timeouts=self._timeouts,
            cancelled=self._cancelled,
            refused=self._refused,
            by_owner=by_owner,
        )

    def _serve(self, now: float) -> list[Waiter]:
        """Drop the expired, then grant heads until one does not fit."""
        ended = [waiter for waiter in self._waiting if waiter.deadline <= now]
        if ended:
            self._waiting = [waiter for waiter in self._waiting if waiter.deadline > now]
            self._timeouts += len(ended)
            for waiter in ended:
                self._end_wait(waiter, Outcome.TIMED_OUT, now)
        while self._waiting:
            index = self._head()
            waiter = self._waiting[index]
            if not self._grant(waiter):
                break
            del self._waiting[index]
            for bypassed in self._waiting[:index]:
                bypassed.bypassed += 1
            self._end_wait(waiter, Outcome.GRANTED, now)
            ended.append(waiter)
        return ended

    def _head(self) -> int:
        """The place in `_waiting` of whoever is served next."""
        head = 0
        for index, waiter in enumerate(self._waiting):
            if waiter.priority > self._waiting[head].priority:
                head = index
            if waiter.bypassed >= self._bypass_limit:
                break  # it is served before all that came later, whatever their priority
        return head

    def _grant(self, waiter: Waiter) -> bool:
        # A lease of nothing holds a byte, so that it has a place of its own to be freed by.
        offset = self._range.allocate(max(1, waiter.nbytes), self._alignment)
        if offset is None:
            return False
        waiter.offset = offset
        waiter.outcome = Outcome.GRANTED
        self._live.add(waiter)
        self._granted += 1
        self._peak = max(self._peak, self.capacity - self._range.free_bytes)
        return True

    def _refuse(self, waiter: Waiter, outcome: Outcome) -> None:
        waiter.outcome = outcome
        self._refused += 1

    def _end_wait(self, waiter: Waiter, outcome: Outcome, now: float) -> None:
        waiter.outcome = outcome
        waiter.waited_s = now - waiter.asked_at
        self._wait_s += waiter.waited_s
        self._longest_wait_s = max(self._longest_wait_s, waiter.waited_s)
