"""The devices and contexts of the process, their contents, and each thread's current context."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ascend_simulator.codes import Code, Refused
from ascend_simulator.memory.blocks import ON_A_DEVICE
from ascend_simulator.memory.heaps import AddressSpace
from ascend_simulator.resources import Budget, Handles
from ascend_simulator.streams.stream import Group, Stream, Streams
from ascend_simulator.violations import declare, violate

NEVER_SET = declare("device.reset-without-set", "Reset a device exactly as often as it is set.")
RESET_LEAKS = declare("device.reset-leaks", "Release everything on a device before its last reset.")
CONTEXT_LEAKS = declare(
    "context.destroyed-in-use", "Destroy a context's streams, events and models before the context."
)
PENDING = declare(
    "stream.destroyed-pending", "Synchronise a stream before destroying it.", caution=True
)


@dataclass(eq=False)
class Context:
    """A group of streams, events and models of one device."""

    device: int
    is_default: bool
    name: str
    default_stream: Stream
    group: Group
    handle: int = 0
    alive: bool = True
    contents: dict[int, str] = field(default_factory=dict)
    """Names, for messages, of the contents that were not destroyed, by handle or model id."""


class Current(threading.local):
    """Thread-local state."""

    context: Context | None = None
    error: str = ""


class Contexts:
    """The contexts of the process. Safe from any thread."""

    def __init__(
        self,
        memory: AddressSpace,
        streams: Streams,
        budget: Budget,
        devices: int,
        ended: Callable[[Context], None],
    ) -> None:
        """Make the contexts.

        `budget` limits streams. `ended` releases the contents of a context without checking rules.
        """
        self._memory = memory
        self._streams = streams
        self._budget = budget
        self._ended = ended
        self._handles: Handles[Context] = Handles("context")
        self._sets = [0] * devices
        self._defaults: list[Context | None] = [None] * devices
        self.current = Current()

    # -- queries ----------------------------------------------------------------------------------

    def get(self) -> Context:
        """Return the current context of this thread. Raises Refused RT_CONTEXT_NULL without it."""
        context = self.current.context
        if context is None or not context.alive:
            raise Refused(Code.RT_CONTEXT_NULL, "this thread has no current context")
        return context

    def all(self) -> list[Context]:
        """Return the existing contexts, including default contexts."""
        return list(self._handles)

    def sets(self) -> list[tuple[int, int]]:
        """Return each device that is set, with the number of its sets."""
        return [(device, count) for device, count in enumerate(self._sets) if count]

    # -- devices ----------------------------------------------------------------------------------

    def set_device(self, device: int) -> None:
        """Make the default context of `device` current; the first set creates it.

        Raises Refused: RT_INVALID_DEVICEID, RT_NO_STREAM_RESOURCE.
        """
        self._check(device)
        with self._streams.lock:
            context = self._defaults[device]
            if context is None:
                context = self._defaults[device] = self._make(device, is_default=True)
            self._sets[device] += 1
        self.current.context = context

    def reset_device(self, device: int) -> None:
        """Undo one set; the last undo destroys the default context. Waits for the device's tasks.

        Checks NEVER_SET and RESET_LEAKS. Raises Refused RT_INVALID_DEVICEID, and like
        `Streams.rethrow`.
        """
        with self._streams.lock:
            self._check_set(device, "reset_device")
            self._sets[device] -= 1
            if self._sets[device]:
                return
        left = self._end_default(device)
        others = [context.name for context in self._handles if context.device == device]
        # Memory belongs to the device, so it is released with the device's last context.
        left += others or self._drop_memory(device)
        self._streams.rethrow()
        if left:
            violate(RESET_LEAKS, f"reset_device: device {device}: not released: {', '.join(left)}")

    def reset_device_force(self, device: int) -> None:
        """Release everything on `device`, for any number of sets.

        Checks NEVER_SET. Raises Refused RT_INVALID_DEVICEID, and like `Streams.rethrow`.
        """
        self._check_set(device, "reset_device_force")
        self._sets[device] = 0
        self._end_default(device)
        for context in self._handles:
            if context.device == device:
                self._end(context)
        self._drop_memory(device)
        self._streams.rethrow()

    # -- contexts ---------------------------------------------------------------------------------

    def create(self, device: int) -> int:
        """Create a context, make it current and return its handle.

        Raises Refused: RT_INVALID_DEVICEID, RT_NO_STREAM_RESOURCE.
        """
        self._check(device)
        with self._streams.lock:
            context = self._make(device, is_default=False)
        self.current.context = context
        return context.handle

    def make_current(self, handle: int) -> None:
        """Make a context current in this thread.

        Raises Refused: INVALID_PARAM for null, RT_PARAM_INVALID for an unknown context.
        """
        context = self._handles.get(handle)
        if context is None:
            code = Code.RT_PARAM_INVALID if handle else Code.INVALID_PARAM
            raise Refused(code, f"set_context: {handle:#x}: not a context, or destroyed")
        self.current.context = context

    def destroy(self, handle: int) -> None:
        """Destroy a context of `create`. Checks CONTEXT_LEAKS.

        Raises Refused RT_CONTEXT_NULL for unknown and default contexts, and like `Streams.rethrow`.
        """
        context = self._handles.get(handle)
        if context is None or context.is_default:
            name = f"{handle:#x}: not a context, or destroyed"
            if context is not None:
                name = f"{context.name}: only reset_device destroys it"
            raise Refused(Code.RT_CONTEXT_NULL, f"destroy_context: {name}")
        left = self._end(context)
        self._streams.rethrow()
        if left:
            violate(
                CONTEXT_LEAKS, f"destroy_context: {context.name}: not released: {', '.join(left)}"
            )

    def close(self) -> None:
        """Destroy all contexts without checking rules."""
        for context in self._handles:
            self._end(context)

    # -- helpers ----------------------------------------------------------------------------------

    def _check(self, device: int) -> None:
        if not 0 <= device < len(self._sets):
            raise Refused(
                Code.RT_INVALID_DEVICEID,
                f"device: found {device}, expected below {len(self._sets)}",
            )

    def _check_set(self, device: int, what: str) -> None:
        self._check(device)
        if self._sets[device] == 0:
            text = f"{what}: device {device}: no set_device to undo"
            violate(NEVER_SET, text)
            raise Refused(Code.RT_CONTEXT_RELEASE_ERROR, text)

    def _make(self, device: int, *, is_default: bool) -> Context:
        group = Group()
        kind = "default context" if is_default else "context"
        name = f"{kind} of device {device}"
        self._budget.take(device, name)
        stream = self._streams.create(group, f"default stream of the {name}")
        context = Context(device, is_default, name, stream, group)
        context.handle = self._handles.add(context)
        return context

    def _end_default(self, device: int) -> list[str]:
        context, self._defaults[device] = self._defaults[device], None
        return self._end(context) if context is not None else []

    def _end(self, context: Context) -> list[str]:
        """Destroy the context after its tasks are done; return the names of its contents."""
        left = sorted(context.contents.values())
        self._ended(context)
        context.default_stream.close()
        with self._streams.lock:
            context.alive = False
            self._handles.remove(context.handle)
            self._budget.give(context.device)
        return left

    def _drop_memory(self, device: int) -> list[str]:
        blocks = [
            block
            for kind in ON_A_DEVICE
            for block in self._memory.blocks(kind)
            if block.device == device
        ]
        for block in blocks:
            self._memory.discard(block)
        return [repr(block) for block in blocks]
