"""Callbacks: functions of the program that a stream has run on a thread of the program.

A stream that is subscribed puts a callback on the desk of its thread when it comes to it; the
thread takes it from there by acl.rt.process_report. A blocking one holds the stream up until it has
returned.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ascend_simulator.codes import Code, Refused
from ascend_simulator.origins import Origin, of_task, origin
from ascend_simulator.streams.stream import Stream
from ascend_simulator.streams.stream_table import Streams
from ascend_simulator.streams.tasks import Mark, Task
from ascend_simulator.violations import SimulatorViolation, declare, violate

NOT_SERVED = declare(
    "callback.not-served", "The thread of a stream's callbacks lives until they have run."
)
PENDING = declare(
    "callback.unsubscribed-pending", "A stream is unsubscribed when its callbacks have run."
)
WAITS = declare("callback.waits-for-itself", "No callback waits for the stream that waits for it.")
RAISED = declare("callback.raised", "A callback raises nothing: nobody hears of it.", caution=True)


@dataclass(eq=False)
class _Callback:
    function: Callable[[Any], object]
    argument: Any
    stream: Stream
    blocks: bool
    done: Mark
    """Passed when it has returned; what it knows is what the stream knew when it came to it."""
    submitted: Origin


@dataclass(eq=False)
class _Desk:
    """What waits for one thread."""

    thread_id: int
    device: int
    thread: threading.Thread | None
    """As it was when it was named: its number may be another's once it has ended."""
    streams: set[Stream] = field(default_factory=set)
    waiting: deque[_Callback] = field(default_factory=deque)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    @property
    def is_served(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


class _Inside(threading.local):
    callback: _Callback | None = None


class Reports:
    """The subscriptions and callbacks of the process. Safe from any thread."""

    def __init__(self, streams: Streams) -> None:
        self._streams: Final = streams
        self._lock: Final = threading.Lock()
        self._desks: dict[int, _Desk] = {}
        self._of_stream: dict[Stream, _Desk] = {}
        self._launched: dict[_Callback, _Desk] = {}
        """Callbacks that have not returned, oldest first."""
        self._inside: Final = _Inside()

    def live(self) -> list[str]:
        """The streams that are still subscribed."""
        return [f"the callbacks of {stream.name}" for stream in self._of_stream]

    # -- subscriptions ----------------------------------------------------------------------------

    def subscribe(self, thread_id: int, stream: Stream, device: int) -> None:
        """The stream's callbacks run on that thread from now on.

        Raises Refused (both are inferences): RT_STREAM_SUBSCRIBE for a stream that is subscribed,
        RT_THREAD_SUBSCRIBE for a thread that serves another device.
        """
        with self._lock:
            if stream in self._of_stream:
                text = f"subscribe_report: {stream.name}: found it subscribed"
                raise Refused(Code.RT_STREAM_SUBSCRIBE, text)
            desk = self._desks.setdefault(thread_id, _Desk(thread_id, device, _thread(thread_id)))
            if desk.device != device:
                text = f"subscribe_report: thread {thread_id:#x}: found it serving device "
                raise Refused(Code.RT_THREAD_SUBSCRIBE, f"{text}{desk.device}")
            desk.streams.add(stream)
            self._of_stream[stream] = desk

    def unsubscribe(self, thread_id: int, stream: Stream) -> None:
        """The stream has no thread any more. Violates PENDING; callbacks that wait are then lost.

        Raises Refused RT_THREAD_SUBSCRIBE where the thread does not serve it (an inference).
        """
        with self._lock:
            desk = self._desks.get(thread_id)
            if desk is None or stream not in desk.streams:
                text = f"unsubscribe_report: {stream.name}: found no subscription of it with "
                raise Refused(Code.RT_THREAD_SUBSCRIBE, f"{text}thread {thread_id:#x}")
            desk.streams.remove(stream)
            del self._of_stream[stream]
            if not desk.streams:
                del self._desks[thread_id]
            lost = [each for each in self._launched if each.stream is stream]
        if lost:
            self._drop(lost)
            violate(PENDING, f"unsubscribe_report: {stream.name}: found {len(lost)} that wait")

    # -- callbacks --------------------------------------------------------------------------------

    def launch(
        self, function: Callable[[Any], object], argument: object, stream: Stream, *, blocks: bool
    ) -> None:
        """Have `function(argument)` run when the stream comes to it.

        Raises Refused RT_STREAM_NO_CB_REG for a stream that is not subscribed.
        """
        with self._lock, self._streams.lock:
            desk = self._of_stream.get(stream)
            if desk is None:
                text = f"launch_callback: {stream.name}: found no subscribe_report before"
                raise Refused(Code.RT_STREAM_NO_CB_REG, text)
            ordering = self._streams.ordering
            done = Mark(ordering.upto(stream.number))
            callback = _Callback(function, argument, stream, blocks, done, origin())
            self._launched[callback] = desk
            stream.submit(Task(lambda: self._arrive(desk, callback), (), (), "launch_callback"))
            if blocks:
                stream.wait_for(done)

    def process(self, timeout_s: float | None) -> None:
        """Run the next callback of this thread, which waits for it.

        Violates RAISED, a caution. Raises Refused: RT_THREAD_SUBSCRIBE where nothing is subscribed,
        RT_REPORT_TIMEOUT where nothing comes.
        """
        desk = self._desks.get(threading.get_ident())
        if desk is None:
            raise Refused(Code.RT_THREAD_SUBSCRIBE, "process_report: found no subscription")
        while not desk.waiting and self._streams.look():
            pass
        with desk.arrived:
            if not desk.arrived.wait_for(lambda: desk.waiting, timeout_s):
                raise Refused(Code.RT_REPORT_TIMEOUT, f"process_report: nothing in {timeout_s} s")
            callback = desk.waiting.popleft()
        self._run(callback)

    def awaited(self) -> Mark | None:
        """What a callback will pass, for a host with nothing else to wait for; None if none will.

        Violates NOT_SERVED; lenient mode then drops the callbacks that nobody runs.
        """
        with self._lock:
            lost = [each for each, desk in self._launched.items() if not desk.is_served]
            waiting = [each.done for each in self._launched if each not in lost]
        if lost:
            self._drop(lost)
            first = lost[0]
            with of_task(first.submitted):
                text = f"{first.stream.name}: found {len(lost)} callback(s), and their thread ended"
                violate(NOT_SERVED, f"launch_callback: {text}")
        return waiting[0] if waiting else None

    def check_wait(self, stream: Stream, what: str) -> None:
        """The thread is about to wait for `stream`. Violates WAITS.

        Raises Refused RT_STREAM_SYNC_TIMEOUT after a violation that lenient mode lets pass.
        """
        inside = self._inside.callback
        if inside is not None and inside.blocks and inside.stream is stream:
            text = f"{what}: {stream.name}: found a callback that it waits for"
            violate(WAITS, text)
            raise Refused(Code.RT_STREAM_SYNC_TIMEOUT, text)

    # -- inside -----------------------------------------------------------------------------------

    def _arrive(self, desk: _Desk, callback: _Callback) -> None:
        with desk.arrived:
            desk.waiting.append(callback)
            desk.arrived.notify_all()

    def _run(self, callback: _Callback) -> None:
        stream, ordering = callback.stream, self._streams.ordering
        with self._streams.lock:
            ordering.observe(callback.done.knowledge)
            if callback.blocks:
                ordering.hold(stream.number)
        self._inside.callback = callback
        try:
            callback.function(callback.argument)
        except SimulatorViolation as violation:
            stream.remember(violation)
        except Exception as error:
            with of_task(callback.submitted):
                violate(RAISED, f"launch_callback: found {type(error).__name__}: {error}")
        finally:
            self._inside.callback = None
            if callback.blocks:
                with self._streams.lock:
                    ordering.let_go(stream.number)
            self._drop([callback])

    def _drop(self, callbacks: list[_Callback]) -> None:
        with self._lock:
            for callback in callbacks:
                if self._launched.pop(callback, None) is not None:
                    callback.done.pass_()


def _thread(thread_id: int) -> threading.Thread | None:
    found = (each for each in threading.enumerate() if each.ident == thread_id)
    return next(found, None)
