"""Blocks of memory, their bytes, and the order of the tasks that use them.

Streams, events and waits of the host establish the order of tasks.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ascend_simulator.codes import MallocPolicy, MemType

Range: TypeAlias = tuple[int, int]
"""Address and bytes."""

HOST: Final = 0
"""The stream number of a `Use` by the host. Such a use is finished as soon as it is checked."""

OWNER: Final = -1
"""The stream number of a `Use` that frees the memory. No use is valid after it."""

Knowledge: TypeAlias = Mapping[int, int]
"""The number of the last task that is known to be finished, by stream."""


class Ordering:
    """The known order of tasks: the knowledge of each stream and of the host."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # of existing streams
        self._streams: dict[int, dict[int, int]] = {}
        self._host: dict[int, int] = {}
        self._held: set[int] = set()

    def add(self, stream: int) -> None:
        """Add a stream; `stream` is a number never used before."""
        self._last[stream] = 0
        self._host[stream] = 0
        self._streams[stream] = {}

    def drop(self, stream: int) -> None:
        """Remove a stream whose tasks are all known to be finished."""
        del self._last[stream], self._host[stream], self._streams[stream]
        for known in self._streams.values():
            known.pop(stream, None)

    def submit(self, stream: int) -> int:
        """Add a task to `stream`; return its number."""
        number = self._last[stream] + 1
        self._last[stream] = number
        return number

    def last(self, stream: int) -> int:
        """Return the number of the last task of `stream`; 0 without tasks."""
        return self._last[stream]

    def upto(self, stream: int) -> Knowledge:
        """Return the knowledge gained by a wait for all tasks submitted to `stream` so far."""
        return {**self._streams[stream], stream: self._last[stream]}

    def learn(self, stream: int, knowledge: Knowledge) -> None:
        """Order later tasks of `stream` after all tasks of `knowledge`."""
        self._merge(self._streams[stream], knowledge)

    def observe(self, knowledge: Knowledge) -> None:
        """Add `knowledge` to the host's: later submissions come after all tasks of `knowledge`."""
        self._merge(self._host, knowledge)

    def suspend(self, stream: int) -> None:
        """Block the stream during a callback: later tasks of the stream start after `resume`."""
        self._held.add(stream)

    def resume(self, stream: int) -> None:
        """Undo `suspend`."""
        self._held.discard(stream)

    def is_over(self, stream: int, number: int) -> bool:
        """Return whether the host knows that task `number` of `stream` is finished."""
        return self._host.get(stream, number) >= number

    def comes_after(self, stream: int, other: int, number: int) -> bool:
        """Return whether a new use comes after task `number` of stream `other`.

        `stream` is the stream of the new use, or HOST or OWNER.
        """
        return (
            stream == other
            or (stream > HOST and self._streams[stream].get(other, 0) >= number)
            or (stream == HOST and other in self._held)
            or self.is_over(other, number)
        )

    def _merge(self, known: dict[int, int], knowledge: Knowledge) -> None:
        for stream, number in knowledge.items():
            if stream in self._last and number > known.get(stream, 0):
                known[stream] = number


class Use(NamedTuple):
    """Bytes `first` up to `end` of a block, read or written by tasks of a stream."""

    stream: int
    first: int
    end: int
    write: bool

    def describe(self) -> str:
        """Describe the use for messages: "writes bytes 0 to 64"."""
        return f"{'writes' if self.write else 'reads'} bytes {self.first:,} to {self.end:,}"


class Uses:
    """The uses of a block of memory by streams.

    Only the last of equal uses is kept, because a use that comes after the last one also comes
    after the previous ones. So the number of distinct ranges limits the size. `conflict` removes
    uses that the host knows to be finished.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Use, int] = {}

    def add(self, use: Use, number: int) -> None:
        """Add a use by task `number` of the stream."""
        self._last[use] = number

    def conflict(self, ordering: Ordering, use: Use) -> Use | None:
        """Return another use of the same bytes that is not ordered before `use`, or None.

        Two reads never conflict.
        """
        over = None
        found = None
        for other, number in self._last.items():
            if ordering.is_over(other.stream, number):
                over = [other] if over is None else [*over, other]
            elif (
                (use.write or other.write)
                and other.first < use.end
                and use.first < other.end
                and not ordering.comes_after(use.stream, other.stream, number)
            ):
                found = other
                break
        if over is not None:
            for other in over:
                del self._last[other]
        return found


class PendingExecutions:
    """The submitted executions that use a model, a dataset or a buffer.

    An execution counts until the host has waited for it, even if it is finished (see `Ordering`).
    Callers hold the process's lock.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def add(self, stream: int, number: int) -> None:
        """Add task `number` of the stream."""
        self._last[stream] = number

    def pending(self, ordering: Ordering) -> bool:
        """Return whether an execution is not known to be finished."""
        return bool(self._left(ordering))

    def unordered(self, ordering: Ordering, stream: int) -> bool:
        """Return whether an execution is not ordered before the next task of `stream`."""
        return any(
            not ordering.comes_after(stream, other, number)
            for other, number in self._left(ordering).items()
        )

    def _left(self, ordering: Ordering) -> dict[int, int]:
        self._last = {
            stream: number
            for stream, number in self._last.items()
            if not ordering.is_over(stream, number)
        }
        return self._last


