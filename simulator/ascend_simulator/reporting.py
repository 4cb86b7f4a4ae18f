"""Reports of the simulated process for tests, and the end of its load phase."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_simulator import process, violations
from ascend_simulator.streams.tasks import Span
from ascend_simulator.violations import Finding


@dataclass(frozen=True)
class Report:
    """The process at one moment. Each dict is a copy."""

    live: list[str]
    """What acl.finalize() would miss: contexts, streams, events, models, memory."""
    broken: dict[str, int]
    """Rule id -> how often it was broken."""
    findings: list[Finding]
    """What was broken, with the lines of the program that did."""
    calls: dict[str, int]
    """Function -> calls."""
    mallocs: dict[str, int]
    """Phase ("load", "run") -> device allocations."""
    copied_bytes: dict[str, int]
    """Name of the copy kind -> bytes."""
    used_bytes: list[int]
    """Device -> bytes of it that are taken, rounding included."""
    executions: int
    synchronizations: int
    gil_held_s: float
    """Seconds spent in functions that on a device keep the GIL."""
    timeline: list[Span]
    """The last copies and executions in streams, as many as `Settings.timeline` says."""


def report() -> Report:
    """The state of the current process."""
    now = process.current()
    counters = now.counters
    return Report(
        live=now.live(),
        broken=violations.broken(),
        findings=violations.findings(),
        calls=dict(counters.calls),
        mallocs=dict(counters.mallocs),
        copied_bytes=dict(counters.copied_bytes),
        used_bytes=[now.memory.used(device) for device in range(len(now.settings.device_ids))],
        executions=counters.executions,
        synchronizations=counters.synchronizations,
        gil_held_s=counters.gil_held_ns / 1e9,
        timeline=list(now.streams.timeline),
    )


def freeze() -> None:
    """The load phase is over: from now on allocating device memory is a violation."""
    process.current().phase = "run"


def thaw() -> None:
    """Back to the load phase."""
    process.current().phase = "load"
