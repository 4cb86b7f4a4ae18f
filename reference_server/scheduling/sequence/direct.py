"""The direct strategy: each sequence has its own row in the batches of one instance."""

from __future__ import annotations

from collections.abc import Sequence

from reference_server.config.scheduler_settings import Direct
from reference_server.core.request import InferRequest
from reference_server.scheduling.sequence.inputs import AddedInputs
from reference_server.scheduling.sequence.lines import Line, Slot
from reference_server.scheduling.sequence.roster import Roster
from reference_server.scheduling.work import Batch, Refusal


class DirectSequences:
    """A WorkQueue that gives an instance at most one request for each of its slots.

    A batch reaches up to the highest slot with a waiting request; null requests are where a slot
    below has none, or one of other shapes than the first.
    """

    def __init__(self, roster: Roster, settings: Direct, inputs: AddedInputs) -> None:
        self._roster = roster
        self._inputs = inputs
        self._delay_ns = settings.max_queue_delay_us * 1000
        self._utilization = settings.minimum_slot_utilization
        self._batches: dict[int, list[tuple[Line, InferRequest]]] = {}  # by busy instance

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a request. Raises ServerError INVALID_ARG if it has no place in a sequence."""
        self._roster.enter(request, now_ns)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """The next request of each sequence on that instance, or None to wait for more."""
        self._roster.expire(now_ns)
        slots = self._roster.slots[instance]
        for slot in slots:
            while slot.line is not None and slot.line.is_cancelled:
                self._roster.cancel(slot.line)
        ready = _ready(slots)
        if not ready or self._waits_until(instance, ready) > now_ns:
            return None
        given: dict[int, InferRequest] = {}
        executed: list[tuple[Line, InferRequest]] = []
        for number, line in ready.items():
            request = self._roster.next_of(line)
            self._inputs.add(line, request)
            given[number] = request
            executed.append((line, request))
        self._batches[instance] = executed
        like = executed[0][1]
        return [
            given[number] if number in given else self._inputs.null(like)
            for number in range(max(given) + 1)
        ]

    def _waits_until(self, instance: int, ready: dict[int, Line]) -> int:
        """When a batch of these would start if nothing else came."""
        full = len(ready) / len(self._roster.slots[instance]) >= self._utilization
        if not self._delay_ns or full:
            return 0
        return min(line.waiting[0].queued_ns for line in ready.values()) + self._delay_ns

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Take back those that want to be executed again; they go on in their sequence's slot."""
        wanted = {id(request) for request in again}
        for line, request in self._batches.pop(instance):
            self._roster.executed(line, request, again=id(request) in wanted, now_ns=now_ns)

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Those whose time in the backlog is over, and the sequences that were cancelled."""
        self._roster.expire(now_ns)
        return self._roster.take_refused()

    def next_deadline_ns(self) -> int | None:
        """When a delay ends for an instance that is free, or a slot for who waits for one."""
        times = [
            self._waits_until(instance, ready)
            for instance, slots in enumerate(self._roster.slots)
            if self._delay_ns and instance not in self._batches and (ready := _ready(slots))
        ]
        slot_ns = self._roster.next_deadline_ns()
        return min(times if slot_ns is None else [*times, slot_ns], default=None)

    def flush(self) -> None:
        """Wait for nothing: neither for company, nor for the rest of a sequence."""
        self._delay_ns = 0
        self._roster.flush()

    def __len__(self) -> int:
        return self._roster.waiting


def _ready(slots: Sequence[Slot]) -> dict[int, Line]:
    """The sequences, by slot, whose next request can join the first one's batch."""
    waiting = {
        slot.number: slot.line for slot in slots if slot.line is not None and slot.line.waiting
    }
    keys = {number: line.waiting[0].batch_key for number, line in waiting.items()}
    first = next(iter(keys.values()), None)
    return {number: line for number, line in waiting.items() if keys[number] == first}
