"""Callbacks: functions of the program that a stream runs on a thread of the program.

A program subscribes a stream with a thread. When the stream reaches a callback, the callback is put
into the thread's queue, from which acl.rt.process_report takes it on the thread. A blocking
callback stops the stream until the callback returns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ascend_simulator.codes import Code, Refused
from ascend_simulator.streams.stream import Stream, Streams
from ascend_simulator.streams.tasks import Mark, Task
from ascend_simulator.violations import (
    Origin,
    SimulatorViolation,
    declare,
    of_task,
    origin,
    violate,
)

NOT_SERVED = declare(
    "callback.not-served", "The thread of a stream's callbacks must not end before they have run."
)
PENDING = declare(
    "callback.unsubscribed-pending", "Unsubscribe a stream only after its callbacks have run."
)
WAITS = declare(
    "callback.waits-for-itself", "A callback must not wait for the stream that waits for it."
)
RAISED = declare(
    "callback.raised", "A callback must not raise: the exception is lost.", caution=True
)


@dataclass(eq=False)
class _Callback:
    function: Callable[[Any], object]
    argument: Any
    stream: Stream
    blocks: bool
    done: Mark
    """Passed when the callback has returned. Its `knowledge` is that of the callback's position."""
    submitted: Origin


@dataclass(eq=False)
class _CallbackQueue:
    """The callbacks that wait for one thread."""

    thread_id: int
    device: int
    thread: threading.Thread | None
    """The thread with this id at the subscription; later the id may belong to another thread."""
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
        self._queues: dict[int, _CallbackQueue] = {}
        self._of_stream: dict[Stream, _CallbackQueue] = {}
        self._launched: dict[_Callback, _CallbackQueue] = {}
        """Callbacks that have not returned, oldest first, and their queues."""
        self._inside: Final = _Inside()

    def live(self) -> list[str]:
        """Name the streams that are still subscribed."""
        return [f"the callbacks of {stream.name}" for stream in self._of_stream]

    # -- subscriptions ----------------------------------------------------------------------------

    def subscribe(self, thread_id: int, stream: Stream, device: int) -> None:
        """Run the stream's callbacks on the thread `thread_id` from now on.

        Raises Refused RT_STREAM_SUBSCRIBE for a stream that is already subscribed, and
        RT_THREAD_SUBSCRIBE for a thread that serves another device (both inferred).
        """
        with self._lock:
            if stream in self._of_stream:
                text = f"subscribe_report: {stream.name}: already subscribed"
                raise Refused(Code.RT_STREAM_SUBSCRIBE, text)
            queue = self._queues.setdefault(
                thread_id, _CallbackQueue(thread_id, device, _thread(thread_id))
            )
            if queue.device != device:
                text = f"subscribe_report: thread {thread_id:#x}: already serves device "
                raise Refused(Code.RT_THREAD_SUBSCRIBE, f"{text}{queue.device}")
            queue.streams.add(stream)
            self._of_stream[stream] = queue

    def unsubscribe(self, thread_id: int, stream: Stream) -> None:
        """End the stream's subscription. Drops callbacks that have not run; these violate PENDING.

        Raises Refused RT_THREAD_SUBSCRIBE if the thread does not serve the stream (inferred).
        """
        with self._lock:
            queue = self._queues.get(thread_id)
            if queue is None or stream not in queue.streams:
                text = f"unsubscribe_report: {stream.name}: not subscribed with "
                raise Refused(Code.RT_THREAD_SUBSCRIBE, f"{text}thread {thread_id:#x}")
            queue.streams.remove(stream)
            del self._of_stream[stream]
            if not queue.streams:
                del self._queues[thread_id]
            lost = [each for each in self._launched if each.stream is stream]
        if lost:
            self._drop(lost)
            violate(
                PENDING, f"unsubscribe_report: {stream.name}: {len(lost)} callback(s) have not run"
            )

    # -- callbacks --------------------------------------------------------------------------------

    def launch(
        self, function: Callable[[Any], object], argument: object, stream: Stream, *, blocks: bool
    ) -> None:
        """Queue a call of `function(argument)` on the stream.

        Raises Refused RT_STREAM_NO_CB_REG for a stream that is not subscribed.
        """
        with self._lock, self._streams.lock:
            queue = self._of_stream.get(stream)
            if queue is None:
                text = f"launch_callback: {stream.name}: found no earlier subscribe_report"
                raise Refused(Code.RT_STREAM_NO_CB_REG, text)
            ordering = self._streams.ordering
            done = Mark(ordering.upto(stream.number))
            callback = _Callback(function, argument, stream, blocks, done, origin())
            self._launched[callback] = queue
            stream.submit(Task(lambda: self._arrive(queue, callback), (), (), "launch_callback"))
            if blocks:
                stream.wait_for(done)

    def process(self, timeout_s: float | None) -> None:
        """Wait for the next callback of this thread and run it.

        Checks RAISED. Raises Refused: RT_THREAD_SUBSCRIBE without a subscription,
        RT_REPORT_TIMEOUT if no callback arrives.
        """
        queue = self._queues.get(threading.get_ident())
        if queue is None:
            raise Refused(
                Code.RT_THREAD_SUBSCRIBE, "process_report: this thread has no subscription"
            )
        while not queue.waiting and self._streams.poll():
            pass
        with queue.arrived:
            if not queue.arrived.wait_for(lambda: queue.waiting, timeout_s):
                raise Refused(
                    Code.RT_REPORT_TIMEOUT, f"process_report: no callback within {timeout_s} s"
                )
            callback = queue.waiting.popleft()
        self._run(callback)

    def awaited(self) -> Mark | None:
        """Return the mark of the oldest callback that will run; None without such a callback.

        Drops callbacks whose thread has ended; these violate NOT_SERVED.
        """
        with self._lock:
            lost = [each for each, queue in self._launched.items() if not queue.is_served]
            waiting = [each.done for each in self._launched if each not in lost]
        if lost:
            self._drop(lost)
            first = lost[0]
            with of_task(first.submitted):
                text = f"{first.stream.name}: the thread of {len(lost)} callback(s) has ended"
                violate(NOT_SERVED, f"launch_callback: {text}")
        return waiting[0] if waiting else None

    def check_wait(self, stream: Stream, what: str) -> None:
        """Check WAITS: the calling thread must not run a callback for which `stream` waits.

        Raises Refused RT_STREAM_SYNC_TIMEOUT after a violation in lenient mode.
        """
        inside = self._inside.callback
        if inside is not None and inside.blocks and inside.stream is stream:
            text = f"{what}: {stream.name}: the stream waits for this callback"
            violate(WAITS, text)
            raise Refused(Code.RT_STREAM_SYNC_TIMEOUT, text)

    # -- helpers ----------------------------------------------------------------------------------

    def _arrive(self, queue: _CallbackQueue, callback: _Callback) -> None:
        with queue.arrived:
            queue.waiting.append(callback)
            queue.arrived.notify_all()

    def _run(self, callback: _Callback) -> None:
        stream, ordering = callback.stream, self._streams.ordering
        with self._streams.lock:
            ordering.observe(callback.done.knowledge)
            if callback.blocks:
                ordering.suspend(stream.number)
        self._inside.callback = callback
        try:
            callback.function(callback.argument)
        except SimulatorViolation as violation:
            stream.remember(violation)
        except Exception as error:
            with of_task(callback.submitted):
                violate(
                    RAISED, f"launch_callback: the callback raised {type(error).__name__}: {error}"
                )
        finally:
            self._inside.callback = None
            if callback.blocks:
                with self._streams.lock:
                    ordering.resume(stream.number)
            self._drop([callback])

    def _drop(self, callbacks: list[_Callback]) -> None:
        with self._lock:
            for callback in callbacks:
                if self._launched.pop(callback, None) is not None:
                    callback.done.pass_()


def _thread(thread_id: int) -> threading.Thread | None:
    found = (each for each in threading.enumerate() if each.ident == thread_id)
    return next(found, None)
