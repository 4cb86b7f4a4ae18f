"""Reports of the simulated process for tests, and the switch between load and run phase."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_simulator import process, violations
from ascend_simulator.streams.tasks import Span
from ascend_simulator.violations import Finding


@dataclass(frozen=True)
class Report:
    """A snapshot of the process. Each dict is a copy."""

    live: list[str]
    """Objects that acl.finalize() would report: contexts, streams, events, models, memory."""
    broken: dict[str, int]
    """Rule id -> number of violations."""
    findings: list[Finding]
    """The violations, with the lines of the program."""
    calls: dict[str, int]
    """Function -> calls."""
    mallocs: dict[str, int]
    """Phase ("load", "run") -> device allocations."""
    copied_bytes: dict[str, int]
    """Name of the copy kind -> bytes."""
    used_bytes: list[int]
    """Device -> used bytes, including rounding."""
    executions: int
    synchronizations: int
    gil_held_s: float
    """Seconds in functions that hold the GIL on a device."""
    timeline: list[Span]
    """The latest copies and executions in streams, at most `Settings.timeline`."""


def report() -> Report:
    """Return the state of the current process."""
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
    """End the load phase: from now on an allocation of device memory is a violation."""
    process.current().phase = "run"


def thaw() -> None:
    """Return to the load phase."""
    process.current().phase = "load"
