"""Events: marks that are recorded in one stream and waited for in another or on the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from threading import RLock
from typing import NoReturn

from ascend_simulator.codes import Code, Refused
from ascend_simulator.enumerations import EventFlag
from ascend_simulator.resources import Budget, Handles
from ascend_simulator.streams.contexts import Context, Contexts
from ascend_simulator.streams.stream import Stream
from ascend_simulator.streams.stream_table import Streams
from ascend_simulator.streams.tasks import Mark
from ascend_simulator.violations import declare, violate

NOT_RECORDED = declare("event.not-recorded", "An event is recorded before it is waited for.")
WAITED_FOR = declare("event.destroyed-while-waited-for", "No stream waits for an event that goes.")
NO_TIME_LINE = declare(
    "event.no-time-line", "Time is taken between events that were made with ACL_EVENT_TIME_LINE."
)
DEAD = declare("event.dead", "An event is used until it is destroyed, and not after.")
BAD_RESET = declare(
    "event.bad-reset",
    "reset_event gets events that create_event_with_flag made with ACL_EVENT_SYNC.",
)
BAD_QUERY = declare(
    "event.bad-query", "query_event gets events that create_event_ex_with_flag did not make."
)
NO_SYNC = declare(
    "event.no-sync", "A stream waits for events of create_event, and those with ACL_EVENT_SYNC."
)


@dataclass(eq=False)
class Event:
    """flags: None for create_event, which takes time and orders, and cannot be reset.

    is_ex: made by create_event_ex_with_flag. Callers hold no lock; methods that wait release the
    GIL.
    """

    context: Context
    flags: EventFlag | None
    is_ex: bool
    name: str
    mark: Mark | None = None
    """Of the last record."""
    stream: Stream | None = None
    """Of the last record."""
    waits: dict[Stream, int] = field(default_factory=dict)
    """Stream -> number of its last wait for this event."""

    def record(self, stream: Stream) -> None:
        """The event is where `stream` now ends."""
        self.mark = stream.record()
        self.stream = stream

    def reset(self) -> None:
        """The event counts as not recorded. Violates BAD_RESET."""
        if self.flags is None or self.is_ex or not self._orders:
            self._refuse(BAD_RESET, "reset_event")
        self.mark = None

    def delay(self, stream: Stream) -> None:
        """Whatever is submitted to `stream` now comes after the event.

        Violates NO_SYNC and NOT_RECORDED.
        """
        if not self._orders:
            self._refuse(NO_SYNC, "stream_wait_event")
        if self.mark is None:
            self._violate_not_recorded("stream_wait_event")
            return
        self.waits[stream] = stream.wait_for(self.mark)

    def synchronize(self, streams: Streams, timeout_s: float | None) -> None:
        """The host waits. Violates NOT_RECORDED.

        Raises Refused RT_EVENT_SYNC_TIMEOUT, and what `Stream.rethrow` raises.
        """
        if self.mark is None or self.stream is None:
            self._violate_not_recorded("synchronize_event")
            return
        if not streams.wait(self.mark, timeout_s):
            raise Refused(Code.RT_EVENT_SYNC_TIMEOUT, f"{self.name}: not done after {timeout_s} s")
        # Violations alone: that a task failed is told by a wait for its stream.
        self.stream.rethrow()

    def check_query(self) -> None:
        """Whether the deprecated query may be asked. Violates BAD_QUERY."""
        if self.is_ex:
            self._refuse(BAD_QUERY, "query_event")

    def is_done(self, streams: Streams) -> bool:
        """Whether the event is recorded and passed. Violates NOT_RECORDED.

        One that create_event_ex_with_flag made is passed before it is recorded, by the page of
        aclrtRecordEvent. Raises what `Stream.rethrow` raises.
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
        """When the stream passed it. Violates NO_TIME_LINE, NOT_RECORDED.

        Raises Refused with the codes that are given where it was not recorded, or not passed yet.
        """
        if self.flags is not None and not self.flags & EventFlag.ACL_EVENT_TIME_LINE:
            violate(NO_TIME_LINE, f"{self.name}: found flags {int(self.flags):#x}")
            raise Refused(Code.RT_PARAM_INVALID, f"{self.name}: it takes no time")
        if not self.is_done(streams) or self.mark is None:
            code = not_recorded if self.mark is None else not_passed
            raise Refused(code, f"{self.name}: it is not complete")
        return self.mark.stamp_ns

    def destroy(self) -> None:
        """Check that nobody is left waiting. Violates WAITED_FOR."""
        waiting = [stream.name for stream, number in self.waits.items() if stream.waits_at(number)]
        if waiting:
            violate(WAITED_FOR, f"{self.name}: found {', '.join(waiting)} behind it")

    @property
    def _orders(self) -> bool:
        return self.flags is None or bool(self.flags & EventFlag.ACL_EVENT_SYNC)

    def _refuse(self, rule: str, what: str) -> NoReturn:
        flags = "" if self.flags is None else f" with flags {int(self.flags):#x}"
        maker = "create_event" + ("_ex" if self.is_ex else "") + ("_with_flag" if flags else "")
        text = f"{what}: {self.name}: found one that {maker} made{flags}"
        violate(rule, text)
        raise Refused(Code.RT_PARAM_INVALID, text)

    def _violate_not_recorded(self, what: str) -> None:
        violate(NOT_RECORDED, f"{what}: {self.name}: found no record_event before")


