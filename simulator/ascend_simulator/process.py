"""The simulated process: one object with all state of `acl`, replaced by `reset_for_tests`.

`current()` returns the process. Packages with their own state, such as `models`, store their state
as a part: see `Process.part`.
"""

from __future__ import annotations

import os
from itertools import count
from threading import Lock, RLock
from typing import Any, Final, Protocol, TypeVar

from ascend_simulator import violations
from ascend_simulator.codes import Code, DeviceStatus, Refused
from ascend_simulator.faults import Faults
from ascend_simulator.memory.heaps import AddressSpace
from ascend_simulator.resources import Budget, Counters, Handles
from ascend_simulator.settings import Settings, from_environment, operator_limit_s
from ascend_simulator.streams.contexts import PENDING, Context, Contexts
from ascend_simulator.streams.events import Events
from ascend_simulator.streams.reports import Reports
from ascend_simulator.streams.stream import Stream, Streams
from ascend_simulator.violations import declare, violate

DEAD_STREAM = declare("stream.dead", "A stream must not be used after it is destroyed.")


class Part(Protocol):
    """State of another package that lives as long as the process."""

    def live(self) -> list[str]:
        """Name everything that should be released before acl.finalize()."""

    def close(self) -> None:
        """Release everything at the end of the process, without checking rules."""


P = TypeVar("P", bound=Part)


