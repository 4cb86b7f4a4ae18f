"""Device memory as callers and models ask for it: counted by phase, with its faults."""

from __future__ import annotations

from ascend_simulator import process
from ascend_simulator.violations import declare, violate

IN_RUN = declare("memory.malloc-in-run", "After the load phase no device memory is allocated.")


def allocate(size: int, policy: int, *, tail: bool) -> int:
    """Address of `size` new bytes of the current context's device. Violates IN_RUN.

    tail: see `accounting.charged_bytes`. Raises Refused: RT_CONTEXT_NULL and what
    `AddressSpace.malloc` raises.
    """
    now = process.current()
    device = now.context().device
    now.counters.allocated(now.phase)
    if now.phase == "run":
        violate(IN_RUN, f"malloc: found {size:,} bytes of device {device} wanted after the load")
    now.faults.strike("malloc")
    return now.memory.malloc(device, size, policy, tail=tail)
