"""The slots of sequences, and the backlog of sequences without a slot. Pure; not thread-safe."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from reference_server.core.errors import ServerError, invalid_arg, unavailable
from reference_server.core.request import InferRequest, SequenceFlag
from reference_server.core.tensor import Tensor
from reference_server.scheduling.work_queue import CANCELLED, Refusal

log = logging.getLogger(__name__)

#: `_Times` may have this many entries more than twice the number of sequences.
_SLACK = 64


@dataclass(slots=True, eq=False)
class SequenceQueue:
    """One sequence and its requests in order. A sequence without a `slot` is in the backlog.

    Attributes:
        key: The correlation id.
        seen_ns: When the newest request arrived.
        cancelled: The list of cancelled sequences, shared by all sequences of the model.
        slot: Its slot, if it has one.
        waiting: Its requests that no instance has received.
        executing: The number of its requests that are being executed.
        is_over: Whether it accepts no more requests: its last request has arrived, or it expired.
        has_expired: Whether it has ended because no request arrived for too long.
        expires_ns: The time at which it has waited in the backlog for too long; None means never.
        states: The states for the next request, by the name of the input.
        is_cancelled: Whether one of the waiting requests was cancelled.
    """

    key: int | str
    seen_ns: int
    cancelled: deque[SequenceQueue]
    slot: Slot | None = None
    waiting: deque[InferRequest] = field(default_factory=deque)
    executing: int = 0
    is_over: bool = False
    has_expired: bool = False
    expires_ns: int | None = None
    states: dict[str, Tensor] = field(default_factory=dict)
    is_cancelled: bool = False

    def append(self, request: InferRequest) -> None:
        """Append a request."""
        self.waiting.append(request)
        request.cancellation.watch(self._cancel)

    def popleft(self) -> InferRequest:
        """Remove and return the first waiting request."""
        request = self.waiting.popleft()
        request.cancellation.unwatch(self._cancel)
        return request

    def _cancel(self) -> None:
        """Mark the sequence, on any thread; the next decision ends it."""
        self.is_cancelled = True
        self.cancelled.append(self)


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one sequence in the batches of `instance`; `number` is its row, from 0."""

    instance: int
    number: int
    sequence: SequenceQueue | None = None


class _Times:
    """A heap of the times at which sequences become idle, or expire; entries may be outdated.

    `due` returns the current time of a sequence, or None if it is never due. A sequence must be
    added again when its time becomes earlier. `pop` corrects entries whose time became later.
    """

    def __init__(self, due: Callable[[SequenceQueue], int | None]) -> None:
        self._due = due
        self._heap: list[tuple[int, int, SequenceQueue]] = []
        self._numbers = itertools.count()  # so that the heap never compares sequences

    def add(self, sequence: SequenceQueue, count: int) -> None:
        """Add a sequence; about `count` sequences are in use, which limits the heap's size."""
        due_ns = self._due(sequence)
        if due_ns is not None:
            heapq.heappush(self._heap, (due_ns, next(self._numbers), sequence))
        if len(self._heap) > 2 * count + _SLACK:
            self.renew(dict.fromkeys(sequence for _, _, sequence in self._heap))

    def renew(self, sequences: Iterable[SequenceQueue]) -> None:
        """Replace all entries by the entries of `sequences`."""
        self._heap = [
            (due_ns, next(self._numbers), sequence)
            for sequence in sequences
            if (due_ns := self._due(sequence)) is not None
        ]
        heapq.heapify(self._heap)

    def pop(self, now_ns: int) -> SequenceQueue | None:
        """Remove and return a sequence that is due by `now_ns`; None if no sequence is due."""
        while self._heap and self._heap[0][0] <= now_ns:
            sequence = heapq.heappop(self._heap)[2]
            due_ns = self._due(sequence)
            if due_ns is not None and due_ns <= now_ns:
                return sequence
            if due_ns is not None:
                heapq.heappush(self._heap, (due_ns, next(self._numbers), sequence))
        return None

    @property
    def first_ns(self) -> int | None:
        """A time before which no sequence is due; None if there is no entry."""
        return self._heap[0][0] if self._heap else None