class Process:
    """All state of `acl`. Safe from any thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        self.lock: Final = RLock()
        devices = len(settings.device_ids)
        self.memory: Final = AddressSpace(
            [settings.hbm_bytes] * devices, self.lock, one=settings.one_memory
        )
        self.streams: Final = Streams(
            self.memory, self.lock, settings.seed, settings.queue, settings.timeline
        )
        self.claims: Final = self.streams.claims
        self.stream_budget: Final = Budget("streams", settings.streams, Code.RT_NO_STREAM_RESOURCE)
        self.contexts: Final = Contexts(
            self.memory, self.streams, self.stream_budget, devices, self._end_contents
        )
        self.reports: Final = Reports(self.streams)
        self.streams.outside = self.reports.awaited
        self.events: Final = Events(self.contexts, self.lock, settings.events)
        self.counters: Final = Counters()
        self.phase = "load"
        """"load"; or "run" after `freeze`, when device memory must not be allocated."""
        self.init_count = 0
        self.config = ""
        """The configuration of acl.init(), normalised."""
        self.error_per_process = False
        self.device_status = DeviceStatus.ACL_RT_DEVICE_STATUS_NORMAL
        """The status that devices report; tests may change it."""
        self.lost = False
        self.started_by_program = False
        """True if a program started the process; False if a test did."""
        self.forked = False
        """True if this is a child of the process that called acl.init()."""
        self.faults: Final = Faults(self.lose_device, self._others_take, self.update_all_clear)
        self.faults.operator_limit_s = operator_limit_s(settings.soc)
        self.faults.arm(settings.faults)
        self.all_clear = False
        """True if calls need no state check: initialised, device not lost, no fault armed."""
        self._error = ""
        self._parts: dict[type[Any], Any] = {}
        self._stream_handles: Handles[tuple[Stream, Context]] = Handles("stream")
        self._names = count(1)

    # -- overall state ----------------------------------------------------------------------------

    def update_all_clear(self) -> None:
        """Update `all_clear`. Must be called when one of its conditions has changed."""
        self.all_clear = (
            self.init_count > 0 and not self.lost and not self.forked and not self.faults.is_armed
        )

    def lose_device(self) -> None:
        """Make every later call fail, and stop running queued tasks."""
        self.lost = self.streams.lost = True
        self.update_all_clear()

    def part(self, kind: type[P]) -> P:
        """Return the process's only part of this class, made at its first use."""
        part: P | None = self._parts.get(kind)
        if part is None:
            with self.lock:
                part = self._parts.setdefault(kind, kind())
        return part

    def live(self) -> list[str]:
        """Name everything that should be released before acl.finalize()."""
        names = [name for part in self._parts.values() for name in part.live()]
        names += self.reports.live()
        for context in self.contexts.all():
            if not context.is_default:
                names.append(context.name)
            names.extend(sorted(context.contents.values()))
        return names + [repr(block) for block in self.memory.blocks() if block.kind != "alias"]

    def close(self) -> None:
        """End streams and release everything, without checking rules."""
        for part in self._parts.values():
            part.close()
        self.contexts.close()

    # -- error texts ------------------------------------------------------------------------------

    def set_error(self, text: str) -> None:
        """Set the next result of `take_error`, for this thread or (if configured) the process."""
        if self.error_per_process:
            self._error = text
        else:
            self.contexts.current.error = text

    def take_error(self) -> str | None:
        """Return the last error text, and remove it; None without a text."""
        if self.error_per_process:
            text, self._error = self._error, ""
        else:
            current = self.contexts.current
            text, current.error = current.error, ""
        return text or None

    # -- contexts and streams ----------------------------------------------------------------

    def context(self) -> Context:
        """Return the thread's current context. Raises Refused RT_CONTEXT_NULL if it has none."""
        return self.contexts.get()

    def stream(self, handle: int, what: str, *, any_context: bool = False) -> Stream:
        """Return the stream; 0 is the current context's default stream. Checks DEAD_STREAM.

        With `any_context` the stream may belong to another context. Raises Refused:
        RT_CONTEXT_NULL, RT_STREAM_CONTEXT for a stream of another context.
        """
        context = self.contexts.get()
        if handle == 0:
            return context.default_stream
        found = self._stream_handles.get(handle)
        if found is None:
            text = f"{what}: {handle:#x}: not a stream, or destroyed"
            violate(DEAD_STREAM, text)
            raise Refused(Code.RT_STREAM_CONTEXT, text)
        stream, home = found
        if home is not context and not any_context:
            raise Refused(
                Code.RT_STREAM_CONTEXT, f"{what}: {stream.name}: not of this thread's context"
            )
        return stream

    def streams_of(self, device: int) -> list[Stream]:
        """Return all streams of a device, the default streams first."""
        with self.lock:
            contexts = [found for found in self.contexts.all() if found.device == device]
            return [context.default_stream for context in contexts] + [
                stream for stream, home in self._stream_handles if home.device == device
            ]

    def create_stream(self) -> int:
        """Create a stream; return its handle.

        Raises Refused: RT_CONTEXT_NULL, RT_NO_STREAM_RESOURCE.
        """
        context = self.contexts.get()
        with self.lock:
            self.stream_budget.take(context.device, "create_stream")
            stream = self.streams.create(context.group, f"stream {next(self._names)}")
            handle = self._stream_handles.add((stream, context))
            context.contents[handle] = stream.name
        return handle

    def destroy_stream(self, handle: int) -> None:
        """Destroy a stream after its tasks have run.

        Checks DEAD_STREAM and PENDING. Raises Refused INVALID_PARAM for null, and like `stream` and
        `Streams.rethrow`.
        """
        if handle == 0:
            raise Refused(Code.INVALID_PARAM, "destroy_stream: found a null stream")
        stream = self.stream(handle, "destroy_stream")
        if not stream.is_idle:
            violate(
                PENDING, f"destroy_stream: {stream.name}: the host has not waited for its tasks"
            )
        with self.lock:
            _, context = self._stream_handles.remove(handle)
            del context.contents[handle]
            self.stream_budget.give(context.device)
        stream.close()
        self.streams.rethrow()

    def _end_contents(self, context: Context) -> None:
        # The keys are handles of events and streams, and model ids.
        for handle in list(context.contents):
            if self.events.drop(handle):
                continue
            if self._stream_handles.get(handle) is not None:
                self._stream_handles.remove(handle)[0].close()
                self.stream_budget.give(context.device)
            else:  # a model
                self.stream_budget.give(context.device, self.settings.model_streams)

    def _others_take(self, nbytes: int) -> None:
        for device in range(len(self.settings.device_ids)):
            self.memory.take(device, nbytes)


_process: Process | None = None
_beginning = Lock()


def current() -> Process:
    """Return the process; made from the environment at the first use."""
    global _process
    if _process is None:
        with _beginning:
            if _process is None:
                _process = _make(from_environment())
                _process.started_by_program = True
    return _process


def existing() -> Process | None:
    """Return the process, or None if `acl` was not used."""
    return _process


def reset_for_tests(settings: Settings | None = None) -> Process:
    """End the process as if it had exited, and start another process with all counters 0.

    If `settings` is None, the environment is read again.
    """
    global _process
    if _process is not None:
        _process.close()
    _process = _make(from_environment() if settings is None else settings)
    return _process


def _make(settings: Settings) -> Process:
    violations.reset(settings.mode)
    return Process(settings)


def _note_fork() -> None:
    global _process
    violations.forget()  # the parent reports the violations
    if _process is not None and _process.init_count:
        _process.forked = True
        _process.update_all_clear()
    else:  # `acl` was not used, so the child may use it
        _process = None


os.register_at_fork(after_in_child=_note_fork)
