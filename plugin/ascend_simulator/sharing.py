"""Device memory that processes share: the keys that this one has given, and those it has taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ascend_simulator import segments
from ascend_simulator.accounting import NORMAL_PAGE
from ascend_simulator.blocks import Block
from ascend_simulator.codes import Code, Refused
from ascend_simulator.copies import OTHER_DEVICE
from ascend_simulator.process import Process
from ascend_simulator.products import shares_memory
from ascend_simulator.segments import Segment
from ascend_simulator.violations import declare, violate

TWICE = declare(
    "ipc.twice", "A block is exported once, and imported once by a process, until it is closed."
)
PART = declare(
    "ipc.part-of-a-block", "What malloc gave is exported from its start, and whole pages of 4 KiB."
)
IMPORTERS = declare(
    "ipc.closed-before-importers", "An exporter closes its key after all importers have."
)

_HOLDER: Final = "a key of other processes"


class Sharing:
    """A `Part` of the process. Safe from any thread."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[Segment, Block]] = {}

    def export(self, now: Process, ptr: int, nbytes: int, *, everyone: bool) -> str:
        """The key of `nbytes` bytes of device memory, which moves to where others have it, too.

        Waits for the streams; no other thread touches the block meanwhile. everyone: no process
        need be allowed. Violates PART, TWICE, `copies.OTHER_DEVICE` and what `AddressSpace.locate`
        does. Raises Refused: RT_CONTEXT_NULL, RT_FEATURE_NOT_SUPPORT on chips that cannot,
        INVALID_PARAM for null, RT_PARAM_INVALID.
        """
        what = "ipc_mem_get_export_key"
        device = _device(now, what)
        block = now.memory.locate(ptr, nbytes, want="device", what=what)
        assert block is not None  # what is wanted on a device is in a block or refused
        if block.kind == "imported":
            raise Refused(Code.RT_PARAM_INVALID, f"{what}: {block!r}: it is another process's")
        if block.device != device:
            violate(OTHER_DEVICE, f"{what}: {block!r}: found a context of device {device}")
        if block.start != ptr or nbytes == 0 or nbytes % NORMAL_PAGE:
            _refuse(PART, f"{what}: {nbytes:,} bytes at {ptr:#x}: found {block!r}")
        now.streams.settle()
        with now.lock:
            if block.lease is not None:
                _refuse(TWICE, f"{what}: {block!r}: it has a key")
            physical = now.settings.device_ids[device]
            segment = segments.export(block.content, nbytes, physical, everyone=everyone)
            now.memory.move(block, segment.content, segment)
            now.memory.hold(ptr, nbytes, _HOLDER)
            self._ends[segment.key] = segment, block
        return segment.key

    def allow(self, key: str, pids: Sequence[int]) -> None:
        """These processes may import it, too. Raises Refused RT_PARAM_INVALID."""
        what = "ipc_mem_set_import_pid"
        segment, _ = self._of(key, what)
        if not segment.is_exported:
            raise Refused(Code.RT_PARAM_INVALID, f"{what}: {key!r}: it is another process's")
        if not pids or min(pids) <= 0:
            raise Refused(Code.RT_PARAM_INVALID, f"{what}: found processes {list(pids)}")
        try:
            segment.allow(pids)
        except ValueError as error:
            raise Refused(Code.RT_PARAM_INVALID, f"{what}: {error}") from error

    def take(self, now: Process, key: str) -> int:
        """The address here of what another process exported. Violates TWICE.

        Raises Refused: RT_CONTEXT_NULL, RT_FEATURE_NOT_SUPPORT on chips that cannot and for memory
        of another device than the context's, and as `segments.open_key`.
        """
        what = "ipc_mem_import_by_key"
        device = _device(now, what)
        with now.lock:
            if key in self._ends and not self._ends[key][0].is_exported:
                _refuse(TWICE, f"{what}: {key!r}: it is imported")
            segment = segments.open_key(key)
            if segment.device != now.settings.device_ids[device]:
                segment.close()
                raise Refused(
                    Code.RT_FEATURE_NOT_SUPPORT, f"{what}: {key!r}: found memory of another device"
                )
            block = now.memory.adopt(device, segment.content, segment)
            self._ends[key] = segment, block
        return block.start

    def close_key(self, now: Process, key: str) -> None:
        """The memory is shared no longer, or an importer has it no longer.

        Violates IMPORTERS; of an importer, `claims.FREE_BUSY` and `memory.HELD`. Raises Refused
        RT_PARAM_INVALID for a key that this process does not have.
        """
        what = "ipc_mem_close"
        segment, block = self._of(key, what)
        lives = now.memory.find(block.start) is block  # a reset device has none left
        if lives and segment.is_exported and segment.is_imported:
            violate(IMPORTERS, f"{what}: {block!r}: found other processes that have it")
        if lives and not segment.is_exported:
            now.claims.check_idle(block, what)
            now.memory.check_free(block, what)
        with now.lock:
            del self._ends[key]
            segment.close()
            if lives and segment.is_exported:
                block.lease = None
                now.memory.release(block, _HOLDER)
            elif lives:
                now.memory.discard(block)

    def _of(self, key: str, what: str) -> tuple[Segment, Block]:
        found = self._ends.get(key)
        if found is None:
            raise Refused(Code.RT_PARAM_INVALID, f"{what}: {key!r}: found no key of this process")
        return found

    def live(self) -> list[str]:
        """Keys that were given and not closed; what was imported is named as memory."""
        ends = self._ends.values()
        return [f"key of {block!r}" for segment, block in ends if segment.is_exported]

    def close(self) -> None:
        """Give up all of it."""
        for segment, _ in self._ends.values():
            segment.close()
        self._ends.clear()


def _device(now: Process, what: str) -> int:
    device = now.context().device
    if not shares_memory(now.settings.soc):
        text = f"{what}: found {now.settings.soc}, which cannot"
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)
    return device


def _refuse(rule: str, text: str) -> None:
    violate(rule, text)
    raise Refused(Code.RT_PARAM_INVALID, text)
