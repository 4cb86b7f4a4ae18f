"""Allocation of device memory for callers and models, and the memory regions of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ascend_simulator import process
from ascend_simulator.codes import Code, Refused
from ascend_simulator.copies import OTHER_DEVICE
from ascend_simulator.memory.blocks import ALIGNMENT, Block, Place, Range, aligned
from ascend_simulator.process import Process
from ascend_simulator.violations import declare, violate

UNALIGNED = declare(
    "model.memory-unaligned",
    "Workspace, weights, inputs, outputs and gear of a model must be aligned to 64 bytes.",
)
IN_RUN = declare("memory.malloc-in-run", "Allocate no device memory after the load phase.")


@dataclass(frozen=True)
class Given:
    """A caller's memory for a part of a model. If `ptr` is 0, the system allocates memory."""

    ptr: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Region(Place):
    """Device memory of a model; a region of 0 bytes is NOWHERE."""

    holder: str
    own: bool
    """True if the system allocated the memory and frees it."""


NOWHERE: Final = Block(0, aligned(0), "device", None, 0)
"""The block of regions without memory."""


def system_memory(nbytes: int, policy: int, what: str) -> int:
    """Allocate device memory for a model on behalf of the system.

    Checks IN_RUN. Raises Refused GE_MEMORY_ALLOCATION.
    """
    try:
        return allocate(nbytes, policy, tail=True)
    except Refused as refused:
        if refused.code != Code.RT_MEMORY_ALLOCATION:
            raise
        raise Refused(Code.GE_MEMORY_ALLOCATION, f"{what}: {refused.text}") from refused


def region(now: Process, holder: str, given: Given, needed: int, policy: int) -> Region:
    """Return memory for `needed` bytes of a model, held until `release`.

    Allocates memory if the caller gave none. `holder` is a name for messages, e.g. "model 3
    (weights)". Checks UNALIGNED, `copies.OTHER_DEVICE` and the rules of `AddressSpace.locate`.
    Raises Refused: GE_PARAM_INVALID if the given memory is too small, GE_MEMORY_ALLOCATION.
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
        violate(OTHER_DEVICE, f"{holder}: {block!r}: the context is of device {device}")
    return Region(given.ptr, given.nbytes, block, holder, own=False)


def overlap(one: Range, two: Range) -> bool:
    """Return whether the ranges have a common byte. An empty range overlaps no range."""
    return one[0] < two[0] + two[1] and two[0] < one[0] + one[1] and one[1] > 0 < two[1]


def release(now: Process, region: Region) -> None:
    """End a model's use of the region; free the memory if the system allocated it."""
    if region.block is NOWHERE:
        return
    now.memory.release(region.block, region.holder)
    is_allocated = now.memory.find(region.ptr) is region.block  # false after a device reset
    if region.own and is_allocated:
        now.memory.free(region.ptr)


def allocate(size: int, policy: int, *, tail: bool) -> int:
    """Allocate `size` bytes on the current context's device; return the address.

    Checks IN_RUN. For `tail` see `blocks.charged_bytes`. Raises Refused RT_CONTEXT_NULL, and like
    `AddressSpace.malloc`.
    """
    now = process.current()
    device = now.context().device
    now.counters.allocated(now.phase)
    if now.phase == "run":
        violate(IN_RUN, f"malloc: {size:,} bytes of device {device} requested after the load phase")
    now.faults.strike("malloc")
    return now.memory.malloc(device, size, policy, tail=tail)
