"""The oldest strategy: requests of different sequences meet in a dynamic batcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reference_server.core.request import InferRequest
from reference_server.scheduling.sequence.inputs import AddedInputs
from reference_server.scheduling.sequence.lines import Line, Slot
from reference_server.scheduling.sequence.roster import Roster
from reference_server.scheduling.work import Batch, Refusal, WorkQueue


class OldestSequences:
    """A WorkQueue with a batcher for each instance, which has one request of a slot at a time.

    Which instance executes a sequence is decided when it gets its slot.
    """

    def __init__(
        self, roster: Roster, inputs: AddedInputs, make_batcher: Callable[[], WorkQueue]
    ) -> None:
        self._roster = roster
        self._inputs = inputs
        self._batchers = [make_batcher() for _ in roster.slots]
        self._given: dict[int, tuple[Slot, Line]] = {}  # by identity, until it is executed
        self._occupied: set[Slot] = set()  # those of which a request is with the batcher
        self._busy: set[int] = set()

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a request. Raises ServerError INVALID_ARG if it has no place in a sequence."""
        line = self._roster.enter(request, now_ns)
        if line.slot is not None:
            self._forward(line.slot, now_ns)

    def _forward(self, slot: Slot, now_ns: int) -> None:
        """Let the batcher have the next request of a slot, if it has none of it."""
        while slot.line is not None and slot.line.is_cancelled:
            self._roster.cancel(slot.line)
        line = slot.line
        if line is None or not line.waiting or slot in self._occupied:
            return
        request = self._roster.next_of(line)
        self._inputs.add(line, request)
        self._given[id(request)] = slot, line
        self._occupied.add(slot)
        self._batchers[slot.instance].offer(request, now_ns)

    def _look(self, now_ns: int) -> None:
        """End what has expired, and forward from the slots that others have got by that."""
        self._roster.expire(now_ns)
        while changed := self._roster.take_changed():
            for slot in changed:
                self._forward(slot, now_ns)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """The next batch of that instance's sequences, or None to wait for more."""
        self._look(now_ns)
        batch = self._batchers[instance].take(instance, now_ns)
        if batch:
            self._busy.add(instance)
        return batch

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Their sequences go on; those in `again` with the same request."""
        self._busy.discard(instance)
        self._batchers[instance].finished(instance, batch, [], now_ns)
        wanted = {id(request) for request in again}
        for request in batch:
            self._executed(request, again=id(request) in wanted, now_ns=now_ns)

    def _executed(self, request: InferRequest, *, again: bool, now_ns: int) -> None:
        slot, line = self._given.pop(id(request))
        self._occupied.discard(slot)
        self._roster.executed(line, request, again=again, now_ns=now_ns)
        self._forward(slot, now_ns)

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Those whose time in the backlog is over, and who was cancelled."""
        self._look(now_ns)
        refused: list[Refusal] = []
        for batcher in self._batchers:
            for refusal in batcher.refused(now_ns):
                refused.append(refusal)
                self._executed(refusal.request, again=False, now_ns=now_ns)
        return [*refused, *self._roster.take_refused()]

    def next_deadline_ns(self) -> int | None:
        """When a delay ends for an instance that is free, or a slot for who waits for one."""
        times = [
            self._roster.next_deadline_ns(),
            *(
                batcher.next_deadline_ns()
                for instance, batcher in enumerate(self._batchers)
                if instance not in self._busy
            ),
        ]
        return min((time for time in times if time is not None), default=None)

    def flush(self) -> None:
        """Wait for nothing: neither for company, nor for the rest of a sequence."""
        self._roster.flush()
        for batcher in self._batchers:
            batcher.flush()

    def __len__(self) -> int:
        return self._roster.waiting + sum(map(len, self._batchers))
