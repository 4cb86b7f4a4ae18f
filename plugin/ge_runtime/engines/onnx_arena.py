"""The workspace of all ONNX Runtime sessions on the CPU: one arena for the whole process.

By default each session has its own arena, which grows to its largest execution and keeps the
memory. The behaviour of such an arena was measured with ONNX Runtime 1.32:

- It grows by regions. Memory that has grown in many steps is fragmented: after executions of
  growing sizes an encoder used twice the memory it needs. So one region is reserved that is large
  enough for a whole execution; its pages cost nothing until they are touched.
- A region has a table of 1/32 of its size, whose pages are touched. So the region is not larger
  than the executions so far require.
- A run option returns all idle regions to the system. So they can be replaced by a larger region,
  and the memory of one execution can be measured in an untouched region.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from threading import Condition, Lock, RLock, get_ident
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.errors import OutOfMemory

# onnxruntime and its objects, which have no type stubs.
Onnxruntime: TypeAlias = Any

TABLE_SHARE: Final = 1 / 32
"""Share of a region that its table takes: 8 bytes for each 256."""
_ROOM: Final = 2
"""Size of a region relative to an execution. The arena chooses the smallest free block that fits a
result. In a larger region this is a block that was touched before, not the untouched rest. An
image classifier touched 27 MiB of a region of 54 or 64 MiB, but 35 MiB of 42, and 43 MiB of 44."""
_GROWTH_BYTES: Final = 2**20
"""Minimum growth of the arena."""
_ENTRIES: Final = {
    "session.use_env_allocators": "1",
    # Weights are allocated outside of the arena; otherwise its regions would never be idle.
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
    """The arena of this process. Thread-safe.

    It is one region, which doubles until the largest execution so far fits. Overlapping executions
    may need more in total: then ONNX Runtime adds regions, and when nothing executes, one region
    replaces them all.
    """

    def __init__(self, onnxruntime: Onnxruntime) -> None:
        """Register the allocator; called once, by `process_arena`."""
        self._onnxruntime = onnxruntime
        self._lock = RLock()  # guards the attributes below
        self._changed = Condition(self._lock)
        self._members: dict[int, int] = {}  # id of the member: maximum workspace in bytes
        self._region: _Region | None = None
        self._fitting = 0  # the largest execution for which the region is large enough
        self._executions = 0  # in progress
        self._in_use = 0  # estimated bytes of the executions in progress
        self._peak = 0  # the largest `_in_use` so far
        self._measurer: int | None = None  # the thread that measures, while no other executes
        # Reserving needs the session's allocator, which Python can access since 1.32.
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
        with suppress(Exception):  # other code has registered an allocator, which is used then
            onnxruntime.create_and_register_allocator(memory, config)
        self._keeper = self._open_keeper()

    @property
    def entries(self) -> dict[str, str]:
        """Configuration entries of a session that uses this arena."""
        return dict(_ENTRIES)

    def join(self, member: object, most_bytes: int) -> None:
        """See `WorkspaceArena.join`."""
        with self._changed:
            self._members[id(member)] = most_bytes

    def release(self, member: object) -> None:
        """See `WorkspaceArena.release`. Without members all memory is returned to the system."""
        with self._changed:
            if self._members.pop(id(member), None) is not None and not self._members:
                self._peak = 0
                self._shrink()

    def execution(self, about_bytes: int) -> AbstractContextManager[None]:
        """See `WorkspaceArena.execution`. Enlarges the region if nothing executes."""
        return _Execution(self, about_bytes)

    def _begin(self, about_bytes: int) -> None:
        with self._lock:
            if self._measurer is not None:
                self._changed.wait_for(lambda: self._measurer in (None, get_ident()))
            if self._measurer is None:  # otherwise this thread uses the region that it measures
                # Comparisons, not `max`, as each execution of a graph runs this code.
                needed = about_bytes if about_bytes > self._peak else self._peak
                if needed > self._fitting and not self._executions:
                    self._ensure(needed)
                self._in_use += about_bytes
                if self._in_use > self._peak:
                    self._peak = self._in_use
            self._executions += 1

    def _end(self, about_bytes: int) -> None:
        with self._lock:
            self._executions -= 1
            if self._measurer is None:
                self._in_use -= about_bytes
                return
            if self._measurer != get_ident():
                self._in_use -= about_bytes
            self._changed.notify_all()  # the measurer waits until nothing else executes

    def measure(self, execute: Callable[[], object], about_bytes: int) -> int | None:
        """See `WorkspaceArena.measure`. The result includes the region's table.

        Other executions wait, because they would touch the same region.
        """
        if not self._reserves:
            return None
        with self._exclusive():
            for nbytes in (_least(4 * about_bytes), _least(16 * about_bytes)):
                try:
                    region = self._replace(nbytes)
                except OutOfMemory:
                    return None
                execute()
                touched = _resident_bytes(region)
                if touched is None:
                    return None
                if touched < about_bytes // 8:  # the execution used another region
                    return None
                if touched < region.nbytes // 2:  # otherwise another region may be used as well
                    return int(touched * (1 + _ROOM * TABLE_SHARE))
            return None

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Return a context in which only this thread executes."""
        with self._changed:
            self._changed.wait_for(lambda: self._measurer is None)
            self._measurer = get_ident()
            self._changed.wait_for(lambda: not self._executions)
        try:
            yield
        finally:
            with self._changed:
                self._shrink()
                self._measurer = None
                self._changed.notify_all()

    @property
    def resident_bytes(self) -> int | None:
        """Bytes of the reserved region that executions have touched, including its table.

        None if there is no region, or the system does not report it.
        """
        with self._changed:
            touched = None if self._region is None else _resident_bytes(self._region)
            if self._region is None or touched is None:
                return None
            return touched + int(self._region.nbytes * TABLE_SHARE)

    def _ensure(self, nbytes: int) -> None:
        """Reserve a region of this size. If that fails, the execution will report it."""
        wanted, now = nbytes * _ROOM, 0 if self._region is None else self._region.nbytes
        if self._reserves and nbytes and now < wanted:
            most = max(self._members.values(), default=0) * _ROOM
            with suppress(OutOfMemory):
                self._replace(_least(max(wanted, min(2 * now, most))))

    def _replace(self, nbytes: int) -> _Region:
        self._shrink()
        try:
            value = self._keeper.create_ortvalue_from_shape_and_type([nbytes], np.uint8, "cpu")
        except Exception as error:  # onnxruntime raises RuntimeError and MemoryError
            raise OutOfMemory(f"workspace of {nbytes:,} bytes: {error}") from error
        self._region = _Region(value.data_ptr(), nbytes)
        self._fitting = nbytes // _ROOM
        return self._region

    def _shrink(self) -> None:
        self._region, self._fitting = None, 0
        options = self._onnxruntime.RunOptions()
        options.add_run_config_entry(*_SHRINK)
        given, result = np.zeros((2, 1), np.float32)
        # Bound to host arrays: a result in the arena would keep its region in use.
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


