"""The slots of sequences, and the backlog of those without one. Pure; not thread-safe."""

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

#: How many times may be out of date, beside as many as there are sequences.
_SLACK = 64


@dataclass(slots=True, eq=False)
class SequenceQueue:
    """One sequence: its requests in their order. Without a `slot` it stands in the backlog.

    `waiting` are its requests that have not been given out, `executing` how many have. `is_over`:
    its last request has come, so nothing joins any more; `has_expired`: because none came for too
    long. `seen_ns` is when the newest request came, `expires_ns` when it has waited in the backlog
    for too long. `states` are what the last request left to the next, by the name of the input.
    `is_cancelled`: somebody has given up one of those waiting; then it is `given_up`, too.
    """

    key: int | str
    seen_ns: int
    given_up: deque[SequenceQueue]
    slot: Slot | None = None
    waiting: deque[InferRequest] = field(default_factory=deque)
    executing: int = 0
    is_over: bool = False
    has_expired: bool = False
    expires_ns: int | None = None
    states: dict[str, Tensor] = field(default_factory=dict)
    is_cancelled: bool = False

    def append(self, request: InferRequest) -> None:
        """Let a request wait behind the others."""
        self.waiting.append(request)
        request.cancellation.watch(self._give_up)

    def popleft(self) -> InferRequest:
        """The first request, which waits no more."""
        request = self.waiting.popleft()
        request.cancellation.unwatch(self._give_up)
        return request

    def _give_up(self) -> None:
        """On any thread: the next decision ends this sequence."""
        self.is_cancelled = True
        self.given_up.append(self)


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one sequence in the batches of `instance`; `number` counts from 0 in each."""

    instance: int
    number: int
    sequence: SequenceQueue | None = None


class _Times:
    """When sequences are due, of which any number may have been put off since, or ended.

    `due` says when one is, as of now; None if never. Whoever becomes due sooner is added again.
    """

    def __init__(self, due: Callable[[SequenceQueue], int | None]) -> None:
        self._due = due
        self._heap: list[tuple[int, int, SequenceQueue]] = []
        self._numbers = itertools.count()  # so that nothing but times is compared

    def add(self, sequence: SequenceQueue, count: int) -> None:
        """Note when a sequence is due; about `count` are due at some time."""
        due_ns = self._due(sequence)
        if due_ns is not None:
            heapq.heappush(self._heap, (due_ns, next(self._numbers), sequence))
        if len(self._heap) > 2 * count + _SLACK:
            self.renew(dict.fromkeys(sequence for _, _, sequence in self._heap))

    def renew(self, sequences: Iterable[SequenceQueue]) -> None:
        """Note when these are due, and nothing else."""
        self._heap = [
            (due_ns, next(self._numbers), sequence)
            for sequence in sequences
            if (due_ns := self._due(sequence)) is not None
        ]
        heapq.heapify(self._heap)

    def pop(self, now_ns: int) -> SequenceQueue | None:
        """A sequence that is due by now; None if there is none any more."""
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
        """No sequence is due before; None if none is ever."""
        return self._heap[0][0] if self._heap else None


class SequenceSlots:
    """The sequences of one model: they come, take a slot or wait for one, and end.

    A sequence that has got no request for `idle_ns` loses its slot, once those are executed that it
    has sent before. With `iterative` every request is a sequence of its own, which ends when the
    model has answered it.
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
        # By the id that requests join by: the sequences with a slot, and those in the backlog.
        self._placed: dict[int | str, SequenceQueue] = {}
        self._queued: dict[int | str, SequenceQueue] = {}
        # In order; unlike a deque it lets go who stands in the middle at once.
        self._backlog: OrderedDict[SequenceQueue, None] = OrderedDict()
        self._given_up: deque[SequenceQueue] = deque()  # any thread appends to it
        self._idle = _Times(self._idle_from_ns)  # those with a slot
        self._late = _Times(self._late_from_ns)  # those in the backlog
        self._refused: list[Refusal] = []
        self._ids = itertools.count(1)
        self._changed: dict[Slot, None] = {}  # in order, those that somebody has come to
        self.waiting = 0
        self.resize(range(instances), ())

    def resize(self, added: Collection[int], leaving: Collection[int]) -> None:
        """Instances come, and take over from the backlog; the slots of others are not given again.

        An instance that comes has the number of one that has left, or the next one.
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
        """Whether a sequence has a slot of that instance."""
        return any(slot.sequence is not None for slot in self.by_instance[instance])

    # ------------------------------------------------------------------------------------ coming

    def enter(self, request: InferRequest, now_ns: int) -> SequenceQueue:
        """Give `request` its place at the end of its sequence's queue.

        Raises ServerError INVALID_ARG, and then nothing has changed.
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
        # It has lost its slot, though nobody has looked since: what comes now has to begin anew.
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
            return self._begin(key, now_ns)
        if starts:
            log.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end "
                "before this sequence start. Previous sequence will be terminated early.",
                key,
                self._model,
            )
        return sequence

    def _begin(self, key: int | str, now_ns: int) -> SequenceQueue:
        sequence = SequenceQueue(key, now_ns, self._given_up)
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
        """The oldest waiting request of a sequence with a slot, to be executed now."""
        self.waiting -= 1
        sequence.executing += 1
        request = sequence.popleft()
        if not self._iterative:
            self._leave(sequence)
        return request

    def executed(
        self, sequence: SequenceQueue, request: InferRequest, *, again: bool, now_ns: int
    ) -> None:
        """A request of `sequence` has been executed; `again`: the model wants it once more."""
        sequence.executing -= 1
        if again:
            request.flags &= ~SequenceFlag.START
            request.queued_ns = sequence.seen_ns = now_ns
            self._append(sequence, request)
            self._idle.add(sequence, len(self._placed))
        elif self._iterative:
            self._close(sequence)
        self._leave(sequence)

    def _close(self, sequence: SequenceQueue) -> None:
        """Nothing joins this sequence any more; its id may begin another one."""
        sequence.is_over = True
        for names in (self._placed, self._queued):
            if names.get(sequence.key) is sequence:
                del names[sequence.key]

    def _leave(self, sequence: SequenceQueue) -> None:
        """Give the slot of a sequence to the next one if nothing more comes of it."""
        slot = sequence.slot
        if (
            slot is None
            or slot.sequence is not sequence
            or not sequence.is_over
            or sequence.waiting
        ):
            return
        # After its last request a sequence makes room at once: the next one's comes in a later
        # batch of the same instance. Not so if the model may want the request once more.
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
        """The slots that a sequence has come to since it was asked last."""
        changed, self._changed = list(self._changed), {}
        return changed

    # -------------------------------------------------------------------------------- giving up

    def expire(self, now_ns: int) -> None:
        """End the sequences that have been idle, or have waited for a slot, for too long."""
        while self._given_up:
            if (sequence := self._given_up.popleft()) in self._backlog:
                self.cancel(sequence)
        while (late := self._late.pop(now_ns)) is not None:
            self._drop(late, unavailable("timeout of the corresponding sequence has been expired"))
        # Whoever comes from the backlog may have been idle for as long: it is looked at, too.
        while (idle := self._idle.pop(now_ns)) is not None:
            idle.has_expired = True
            self._close(idle)
            self._leave(idle)

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
        """End a sequence of which a waiting request was given up: the rest would lack it."""
        self._drop(sequence, CANCELLED)

    def _drop(self, sequence: SequenceQueue, error: ServerError) -> None:
        self._refused += [Refusal(request, error) for request in sequence.waiting]
        self.waiting -= len(sequence.waiting)
        sequence.waiting.clear()
        self._close(sequence)
        self._backlog.pop(sequence, None)
        self._leave(sequence)

    def take_refused(self) -> Sequence[Refusal]:
        """Those who have been given up since it was asked last."""
        refused, self._refused = self._refused, []
        return refused

    def next_deadline_ns(self) -> int | None:
        """When time alone may change something: for who waits for a slot, or is to leave."""
        if not self._backlog and not any(map(self.keeps, self._leaving)):
            return None
        times = (self._idle.first_ns, self._late.first_ns)
        return min((time for time in times if time is not None), default=None)

    def flush(self) -> None:
        """No request comes any more: sequences without any leave their slots."""
        self._idle_ns = 0
        self._idle.renew(self._placed.values())
