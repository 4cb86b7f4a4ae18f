"""The memory in which all sessions of ONNX Runtime on the CPU execute: one arena of this process.

Without it each session has an arena of its own, which grows to what its largest execution takes and
keeps that. What such an arena does was measured with ONNX Runtime 1.32:

- It grows by regions, and what has grown in many steps lies in pieces that fit nothing: twice what
  an encoder needs, after executions of growing sizes. So one region is reserved that holds an
  execution whole; pages of it cost nothing before they are touched.
- A region has a table of 1/32 of its size, which is touched. So it is no larger than what was
  executed so far needs.
- An execution that asks for it gives all idle regions back. So they can be replaced by a larger
  one, and what one execution takes can be measured in a region that nothing has touched.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Condition, Lock, RLock, get_ident
from typing import Any, Final, TypeAlias

import numpy as np

# onnxruntime and its own objects, which come without types.
Onnxruntime: TypeAlias = Any

TABLE_SHARE: Final = 1 / 32
"""Of a region, for the table that its arena keeps of it: 8 bytes for each 256."""
_ROOM: Final = 2
"""Of a region over what an execution takes. The arena takes the smallest free piece that holds a
result: of a larger region a hole, which was touched already, never the untouched rest. An image
classifier that took 27 MiB of 54 or 64 took 35 of 42 and 43 of 44."""
_GROWTH_BYTES: Final = 2**20
"""The least that the arena grows by."""
_ENTRIES: Final = {
    "session.use_env_allocators": "1",
    # Weights lie beside it, or they would keep its regions from being given back.
    "session.use_device_allocator_for_initializers": "1",
}
_SHRINK: Final = ("memory.enable_memory_arena_shrinkage", "cpu:0")
_SAME_AS_REQUESTED: Final = 1
_NEXT_POWER_OF_TWO: Final = 0
_UNLIMITED: Final = 0
_DEFAULT: Final = -1


@dataclass(frozen=True, slots=True)
class _Region:
    address: int
    nbytes: int


class OnnxArena:
    """The one arena of this process. Safe from any thread.

    It is one region, which doubles until the largest execution so far fits. Executions that overlap
    may take more between them: then ONNX Runtime adds regions, and when nothing executes one region
    takes the place of all.
    """

    def __init__(self, onnxruntime: Onnxruntime) -> None:
        """Made by `process_arena`: there can be one."""
        self._onnxruntime = onnxruntime
        self._members: dict[int, int] = {}  # what each needs at most, by its id
        self._region: _Region | None = None
        self._changed = Condition(RLock())  # guards all of these
        self._executions = 0  # in progress
        self._taken = self._together = 0  # bytes: by those, and by most that ever overlapped
        self._measurer: int | None = None  # the thread that has the arena to itself
        # Reserving needs a session that gives its allocator's memory: from 1.32 on.
        self._reserves = hasattr(
            onnxruntime.InferenceSession, "create_ortvalue_from_shape_and_type"
        )
        strategy = _SAME_AS_REQUESTED if self._reserves else _NEXT_POWER_OF_TWO
        memory = onnxruntime.OrtMemoryInfo(
            "Cpu",
            onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
            0,
            onnxruntime.OrtMemType.DEFAULT,
        )
        config = onnxruntime.OrtArenaCfg(_UNLIMITED, strategy, _GROWTH_BYTES, _DEFAULT)
        with suppress(Exception):  # somebody else in this process has one already: it is shared
            onnxruntime.create_and_register_allocator(memory, config)
        self._keeper = self._open_keeper()

    @property
    def entries(self) -> dict[str, str]:
        """Of the configuration of a session that executes here."""
        return dict(_ENTRIES)

    def join(self, member: object, most_bytes: int) -> None:
        """No execution of `member` takes more than this; replaces what it said before."""
        with self._changed:
            self._members[id(member)] = most_bytes

    def release(self, member: object) -> None:
        """The member executes no more. With the last one all is given back. Safe to call twice."""
        with self._changed:
            if self._members.pop(id(member), None) is not None and not self._members:
                self._together = 0
                self._give_back()

    @contextmanager
    def execution(self, about_bytes: int) -> Iterator[None]:
        """Around an execution that takes about this much: room for it, unless others execute."""
        with self._changed:
            if self._measurer == get_ident():
                about_bytes = 0  # in the region that is measured
            self._changed.wait_for(lambda: self._measurer in (None, get_ident()))
            if not self._executions and self._measurer is None:
                self._ensure(max(about_bytes, self._together))
            self._executions += 1
            self._taken += about_bytes
            self._together = max(self._together, self._taken)
        try:
            yield
        finally:
            with self._changed:
                self._executions -= 1
                self._taken -= about_bytes
                self._changed.notify_all()

    def measure(self, execute: Callable[[], object], about_bytes: int) -> int | None:
        """The bytes that one execution touches, with the table for them; None if nobody can tell.

        about_bytes: a guess. Others wait, for they would touch the same. Raises what `execute`
        raises.
        """
        if not self._reserves:
            return None
        with self._alone():
            for nbytes in (_least(4 * about_bytes), _least(16 * about_bytes)):
                region = self._replace(nbytes)
                execute()
                touched = _resident_bytes(region)
                if touched is None:
                    return None
                if touched < about_bytes // 8:  # what was in use lay in another region
                    return None
                if touched < region.nbytes // 2:  # or some of it lay elsewhere
                    return int(touched * (1 + _ROOM * TABLE_SHARE))
            return None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nothing executes but what this thread does."""
        with self._changed:
            self._changed.wait_for(lambda: self._measurer is None)
            self._measurer = get_ident()
            self._changed.wait_for(lambda: not self._executions)
        try:
            yield
        finally:
            with self._changed:
                self._give_back()
                self._measurer = None
                self._changed.notify_all()

    @property
    def resident_bytes(self) -> int | None:
        """What executions have touched of the region that is reserved, with its table.

        None if nothing is, or nobody can tell.
        """
        with self._changed:
            touched = None if self._region is None else _resident_bytes(self._region)
            if self._region is None or touched is None:
                return None
            return touched + int(self._region.nbytes * TABLE_SHARE)

    def _ensure(self, nbytes: int) -> None:
        """A region that holds this much, if there can be one: else the execution will say so."""
        wanted, now = nbytes * _ROOM, 0 if self._region is None else self._region.nbytes
        if self._reserves and nbytes and now < wanted:
            most = max(self._members.values(), default=0) * _ROOM
            with suppress(Exception):
                self._replace(_least(max(wanted, min(2 * now, most))))

    def _replace(self, nbytes: int) -> _Region:
        """One region in place of all that are idle."""
        self._give_back()
        value = self._keeper.create_ortvalue_from_shape_and_type([nbytes], np.uint8, "cpu")
        self._region = _Region(value.data_ptr(), nbytes)
        return self._region

    def _give_back(self) -> None:
        """All regions that nothing lies in, to the operating system."""
        self._region = None
        options = self._onnxruntime.RunOptions()
        options.add_run_config_entry(*_SHRINK)
        given, result = np.zeros((2, 1), np.float32)
        # Bound: a result in the arena would keep the region that it lies in.
        binding = self._keeper.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, given.shape, given.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, result.shape, result.ctypes.data)
        self._keeper.run_with_iobinding(binding, options)
        trim()

    def _open_keeper(self) -> Any:  # noqa: ANN401 - a session
        options = self._onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        for key, text in _ENTRIES.items():
            options.add_session_config_entry(key, text)
        return self._onnxruntime.InferenceSession(
            _IDENTITY, options, providers=["CPUExecutionProvider"]
        )

    def __repr__(self) -> str:
        region = 0 if self._region is None else self._region.nbytes
        return f"<OnnxArena: {region:,} bytes reserved for {len(self._members)} member(s)>"


