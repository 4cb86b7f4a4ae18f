"""Device memory as it is allocated, for callers and models, and the regions that a model has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ascend_simulator import process
from ascend_simulator.codes import Code, Refused
from ascend_simulator.copies import OTHER_DEVICE
from ascend_simulator.memory.blocks import ALIGNMENT, Block, Place, aligned
from ascend_simulator.memory.ordering import Range
from ascend_simulator.process import Process
from ascend_simulator.violations import declare, violate

UNALIGNED = declare(
    "model.memory-unaligned",
    "Workspace, weights, inputs, outputs and gear of a model begin at a multiple of 64 bytes.",
)
IN_RUN = declare("memory.malloc-in-run", "After the load phase no device memory is allocated.")


@dataclass(frozen=True)
class Given:
    """Memory that a caller has for a part of a model; an address of 0 leaves it to the system."""

    ptr: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Region(Place):
    """Device memory of a model; of 0 bytes it is NOWHERE."""

    holder: str
    own: bool
    """Whether the system allocated it, which then frees it."""


NOWHERE: Final = Block(0, aligned(0), "device", None, 0)
"""The block of what needs no memory."""


def system_memory(nbytes: int, policy: int, what: str) -> int:
    """Device memory that a model gets and no caller asked for by name.

    Violates IN_RUN. Raises Refused GE_MEMORY_ALLOCATION.
    """
    try:
        return allocate(nbytes, policy, tail=True)
    except Refused as refused:
        if refused.code != Code.RT_MEMORY_ALLOCATION:
            raise
        raise Refused(Code.GE_MEMORY_ALLOCATION, f"{what}: {refused.text}") from refused


def region(now: Process, holder: str, given: Given, needed: int, policy: int) -> Region:
    """Memory for `needed` bytes of a model, held until `release`: the caller's, or the system's.

    holder: for people, e.g. "model 3 (weights)". Violates UNALIGNED, `copies.OTHER_DEVICE` and the
    rules of `AddressSpace.locate`. Raises Refused: GE_PARAM_INVALID where the caller's is too
    small, GE_MEMORY_ALLOCATION.
    """
    if given.ptr == 0:
        if needed == 0:
            return Region(0, 0, NOWHERE, holder, own=True)
        ptr = system_memory(needed, policy, holder)
        return Region(ptr, needed, now.memory.hold(ptr, needed, holder), holder, own=True)
    if given.nbytes < needed:
        raise Refused(
            Code.GE_PARAM_INVALID, f"{holder}: found {given.nbytes:,} bytes, expected {needed:,}"
        )
    past = given.ptr % ALIGNMENT
    if past:
        violate(UNALIGNED, f"{holder}: {given.ptr:#x}: found {past} bytes past a multiple of 64")
    block = now.memory.hold(given.ptr, given.nbytes, holder)
    device = now.context().device
    if block.device != device:
        violate(OTHER_DEVICE, f"{holder}: {block!r}: found a context of device {device}")
    return Region(given.ptr, given.nbytes, block, holder, own=False)


def overlap(one: Range, two: Range) -> bool:
    """Whether they have a byte in common; of none there is none."""
    return one[0] < two[0] + two[1] and two[0] < one[0] + one[1] and one[1] > 0 < two[1]


def release(now: Process, region: Region) -> None:
    """The model needs it no longer."""
    if region.block is NOWHERE:
        return
    now.memory.release(region.block, region.holder)
    if region.own and now.memory.find(region.ptr) is region.block:  # a reset device has none left
        now.memory.free(region.ptr)


def allocate(size: int, policy: int, *, tail: bool) -> int:
    """Address of `size` new bytes of the current context's device. Violates IN_RUN.

    tail: see `blocks.charged_bytes`. Raises Refused: RT_CONTEXT_NULL and what
    `AddressSpace.malloc` raises.
    """
    now = process.current()
    device = now.context().device
    now.counters.allocated(now.phase)
    if now.phase == "run":
        violate(IN_RUN, f"malloc: found {size:,} bytes of device {device} wanted after the load")
    now.faults.strike("malloc")
    return now.memory.malloc(device, size, policy, tail=tail)