Bytes: TypeAlias = NDArray[np.uint8]
Kind: TypeAlias = Literal["device", "imported", "pinned", "registered", "mapped", "alias"]
"""The kind of a block.

- imported: device memory of another process.
- registered: pinned memory that the program allocated itself.
- mapped: memory that the program allocated itself, not pinned.
- alias: registered or mapped memory at the address that the device uses.
"""

ON_A_DEVICE: Final[tuple[Kind, ...]] = ("device", "imported")
"""The kinds of device memory."""

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

ALIGNMENT: Final = 64
"""Alignment of all addresses; device addresses are deliberately not aligned to more."""

NORMAL_PAGE: Final = 4 * KIB
HUGE_PAGE: Final = 2 * MIB
HUGE1G_PAGE: Final = GIB

_BAND_WIDTHS: Final = int(
    MemType.ACL_MEM_TYPE_LOW_BAND_WIDTH | MemType.ACL_MEM_TYPE_HIGH_BAND_WIDTH
)
_TAIL: Final = 32

FRESH: Final = 0x7F
"""The fill byte of undefined memory, chosen so that a read is noticed.

It is huge as float32 and as integers, and NaN as float16.
"""


class Lease(Protocol):
    """The share of this process in memory that processes share."""

    @property
    def is_kept(self) -> bool:
        """True if the memory still exists."""

    def close(self) -> None:
        """Release the share, after this process has freed the block."""


class Block:
    """`size` bytes of memory from the address `start`; `content` has the bytes, [size] uint8."""

    __slots__ = (
        "alias",
        "charged",
        "content",
        "device",
        "holders",
        "kind",
        "lease",
        "real",
        "size",
        "start",
        "uses",
        "writes",
    )

    def __init__(
        self, start: int, content: Bytes, kind: Kind, device: int | None, charged: int
    ) -> None:
        self.start = start
        self.size = content.nbytes
        self.content = content
        self.real = content.ctypes.data
        """Host address of the first byte, for memmove inside the simulator."""
        self.kind = kind
        self.device = device
        """None for host memory."""
        self.charged = charged
        self.uses = Uses()
        self.writes = 0
        """The number of writes so far. While it is the same, the content is unchanged."""
        self.holders: Counter[str] = Counter()
        self.alias: Block | None = None
        self.lease: Lease | None = None

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.start + self.size

    def __repr__(self) -> str:
        where = "host" if self.device is None else f"device {self.device}"
        return f"<{self.kind} {self.start:#x}, {self.size:,} bytes, {where}>"


@dataclass(frozen=True)
class Place:
    """Bytes `ptr` up to `ptr + nbytes` of a device, all within `block`."""

    ptr: int
    nbytes: int
    block: Block

    @property
    def address(self) -> int:
        """The host address of the bytes."""
        return self.block.real + self.ptr - self.block.start

    @property
    def content(self) -> Bytes:
        """The bytes, [nbytes] uint8, writable."""
        offset = self.ptr - self.block.start
        return self.block.content[offset : offset + self.nbytes]

    @property
    def range(self) -> Range:
        """The address and size, as `Task.reads` and `Task.writes` list them."""
        return self.ptr, self.nbytes


def host_view(ptr: int, nbytes: int) -> Bytes:
    """Return a view of host memory, [nbytes] uint8, which does not keep the memory alive."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(ptr))


def aligned(nbytes: int) -> Bytes:
    """Return `nbytes` new bytes of host memory, aligned to ALIGNMENT. Raises MemoryError."""
    if nbytes > sys.maxsize - ALIGNMENT:  # NumPy would raise ValueError
        raise MemoryError
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + nbytes]


# -- device bytes of an allocation ---------------------------------------------------------------


def round_up(nbytes: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `nbytes`."""
    return -(-nbytes // multiple) * multiple


def page_bytes(nbytes: int, policy: int) -> int:
    """Return the page size of an allocation of `nbytes` with `policy`."""
    pages = policy & ~_BAND_WIDTHS
    if pages in (
        MallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST,
        MallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST_P2P,
    ):
        return HUGE_PAGE if nbytes > MIB else NORMAL_PAGE
    if pages in (MallocPolicy.ACL_MEM_MALLOC_HUGE_ONLY, MallocPolicy.ACL_MEM_MALLOC_HUGE_ONLY_P2P):
        return HUGE_PAGE
    if pages in (
        MallocPolicy.ACL_MEM_MALLOC_NORMAL_ONLY,
        MallocPolicy.ACL_MEM_MALLOC_NORMAL_ONLY_P2P,
    ):
        return NORMAL_PAGE
    if pages in (
        MallocPolicy.ACL_MEM_MALLOC_HUGE1G_ONLY,
        MallocPolicy.ACL_MEM_MALLOC_HUGE1G_ONLY_P2P,
    ):
        return HUGE1G_PAGE
    # CANN treats unknown policies in the same way.
    return HUGE_PAGE if nbytes >= 2 * MIB else NORMAL_PAGE


def slice_bytes(nbytes: int) -> int:
    """Return the bytes that a part of a block needs, with the 32 bytes that operators use."""
    return round_up(nbytes, 32) + _TAIL


def charged_bytes(nbytes: int, policy: int, *, tail: bool = True) -> int:
    """Return the device bytes that an allocation of `nbytes` (1 or more) occupies.

    With `tail` 32 bytes are added; malloc_align32 and pages of 1 GiB have no tail.
    """
    page = page_bytes(nbytes, policy)
    extra = _TAIL if tail and page != HUGE1G_PAGE else 0
    return round_up(round_up(nbytes, 32) + extra, page)