class _Execution:
    """The context of executions with the same estimate of their workspace."""

    __slots__ = ("_about_bytes", "_arena")

    def __init__(self, arena: OnnxArena, about_bytes: int) -> None:
        self._arena, self._about_bytes = arena, about_bytes

    def __enter__(self) -> None:
        self._arena._begin(self._about_bytes)

    def __exit__(self, *_: object) -> None:
        self._arena._end(self._about_bytes)


_arena: OnnxArena | None = None
_making: Final = Lock()


def process_arena(onnxruntime: Onnxruntime) -> OnnxArena:
    """Return the arena of this process; the first call creates it."""
    global _arena
    with _making:
        if _arena is None:
            _arena = OnnxArena(onnxruntime)
        return _arena


def trim() -> None:
    """Return freed memory to the operating system.

    glibc keeps freed blocks below 32 MiB: after reading the file of an encoder with 86 MiB of
    weights it kept another 43 MiB.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


_libc: Final = ctypes.CDLL(None)
_malloc_trim: Final = getattr(_libc, "malloc_trim", None)


def _least(nbytes: int) -> int:
    return max(nbytes, _GROWTH_BYTES)


def _resident_bytes(region: _Region) -> int | None:
    """Return the bytes of a region that have pages; None if the system does not report it."""
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


# ------------------------------------------- the smallest graph: y = x, encoded as in onnx.proto3


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _number(number: int, value: int) -> bytes:
    return bytes([number << 3, value])


def _vector(name: bytes) -> bytes:
    shape = _field(1, _field(2, b"n"))
    return _field(1, name) + _field(2, _field(1, _number(1, 1) + _field(2, shape)))


_NODE: Final = _field(1, b"x") + _field(2, b"y") + _field(4, b"Identity")
_GRAPH: Final = (
    _field(1, _NODE) + _field(2, b"keeper") + _field(11, _vector(b"x")) + _field(12, _vector(b"y"))
)
_IDENTITY: Final = _number(1, 8) + _field(7, _GRAPH) + _field(8, _number(2, 13))
