"""Devices and contexts: which exist, which is current in which thread, and what goes with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ascend_simulator.codes import Code, Refused
from ascend_simulator.memory.blocks import ON_A_DEVICE
from ascend_simulator.memory.heaps import AddressSpace
from ascend_simulator.resources import Budget, Handles
from ascend_simulator.streams.stream import Group, Stream
from ascend_simulator.streams.stream_table import Streams
from ascend_simulator.violations import declare, violate

NEVER_SET = declare("device.reset-without-set", "A device is reset as often as it was set.")
RESET_LEAKS = declare(
    "device.reset-leaks", "A device is reset for the last time when nothing is left on it."
)
CONTEXT_LEAKS = declare(
    "context.destroyed-in-use", "A context is destroyed when its streams, events and models are."
)
PENDING = declare(
    "stream.destroyed-pending", "A stream is synchronised before it is destroyed.", caution=True
)


@dataclass(eq=False)
class Context:
    """Streams, events and models of one device that belong together."""

    device: int
    is_default: bool
    name: str
    default_stream: Stream
    group: Group
    handle: int = 0
    alive: bool = True
    contents: dict[int, str] = field(default_factory=dict)
    """What was made in it and still lives: handle or other key -> name, for people."""


class Current(threading.local):
    """What belongs to a thread."""

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
        """budget: of streams. ended: ends what was made in a context, without complaint."""
        self._memory = memory
        self._streams = streams
        self._budget = budget
        self._ended = ended
        self._handles: Handles[Context] = Handles("context")
        self._sets = [0] * devices
        self._defaults: list[Context | None] = [None] * devices
        self.current = Current()

    # -- what other calls need --------------------------------------------------------------------

    def get(self) -> Context:
        """The current context of this thread. Raises Refused RT_CONTEXT_NULL if it has none."""
        context = self.current.context
        if context is None or not context.alive:
            raise Refused(Code.RT_CONTEXT_NULL, "found no current context in this thread")
        return context

    def all(self) -> list[Context]:
        """The living contexts, the default ones too."""
        return list(self._handles)

    def sets(self) -> list[tuple[int, int]]:
        """Each device that is set, and how often."""
        return [(device, count) for device, count in enumerate(self._sets) if count]

    # -- devices ----------------------------------------------------------------------------------

    def set_device(self, device: int) -> None:
        """The default context of `device` is current from now on; made with the first set.

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
        """Undo one set; with the last its default context goes. Waits for the device's tasks.

        Violates NEVER_SET and RESET_LEAKS. Raises Refused RT_INVALID_DEVICEID, and what
        `Streams.rethrow` raises.
        """
        with self._streams.lock:
            self._check_set(device, "reset_device")
            self._sets[device] -= 1
            if self._sets[device]:
                return
        left = self._end_default(device)
        others = [context.name for context in self._handles if context.device == device]
        # Memory is the device's, for all of its contexts: it goes with the last.
        left += others or self._drop_memory(device)
        self._streams.rethrow()
        if left:
            violate(RESET_LEAKS, f"reset_device: device {device}: found {', '.join(left)}")

    def reset_device_force(self, device: int) -> None:
        """All of `device` goes, however often it was set.

        Violates NEVER_SET. Raises Refused RT_INVALID_DEVICEID, and what `Streams.rethrow` raises.
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
        """Handle of a new context, which is current from now on.

        Raises Refused: RT_INVALID_DEVICEID, RT_NO_STREAM_RESOURCE.
        """
        self._check(device)
        with self._streams.lock:
            context = self._make(device, is_default=False)
        self.current.context = context
        return context.handle

    def make_current(self, handle: int) -> None:
        """Raises Refused: INVALID_PARAM for null, RT_PARAM_INVALID for no living context."""
        context = self._handles.get(handle)
        if context is None:
            code = Code.RT_PARAM_INVALID if handle else Code.INVALID_PARAM
            raise Refused(code, f"set_context: {handle:#x}: found no living context")
        self.current.context = context

    def destroy(self, handle: int) -> None:
        """A context that `create` made goes. Violates CONTEXT_LEAKS.

        Raises Refused RT_CONTEXT_NULL for what is no living context, and for a default one; and
        what `Streams.rethrow` raises.
        """
        context = self._handles.get(handle)
        if context is None or context.is_default:
            name = f"{handle:#x}: found no living context"
            if context is not None:
                name = f"{context.name}: it goes with reset_device"
            raise Refused(Code.RT_CONTEXT_NULL, f"destroy_context: {name}")
        left = self._end(context)
        self._streams.rethrow()
        if left:
            violate(CONTEXT_LEAKS, f"destroy_context: {context.name}: found {', '.join(left)}")

    def close(self) -> None:
        """All contexts go; no rule applies."""
        for context in self._handles:
            self._end(context)

    # -- inside -----------------------------------------------------------------------------------

    def _check(self, device: int) -> None:
        if not 0 <= device < len(self._sets):
            raise Refused(
                Code.RT_INVALID_DEVICEID,
                f"device: found {device}, expected below {len(self._sets)}",
            )

    def _check_set(self, device: int, what: str) -> None:
        self._check(device)
        if self._sets[device] == 0:
            text = f"{what}: device {device}: found no set_device to undo"
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
        """The context goes, its tasks done; names of what was left in it."""
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
