"""Who gets the bytes of a pool, and when: facts and `now` in, decisions out.

No thread, no lock and no clock live here. Claims form one order, and only its head is served:
higher priority first, among equals the one that came first. A claim that needs much is therefore
never passed by small ones that happen to fit: the pool lets itself drain until the head fits.

The order has a bound against starvation. A claim that was overtaken `overtakings` times, which
only higher priorities can do, is overtaken no more: it and those before it are served before all
that came later. So a claim is granted at the latest when as many leases have been released as
were live and waiting when it came, plus `overtakings`; and when nothing is live, nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from ge_runtime.memory.suballocator import Suballocator
from ge_runtime.workspace.lease import Claim, Outcome
from ge_runtime.workspace.stats import Held, PoolStats


class Arbiter:
    """Decides over the bytes [0, capacity). Not thread-safe.

    Methods return the claims whose waiting they ended; each such claim's `outcome` says how.
    """

    def __init__(
        self, capacity: int, *, alignment: int, queue_limit: int, overtakings: int
    ) -> None:
        """capacity: bytes. alignment: offsets are multiples of it. queue_limit: see WorkspacePool.

        overtakings: how often a waiting claim may be overtaken by higher priorities that came
        later.
        """
        self.capacity = capacity
        self.closed = False
        self._alignment = alignment
        self._queue_limit = queue_limit
        self._overtakings = overtakings
        self._range = Suballocator(capacity)
        self._live: set[Claim] = set()
        self._waiting: list[Claim] = []  # in order of arrival
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

    def ask(self, claim: Claim, now: float) -> Sequence[Claim]:
        """Take a new claim: its outcome is WAITING, GRANTED or a refusal afterwards."""
        claim.asked_at = now
        if self.closed:
            self._refuse(claim, Outcome.CLOSED)
        elif claim.nbytes > self.capacity:
            self._refuse(claim, Outcome.NEVER_FITS)
        elif claim.deadline <= now:
            claim.outcome = Outcome.TIMED_OUT
            self._timeouts += 1
        elif self._waiting or not self._grant(claim):
            self._waiting.append(claim)
            settled = self._serve(now)
            if claim.outcome is Outcome.WAITING:
                # Only now, because serving may have made room in the queue.
                if len(self._waiting) > self._queue_limit:
                    self._waiting.pop()
                    self._refuse(claim, Outcome.FULL)
                else:
                    self._waited += 1
            return settled
        return ()

    def release(self, claim: Claim, now: float) -> Sequence[Claim]:
        """Take back what was granted. A claim that holds nothing is left as it is."""
        if claim.outcome is not Outcome.GRANTED:
            return ()
        claim.outcome = Outcome.RELEASED
        self._live.remove(claim)
        self._range.free(claim.offset)
        return self._serve(now) if self._waiting else ()

    def withdraw(self, claim: Claim, now: float) -> Sequence[Claim]:
        """End a claim whose user has left, whether it waits or was granted meanwhile."""
        if claim.outcome is Outcome.GRANTED:
            self._cancelled += 1
            settled = self.release(claim, now)
            claim.outcome = Outcome.CANCELLED
            return settled
        if claim.outcome is not Outcome.WAITING:
            return ()
        self._cancelled += 1
        self._waiting.remove(claim)
        self._end_wait(claim, Outcome.CANCELLED, now)
        return [claim, *self._serve(now)]

    def expire(self, now: float) -> Sequence[Claim]:
        """End the claims whose deadlines have come; others may fit without them."""
        return self._serve(now) if self._waiting else ()

    def close(self, now: float) -> Sequence[Claim]:
        """Grant nothing from now on. What is live stays so until it is released."""
        self.closed = True
        settled, self._waiting = self._waiting, []
        for claim in settled:
            self._refused += 1
            self._end_wait(claim, Outcome.CLOSED, now)
        return settled

    def stats(self) -> PoolStats:
        """All that is known now."""
        by_owner: dict[str, Held] = {}
        for claim in sorted(self._live, key=lambda claim: claim.offset):
            held = by_owner.get(claim.owner, Held(0, 0))
            by_owner[claim.owner] = Held(held.leases + 1, held.nbytes + claim.nbytes)
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

    def _serve(self, now: float) -> list[Claim]:
        """Drop the expired, then grant heads until one does not fit."""
        settled = [claim for claim in self._waiting if claim.deadline <= now]
        if settled:
            self._waiting = [claim for claim in self._waiting if claim.deadline > now]
            self._timeouts += len(settled)
            for claim in settled:
                self._end_wait(claim, Outcome.TIMED_OUT, now)
        while self._waiting:
            index = self._head()
            claim = self._waiting[index]
            if not self._grant(claim):
                break
            del self._waiting[index]
            for overtaken in self._waiting[:index]:
                overtaken.overtaken += 1
            self._end_wait(claim, Outcome.GRANTED, now)
            settled.append(claim)
        return settled

    def _head(self) -> int:
        head = 0
        for index, claim in enumerate(self._waiting):
            if claim.priority > self._waiting[head].priority:
                head = index
            if claim.overtaken >= self._overtakings:
                break
        return head

    def _grant(self, claim: Claim) -> bool:
        # A lease of nothing holds a byte, so that it has a place of its own to be freed by.
        offset = self._range.allocate(max(1, claim.nbytes), self._alignment)
        if offset is None:
            return False
        claim.offset = offset
        claim.outcome = Outcome.GRANTED
        self._live.add(claim)
        self._granted += 1
        self._peak = max(self._peak, self.capacity - self._range.free_bytes)
        return True

    def _refuse(self, claim: Claim, outcome: Outcome) -> None:
        claim.outcome = outcome
        self._refused += 1

    def _end_wait(self, claim: Claim, outcome: Outcome, now: float) -> None:
        claim.outcome = outcome
        claim.waited_s = now - claim.asked_at
        self._wait_s += claim.waited_s
        self._longest_wait_s = max(self._longest_wait_s, claim.waited_s)