_arena: OnnxArena | None = None
_making: Final = Lock()


def process_arena(onnxruntime: Onnxruntime) -> OnnxArena:
    """The arena of this process, made with the first call."""
    global _arena
    with _making:
        if _arena is None:
            _arena = OnnxArena(onnxruntime)
        return _arena


def trim() -> None:
    """Give freed memory back to the operating system.

    glibc keeps what was allocated in pieces below 32 MiB: of an encoder of 86 MiB of weights half
    as much again, from reading its file.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


_libc: Final = ctypes.CDLL(None)
_malloc_trim: Final = getattr(_libc, "malloc_trim", None)


def _least(nbytes: int) -> int:
    return max(nbytes, _GROWTH_BYTES)


def _resident_bytes(region: _Region) -> int | None:
    """How much of a region has pages; None where the system does not tell."""
    mincore = getattr(_libc, "mincore", None)
    if mincore is None:
        return None
    start = region.address - region.address % mmap.PAGESIZE
    pages = -(-(region.address + region.nbytes - start) // mmap.PAGESIZE)
    present = np.zeros(pages, np.uint8)
    if mincore(
        ctypes.c_void_p(start),
        ctypes.c_size_t(pages * mmap.PAGESIZE),
        ctypes.c_void_p(present.ctypes.data),
    ):
        return None
    return int((present & 1).sum()) * mmap.PAGESIZE


# ------------------------------------------------- the least graph: y = x, as onnx.proto3 has it


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _number(number: int, value: int) -> bytes:
    return bytes([number << 3, value])


def _vector(name: bytes) -> bytes:
    """A ValueInfoProto: FP32[n]."""
    shape = _field(1, _field(2, b"n"))
    return _field(1, name) + _field(2, _field(1, _number(1, 1) + _field(2, shape)))


_NODE: Final = _field(1, b"x") + _field(2, b"y") + _field(4, b"Identity")
_GRAPH: Final = (
    _field(1, _NODE) + _field(2, b"keeper") + _field(11, _vector(b"x")) + _field(12, _vector(b"y"))
)
_IDENTITY: Final = _number(1, 8) + _field(7, _GRAPH) + _field(8, _number(2, 13))