class Events:
    """The events of the process. Safe from any thread."""

    def __init__(self, contexts: Contexts, lock: RLock, most: int) -> None:
        """most: on each device."""
        self._contexts = contexts
        self._lock = lock
        self._budget = Budget("events", most, Code.RT_NO_EVENT_RESOURCE)
        self._handles: Handles[Event] = Handles("event")
        self._names = count(1)

    def get(self, handle: int, what: str) -> Event:
        """The event. Violates DEAD.

        Raises Refused: RT_CONTEXT_NULL, INVALID_PARAM for null, RT_PARAM_INVALID for a destroyed
        one that lenient mode lets pass, RT_STREAM_CONTEXT for one of another context: documents
        bind events to theirs, that it is so for every call is an inference.
        """
        context = self._contexts.get()
        event = self._handles.get(handle)
        if event is None:
            if handle == 0:
                raise Refused(Code.INVALID_PARAM, f"{what}: found a null event")
            text = f"{what}: {handle:#x}: found no living event"
            violate(DEAD, text)
            raise Refused(Code.RT_PARAM_INVALID, text)
        if event.context is not context:
            raise Refused(
                Code.RT_STREAM_CONTEXT,
                f"{what}: {event.name}: found it in another context than this thread's",
            )
        return event

    def create(self, flags: EventFlag | None, *, is_ex: bool = False) -> int:
        """Handle of a new event. Raises Refused: RT_CONTEXT_NULL, RT_NO_EVENT_RESOURCE."""
        context = self._contexts.get()
        with self._lock:
            # CANN's create_event takes it with the first record; counting from here is stricter.
            self._budget.take(context.device, "create_event")
            event = Event(context, flags, is_ex, f"event {next(self._names)}")
            handle = self._handles.add(event)
            context.contents[handle] = event.name
        return handle

    def destroy(self, handle: int) -> None:
        """The event goes, at once. Violates WAITED_FOR; raises as `get` does."""
        event = self.get(handle, "destroy_event")
        event.destroy()
        with self._lock:
            self.drop(handle)
            del event.context.contents[handle]

    def drop(self, handle: int) -> bool:
        """Forget an event, whatever rules say; whether there was one."""
        event = self._handles.get(handle)
        if event is None:
            return False
        self._handles.remove(handle)
        self._budget.give(event.context.device)
        return True