class SequenceSlots:
    """The sequences of one model, with and without a slot. Not thread-safe.

    A sequence loses its slot when it has received no request for `idle_ns` and its earlier requests
    have been executed. With `iterative`, every request is a sequence of its own, which ends when
    the model has answered it.
    """

    def __init__(
        self, model: str, instances: int, slots_each: int, idle_ns: int, *, iterative: bool
    ) -> None:
        self._model = model
        self._idle_ns = idle_ns
        self._iterative = iterative
        self._slots_each = slots_each
        self.by_instance: list[list[Slot]] = []
        self._free: list[tuple[int, int]] = []
        self._leaving: set[int] = set()
        # The sequences that requests can join, by correlation id: `_placed` have a slot, `_queued`
        # are in the backlog.
        self._placed: dict[int | str, SequenceQueue] = {}
        self._queued: dict[int | str, SequenceQueue] = {}
        # In order of arrival. Unlike a deque, it removes any element in constant time.
        self._backlog: OrderedDict[SequenceQueue, None] = OrderedDict()
        self._cancelled: deque[SequenceQueue] = deque()  # any thread appends to it
        self._idle = _Times(self._idle_from_ns)  # sequences with a slot
        self._late = _Times(self._late_from_ns)  # sequences in the backlog
        self._refused: list[Refusal] = []
        self._ids = itertools.count(1)
        self._changed: dict[Slot, None] = {}  # in order; slots with a new sequence
        self.waiting = 0  # requests that no instance has received
        self.resize(range(instances), ())

    @property
    def open(self) -> int:
        """The number of sequences that have started and not ended."""
        return len(self._placed) + len(self._queued)

    def continues(self, request: InferRequest) -> bool:
        """Return whether a request belongs to a sequence that has started and not ended."""
        id = request.correlation_id
        return id in self._placed or id in self._queued

    def resize(self, added: Collection[int], leaving: Collection[int]) -> None:
        """Add instances, which take sequences from the backlog, and retire slots of `leaving`.

        An added instance has the number of a removed instance, or the next number.
        """
        self._leaving.update(leaving)
        self._free = [place for place in self._free if place[1] not in self._leaving]
        for instance in added:
            if instance == len(self.by_instance):
                slots = [Slot(instance, number) for number in range(self._slots_each)]
                self.by_instance.append(slots)
            self._leaving.discard(instance)
            self._free += [(number, instance) for number in range(self._slots_each)]
        heapq.heapify(self._free)
        while self._backlog and self._free:
            number, instance = heapq.heappop(self._free)
            self._assign(self._backlog.popitem(last=False)[0], self.by_instance[instance][number])

    def keeps(self, instance: int) -> bool:
        """Return whether a sequence has a slot of this instance."""
        return any(slot.sequence is not None for slot in self.by_instance[instance])

    # ----------------------------------------------------------------------------------- arrival

    def enter(self, request: InferRequest, now_ns: int) -> SequenceQueue:
        """Append `request` to its sequence, and return the sequence.

        Raises ServerError INVALID_ARG if the request fits no sequence; then nothing has changed.
        """
        if request.batch_size > 1:
            raise invalid_arg(
                f"inference request to model '{self._model}' must specify batch-size 1 due to "
                "requirements of sequence batcher"
            )
        if not request.correlation_id:
            if not self._iterative:
                raise invalid_arg(
                    f"inference request to model '{self._model}' must specify a non-zero or "
                    "non-empty correlation ID"
                )
            request.correlation_id = self._new_id()
            request.flags = SequenceFlag.START
        sequence = self._find(request, now_ns)
        sequence.seen_ns = now_ns
        self._append(sequence, request)
        if sequence.slot is None and request.timeout_us:
            expires_ns = now_ns + request.timeout_us * 1000
            if sequence.expires_ns is None or expires_ns < sequence.expires_ns:
                sequence.expires_ns = expires_ns
                self._late.add(sequence, len(self._backlog))
        if request.flags & SequenceFlag.END:
            self._close(sequence)
        return sequence

    def _new_id(self) -> int:
        return next(key for key in self._ids if key not in self._placed and key not in self._queued)

    def _find(self, request: InferRequest, now_ns: int) -> SequenceQueue:
        key = request.correlation_id
        starts = bool(request.flags & SequenceFlag.START)
        sequence = self._placed.get(key)
        # An idle sequence has ended, even if `expire` has not removed it yet.
        if sequence is not None and self._is_idle(sequence, now_ns):
            sequence = None
        sequence = sequence or self._queued.get(key)
        if sequence is None:
            if not starts:
                raise invalid_arg(
                    f"inference request for sequence {key} to model '{self._model}' must specify "
                    "the START flag on the first request of the sequence"
                )
            self.expire(now_ns)
            return self._start(key, now_ns)
        if starts:
            log.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end "
                "before this sequence start. Previous sequence will be terminated early.",
                key,
                self._model,
            )
        return sequence

    def _start(self, key: int | str, now_ns: int) -> SequenceQueue:
        sequence = SequenceQueue(key, now_ns, self._cancelled)
        self._queued[key] = sequence
        if self._free:
            number, instance = heapq.heappop(self._free)
            self._assign(sequence, self.by_instance[instance][number])
        else:
            self._backlog[sequence] = None
        return sequence

    def _append(self, sequence: SequenceQueue, request: InferRequest) -> None:
        sequence.append(request)
        self.waiting += 1

    # --------------------------------------------------------------------------------- execution

    def next_of(self, sequence: SequenceQueue) -> InferRequest:
        """Remove and return the oldest waiting request of a sequence with a slot, to execute it."""
        self.waiting -= 1
        sequence.executing += 1
        request = sequence.popleft()
        if not self._iterative:
            self._free_slot(sequence)
        return request

    def executed(
        self, sequence: SequenceQueue, request: InferRequest, *, again: bool, now_ns: int
    ) -> None:
        """Record that a request of `sequence` was executed; `again` if it was rescheduled."""
        sequence.executing -= 1
        if again:
            request.flags &= ~SequenceFlag.START
            request.queued_ns = sequence.seen_ns = now_ns
            self._append(sequence, request)
            self._idle.add(sequence, len(self._placed))
        elif self._iterative:
            self._close(sequence)
        self._free_slot(sequence)

    def _close(self, sequence: SequenceQueue) -> None:
        """Accept no more requests for this sequence; its id may start a new sequence."""
        sequence.is_over = True
        for names in (self._placed, self._queued):
            if names.get(sequence.key) is sequence:
                del names[sequence.key]

    def _free_slot(self, sequence: SequenceQueue) -> None:
        """Give the slot of a sequence without further requests to the next sequence."""
        slot = sequence.slot
        if (
            slot is None
            or slot.sequence is not sequence
            or not sequence.is_over
            or sequence.waiting
        ):
            return
        # The slot is free as soon as an instance has received the last request: the next sequence's
        # requests are in a later batch of the same instance. But if the model may reschedule that
        # request, the slot stays occupied until the request was executed.
        if sequence.executing and (self._iterative or sequence.has_expired):
            return
        slot.sequence = None
        if slot.instance in self._leaving:
            return
        if self._backlog:
            self._assign(self._backlog.popitem(last=False)[0], slot)
        else:
            heapq.heappush(self._free, (slot.number, slot.instance))

    def _assign(self, sequence: SequenceQueue, slot: Slot) -> None:
        sequence.slot, slot.sequence = slot, sequence
        sequence.expires_ns = None
        self._changed[slot] = None
        if self._queued.get(sequence.key) is sequence:
            del self._queued[sequence.key]
            self._placed[sequence.key] = sequence
            self._idle.add(sequence, len(self._placed))

    def take_changed(self) -> Sequence[Slot]:
        """Return the slots that received a sequence since the last call."""
        changed, self._changed = list(self._changed), {}
        return changed

    # ------------------------------------------------------------------- expiry and cancellation

    def expire(self, now_ns: int) -> None:
        """End the sequences that were idle, or waited for a slot, for too long."""
        while self._cancelled:
            if (sequence := self._cancelled.popleft()) in self._backlog:
                self.cancel(sequence)
        while (late := self._late.pop(now_ns)) is not None:
            self._drop(late, unavailable("timeout of the corresponding sequence has been expired"))
        # A sequence that moves from the backlog to a slot in this loop may be idle as well.
        while (idle := self._idle.pop(now_ns)) is not None:
            idle.has_expired = True
            self._close(idle)
            self._free_slot(idle)

    def _late_from_ns(self, sequence: SequenceQueue) -> int | None:
        return sequence.expires_ns if sequence in self._backlog else None

    def _idle_from_ns(self, sequence: SequenceQueue) -> int | None:
        if self._placed.get(sequence.key) is not sequence or self._executes_iteratively(sequence):
            return None
        return sequence.seen_ns + self._idle_ns

    def _executes_iteratively(self, sequence: SequenceQueue) -> bool:
        return self._iterative and sequence.executing > 0

    def _is_idle(self, sequence: SequenceQueue, now_ns: int) -> bool:
        idle = now_ns - sequence.seen_ns >= self._idle_ns
        return idle and not self._executes_iteratively(sequence)

    def cancel(self, sequence: SequenceQueue) -> None:
        """End a sequence of which a waiting request was cancelled: later requests depend on it."""
        self._drop(sequence, CANCELLED)

    def _drop(self, sequence: SequenceQueue, error: ServerError) -> None:
        self._refused += [Refusal(request, error) for request in sequence.waiting]
        self.waiting -= len(sequence.waiting)
        sequence.waiting.clear()
        self._close(sequence)
        self._backlog.pop(sequence, None)
        self._free_slot(sequence)

    def take_refused(self) -> Sequence[Refusal]:
        """Return the requests refused since the last call."""
        refused, self._refused = self._refused, []
        return refused

    def next_deadline_ns(self) -> int | None:
        """Return when to call `expire`, if sequences wait for a slot or an instance is leaving."""
        if not self._backlog and not any(map(self.keeps, self._leaving)):
            return None
        times = (self._idle.first_ns, self._late.first_ns)
        return min((time for time in times if time is not None), default=None)

    def flush(self) -> None:
        """Expect no more requests: sequences without waiting requests lose their slots."""
        self._idle_ns = 0
        self._idle.renew(self._placed.values())
