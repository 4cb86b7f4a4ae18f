"""What a device service tells of itself, as JSON: for `ge-runtime top` and whoever else asks."""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ge_runtime.devices import Device
from ge_runtime.engines.backend import DeviceBackend
from ge_runtime.service.library import Volume
from ge_runtime.service.naming import process_name
from ge_runtime.service.protocol import VERSION, Json
from ge_runtime.service.tenancy import Tenant
from ge_runtime.service.turns import Turns


def describe(
    device: str,
    up_s: float,
    place: DeviceBackend | None,
    volumes: Sequence[Volume],
    tenants: Sequence[Tenant],
    turns: Turns,
) -> Json:
    """All of it. Times are seconds, sizes bytes; what counts, counts from the start."""
    arenas = sum(tenant.arenas.nbytes for tenant in tenants)
    books = () if place is None else place.memories
    allocated = _by_label(books)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "version": VERSION,
        "device": device,
        "place": None
        if place is None
        else {"kind": place.kind, "name": place.name, "hardware": place.hardware},
        "pid": os.getpid(),
        "up_s": up_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "turns": asdict(turns.stats()),
        "memory": {
            "resident": _resident_bytes(),
            # Engines have their own, but for those of a card, which share files of equal content.
            "weights": allocated.get("weights", sum(v.engine.weights_bytes() for v in volumes)),
            "arenas": arenas,
            "allocated": allocated,
            "allocations": sum(device.allocations for device in books),
        },
        "models": [
            {
                "artifacts": [str(artifact.path) for artifact in volume.artifacts],
                "engine": volume.artifacts[0].engine,
                "content": volume.content[:12],
                "weights": volume.engine.weights_bytes(),
                "clients": volume.users,
                "executions": volume.executions,
                "faults": volume.faults,
                "busy_s": volume.busy_s,
            }
            for volume in volumes
        ],
        "clients": [
            {
                "number": tenant.number,
                "name": tenant.name,
                "pid": tenant.pid,
                "process": process_name(tenant.pid),
                "weight": tenant.weight,
                "priority": tenant.priority,
                "arenas": tenant.arenas.nbytes,
                "engines": len(tenant.loans),
                "executions": tenant.executions,
                "faults": tenant.faults,
                "busy_s": tenant.busy_s,
                "wait_s": tenant.wait_s,
                "waiting": tenant.waiting,
            }
            for tenant in tenants
        ],
    }


def _by_label(books: Sequence[Device[Any]]) -> dict[str, int]:
    allocated: Counter[str] = Counter()
    for device in books:
        allocated.update(device.allocated_bytes)
    return dict(allocated)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
