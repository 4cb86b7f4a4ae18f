"""The two strategies of the sequence batcher, each a WorkQueue.

Direct: each sequence has its own row in the batches of one instance. Oldest: a dynamic batcher
merges requests of different sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from reference_server.config.scheduler_settings import Direct, SequenceBatching
from reference_server.config.schema import ModelConfig
from reference_server.core.request import InferRequest
from reference_server.scheduling.dynamic_batcher import DynamicBatcher
from reference_server.scheduling.sequence_inputs import AddedInputs
from reference_server.scheduling.sequence_slots import SequenceQueue, SequenceSlots, Slot
from reference_server.scheduling.work_queue import Batch, Refusal, WorkQueue


class DirectSequences:
    """A WorkQueue whose batches have at most one request for each slot of the instance.

    A batch ends at the highest slot with a waiting request. A lower slot gets a null request if its
    sequence has no waiting request, or if the shapes of that request differ from the first
    request's.
    """

    takes_all = False

    def __init__(self, slots: SequenceSlots, settings: Direct, inputs: AddedInputs) -> None:
        self.slots = slots
        self._inputs = inputs
        self._delay_ns = settings.max_queue_delay_us * 1000
        self._utilization = settings.minimum_slot_utilization
        self._batches: dict[int, list[tuple[SequenceQueue, InferRequest]]] = {}  # by busy instance

    def offer(self, request: InferRequest, now_ns: int) -> None:
        self.slots.enter(request, now_ns)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """Return the next request of each sequence on this instance, or None to wait."""
        self.slots.expire(now_ns)
        slots = self.slots.by_instance[instance]
        for slot in slots:
            while slot.sequence is not None and slot.sequence.is_cancelled:
                self.slots.cancel(slot.sequence)
        ready = _ready(slots)
        if not ready or self._waits_until(instance, ready) > now_ns:
            return None
        given: dict[int, InferRequest] = {}
        executed: list[tuple[SequenceQueue, InferRequest]] = []
        for number, sequence in ready.items():
            request = self.slots.next_of(sequence)
            self._inputs.add(sequence, request)
            given[number] = request
            executed.append((sequence, request))
        self._batches[instance] = executed
        like = executed[0][1]
        return [
            given[number] if number in given else self._inputs.null(like)
            for number in range(max(given) + 1)
        ]

    def _waits_until(self, instance: int, ready: dict[int, SequenceQueue]) -> int:
        """Return when a batch of `ready` starts if no other request arrives."""
        full = len(ready) / len(self.slots.by_instance[instance]) >= self._utilization
        if not self._delay_ns or full:
            return 0
        return min(sequence.waiting[0].queued_ns for sequence in ready.values()) + self._delay_ns

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Record that `batch` was executed; requests in `again` stay in their sequence's slot."""
        wanted = {id(request) for request in again}
        for sequence, request in self._batches.pop(instance):
            self.slots.executed(sequence, request, again=id(request) in wanted, now_ns=now_ns)

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Return the requests of sequences that expired in the backlog or were cancelled."""
        self.slots.expire(now_ns)
        return self.slots.take_refused()

    def next_deadline_ns(self) -> int | None:
        """Return when a delay of an idle instance ends, or a sequence expires."""
        times = [
            self._waits_until(instance, ready)
            for instance, slots in enumerate(self.slots.by_instance)
            if self._delay_ns and instance not in self._batches and (ready := _ready(slots))
        ]
        slot_ns = self.slots.next_deadline_ns()
        return min(times if slot_ns is None else [*times, slot_ns], default=None)

    def flush(self) -> None:
        """Stop waiting for other requests, both of the batch and of a sequence."""
        self._delay_ns = 0
        self.slots.flush()

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Add and remove instances; a leaving instance keeps its sequences."""
        self.slots.resize(added, leaving)

    def keeps(self, instance: int) -> bool:
        return self.slots.keeps(instance)

    def __len__(self) -> int:
        return self.slots.waiting


def _ready(slots: Sequence[Slot]) -> dict[int, SequenceQueue]:
    """Return the sequences, by slot, whose next request can join the batch of the first."""
    waiting = {
        slot.number: slot.sequence
        for slot in slots
        if slot.sequence is not None and slot.sequence.waiting
    }
    keys = {number: sequence.waiting[0].batch_key for number, sequence in waiting.items()}
    first = next(iter(keys.values()), None)
    return {number: sequence for number, sequence in waiting.items() if keys[number] == first}


