"""Events: marks recorded in one stream, for which another stream or the host waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from threading import RLock
from typing import NoReturn

from ascend_simulator.codes import Code, EventFlag, Refused
from ascend_simulator.resources import Budget, Handles
from ascend_simulator.streams.contexts import Context, Contexts
from ascend_simulator.streams.stream import Stream, Streams
from ascend_simulator.streams.tasks import Mark
from ascend_simulator.violations import declare, violate

NOT_RECORDED = declare("event.not-recorded", "Record an event before waiting for it.")
WAITED_FOR = declare(
    "event.destroyed-while-waited-for", "No stream may still wait for an event that is destroyed."
)
NO_TIME_LINE = declare("event.no-time-line", "Elapsed time needs events with ACL_EVENT_TIME_LINE.")
DEAD = declare("event.dead", "An event must not be used after it is destroyed.")
BAD_RESET = declare(
    "event.bad-reset", "reset_event needs events of create_event_with_flag with ACL_EVENT_SYNC."
)
BAD_QUERY = declare(
    "event.bad-query", "query_event does not accept events of create_event_ex_with_flag."
)
NO_SYNC = declare(
    "event.no-sync", "A stream can only wait for events of create_event or with ACL_EVENT_SYNC."
)


@dataclass(eq=False)
class Event:
    """An event. Callers hold no lock; methods that wait release the GIL.

    Events of create_event have `flags` None: they record time, order tasks and cannot be reset.
    Events of create_event_ex_with_flag have `is_ex`.
    """

    context: Context
    flags: EventFlag | None
    is_ex: bool
    name: str
    mark: Mark | None = None
    """The mark of the last record."""
    stream: Stream | None = None
    """The stream of the last record."""
    waits: dict[Stream, int] = field(default_factory=dict)
    """The number of the last wait for this event, by stream."""

    def record(self, stream: Stream) -> None:
        """Record the event after the current last task of `stream`."""
        self.mark = stream.record()
        self.stream = stream

    def reset(self) -> None:
        """Return to the state before the first record. Checks BAD_RESET."""
        if self.flags is None or self.is_ex or not self._orders:
            self._refuse(BAD_RESET, "reset_event")
        self.mark = None

    def delay(self, stream: Stream) -> None:
        """Make all later tasks of `stream` wait for the event.

        Checks NO_SYNC and NOT_RECORDED.
        """
        if not self._orders:
            self._refuse(NO_SYNC, "stream_wait_event")
        if self.mark is None:
            self._violate_not_recorded("stream_wait_event")
            return
        self.waits[stream] = stream.wait_for(self.mark)

    def synchronize(self, streams: Streams, timeout_s: float | None) -> None:
        """Make the host wait for the event. Checks NOT_RECORDED.

        Raises Refused RT_EVENT_SYNC_TIMEOUT, and like `Stream.rethrow`.
        """
        if self.mark is None or self.stream is None:
            self._violate_not_recorded("synchronize_event")
            return
        if not streams.wait(self.mark, timeout_s):
            raise Refused(Code.RT_EVENT_SYNC_TIMEOUT, f"{self.name}: not done after {timeout_s} s")
        # Raise only violations; a wait for the stream reports a failed task.
        self.stream.rethrow()

    def check_query(self) -> None:
        """Check BAD_QUERY: the deprecated query_event must accept this event."""
        if self.is_ex:
            self._refuse(BAD_QUERY, "query_event")

    def is_done(self, streams: Streams) -> bool:
        """Return whether the event is recorded and complete. Checks NOT_RECORDED.

        An event of create_event_ex_with_flag is complete before it is recorded, according to the
        page of aclrtRecordEvent. Raises like `Stream.rethrow`.
        """
        if self.mark is None or self.stream is None:
            if self.is_ex:
                return True
            self._violate_not_recorded("query_event")
            return False
        done = streams.is_done(self.mark)
        if done:
            self.stream.rethrow()
        return done

    def stamp_ns(
        self,
        streams: Streams,
        not_recorded: Code = Code.RT_EVENT_NOT_COMPLETE,
        not_passed: Code = Code.RT_EVENT_NOT_COMPLETE,
    ) -> int:
        """Return the time at which the event completed. Checks NO_TIME_LINE, NOT_RECORDED.

        Raises Refused with the given codes if the event was not recorded or is not complete.
        """
        if self.flags is not None and not self.flags & EventFlag.ACL_EVENT_TIME_LINE:
            violate(NO_TIME_LINE, f"{self.name}: found flags {int(self.flags):#x}")
            raise Refused(Code.RT_PARAM_INVALID, f"{self.name}: records no time")
        if not self.is_done(streams) or self.mark is None:
            code = not_recorded if self.mark is None else not_passed
            raise Refused(code, f"{self.name}: not complete")
        return self.mark.stamp_ns

    def destroy(self) -> None:
        """Check WAITED_FOR: no stream may still wait for the event."""
        waiting = [stream.name for stream, number in self.waits.items() if stream.waits_at(number)]
        if waiting:
            violate(WAITED_FOR, f"{self.name}: found waiting {', '.join(waiting)}")

    @property
    def _orders(self) -> bool:
        return self.flags is None or bool(self.flags & EventFlag.ACL_EVENT_SYNC)

    def _refuse(self, rule: str, what: str) -> NoReturn:
        flags = "" if self.flags is None else f" with flags {int(self.flags):#x}"
        maker = "create_event" + ("_ex" if self.is_ex else "") + ("_with_flag" if flags else "")
        text = f"{what}: {self.name}: found an event of {maker}{flags}"
        violate(rule, text)
        raise Refused(Code.RT_PARAM_INVALID, text)

    def _violate_not_recorded(self, what: str) -> None:
        violate(NOT_RECORDED, f"{what}: {self.name}: found no earlier record_event")


class Events:
    """The events of the process. Safe from any thread."""

    def __init__(self, contexts: Contexts, lock: RLock, most: int) -> None:
        """Make the events; `most` is the maximum on each device."""
        self._contexts = contexts
        self._lock = lock
        self._budget = Budget("events", most, Code.RT_NO_EVENT_RESOURCE)
        self._handles: Handles[Event] = Handles("event")
        self._names = count(1)

    def get(self, handle: int, what: str) -> Event:
        """Return the event. Checks DEAD.

        Raises Refused: RT_CONTEXT_NULL, INVALID_PARAM for null, RT_PARAM_INVALID for a destroyed
        event in lenient mode, RT_STREAM_CONTEXT for an event of another context (for some calls
        inferred: the documents only say that events belong to their context).
        """
        context = self._contexts.get()
        event = self._handles.get(handle)
        if event is None:
            if handle == 0:
                raise Refused(Code.INVALID_PARAM, f"{what}: found a null event")
            text = f"{what}: {handle:#x}: not an event, or destroyed"
            violate(DEAD, text)
            raise Refused(Code.RT_PARAM_INVALID, text)
        if event.context is not context:
            raise Refused(
                Code.RT_STREAM_CONTEXT, f"{what}: {event.name}: not of this thread's context"
            )
        return event

    def create(self, flags: EventFlag | None, *, is_ex: bool = False) -> int:
        """Create an event; return its handle.

        Raises Refused: RT_CONTEXT_NULL, RT_NO_EVENT_RESOURCE.
        """
        context = self._contexts.get()
        with self._lock:
            # CANN's create_event takes the resource at the first record; this check is stricter.
            self._budget.take(context.device, "create_event")
            event = Event(context, flags, is_ex, f"event {next(self._names)}")
            handle = self._handles.add(event)
            context.contents[handle] = event.name
        return handle

    def destroy(self, handle: int) -> None:
        """Destroy an event immediately. Checks WAITED_FOR; raises like `get`."""
        event = self.get(handle, "destroy_event")
        event.destroy()
        with self._lock:
            self.drop(handle)
            del event.context.contents[handle]

    def drop(self, handle: int) -> bool:
        """Remove an event without checking rules; return whether it existed."""
        event = self._handles.get(handle)
        if event is None:
            return False
        self._handles.remove(handle)
        self._budget.give(event.context.device)
        return True