class OldestSequences:
    """A WorkQueue with a batcher for each instance. A batcher has one request of a slot at a time.

    A sequence is bound to an instance when it gets its slot.
    """

    takes_all = False

    def __init__(
        self, slots: SequenceSlots, inputs: AddedInputs, make_batcher: Callable[[], WorkQueue]
    ) -> None:
        self.slots = slots
        self._inputs = inputs
        self._make_batcher = make_batcher
        self._batchers = [make_batcher() for _ in slots.by_instance]
        # The slot and sequence of each request in a batcher or in execution, by the request's `id`.
        self._in_progress: dict[int, tuple[Slot, SequenceQueue]] = {}
        self._occupied: set[Slot] = set()  # slots of these requests
        self._busy: set[int] = set()

    def offer(self, request: InferRequest, now_ns: int) -> None:
        sequence = self.slots.enter(request, now_ns)
        if sequence.slot is not None:
            self._forward(sequence.slot, now_ns)

    def _forward(self, slot: Slot, now_ns: int) -> None:
        """Pass the next request of a slot to the batcher, unless the batcher has another."""
        while slot.sequence is not None and slot.sequence.is_cancelled:
            self.slots.cancel(slot.sequence)
        sequence = slot.sequence
        if sequence is None or not sequence.waiting or slot in self._occupied:
            return
        request = self.slots.next_of(sequence)
        self._inputs.add(sequence, request)
        self._in_progress[id(request)] = slot, sequence
        self._occupied.add(slot)
        self._batchers[slot.instance].offer(request, now_ns)

    def _refresh(self, now_ns: int) -> None:
        """End expired sequences, and forward requests of the sequences that get their slots."""
        self.slots.expire(now_ns)
        # Forwarding can end a cancelled sequence, which frees its slot again.
        while changed := self.slots.take_changed():
            for slot in changed:
                self._forward(slot, now_ns)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """Return the next batch of this instance's sequences, or None to wait for more requests."""
        self._refresh(now_ns)
        batch = self._batchers[instance].take(instance, now_ns)
        if batch:
            self._busy.add(instance)
        return batch

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Record that `batch` was executed; requests in `again` come next in their sequences."""
        self._busy.discard(instance)
        # Rescheduled requests return to their slots, in order, and not to the batcher.
        self._batchers[instance].finished(instance, batch, [], now_ns)
        wanted = {id(request) for request in again}
        for request in batch:
            self._executed(request, again=id(request) in wanted, now_ns=now_ns)

    def _executed(self, request: InferRequest, *, again: bool, now_ns: int) -> None:
        slot, sequence = self._in_progress.pop(id(request))
        self._occupied.discard(slot)
        self.slots.executed(sequence, request, again=again, now_ns=now_ns)
        self._forward(slot, now_ns)

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Return the requests of sequences that expired in the backlog or were cancelled."""
        self._refresh(now_ns)
        refused: list[Refusal] = []
        for batcher in self._batchers:
            for refusal in batcher.refused(now_ns):
                refused.append(refusal)
                # The sequence's later requests depend on the refused request.
                self.slots.cancel(self._in_progress[id(refusal.request)][1])
                self._executed(refusal.request, again=False, now_ns=now_ns)
        return [*refused, *self.slots.take_refused()]

    def next_deadline_ns(self) -> int | None:
        """Return when a delay of an idle instance ends, or a sequence expires."""
        times = [
            self.slots.next_deadline_ns(),
            *(
                batcher.next_deadline_ns()
                for instance, batcher in enumerate(self._batchers)
                if instance not in self._busy
            ),
        ]
        return min((time for time in times if time is not None), default=None)

    def flush(self) -> None:
        """Stop waiting for other requests, both of the batch and of a sequence."""
        self.slots.flush()
        for batcher in self._batchers:
            batcher.flush()

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Add and remove instances; a leaving instance keeps its sequences."""
        for _ in range(len(self._batchers), max(added, default=-1) + 1):
            self._batchers.append(self._make_batcher())
        self.slots.resize(added, leaving)
        self._refresh(now_ns)

    def keeps(self, instance: int) -> bool:
        return self.slots.keeps(instance) or len(self._batchers[instance]) > 0

    def __len__(self) -> int:
        return self.slots.waiting + sum(map(len, self._batchers))


def sequence_queue(
    config: ModelConfig, batching: SequenceBatching, initial: Mapping[str, bytes]
) -> WorkQueue:
    """Return the queue of a model with sequence batching.

    `initial` has the initial bytes of states, by input.
    """
    signature, strategy = config.signature, batching.strategy
    rows = max(1, signature.max_batch_size)
    slots_each = rows if isinstance(strategy, Direct) else strategy.max_candidates or rows
    slots = SequenceSlots(
        config.name,
        len(config.instance_names),
        slots_each,
        batching.max_idle_us * 1000,
        iterative=batching.iterative,
    )
    inputs = AddedInputs(
        batching,
        batches=signature.batches,
        initial=initial,
        shown=frozenset(output.name for output in signature.outputs),
    )
    if isinstance(strategy, Direct):
        return DirectSequences(slots, strategy, inputs)
    sizes, delay_ns = strategy.preferred_batch_sizes, strategy.max_queue_delay_us * 1000
    return OldestSequences(slots, inputs, lambda: DynamicBatcher(rows, sizes, delay_ns))
