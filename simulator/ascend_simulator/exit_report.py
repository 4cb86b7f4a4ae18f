"""Reports of the simulated process for tests, and of violated rules at the end of a program."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ascend_simulator import process, violations
from ascend_simulator.streams.tasks import Span
from ascend_simulator.violations import Finding, Origin, declare


@dataclass(frozen=True)
class Report:
    """A snapshot of the process. Each dict is a copy."""

    live: list[str]
    """Objects that acl.finalize() would report: contexts, streams, events, models, memory."""
    broken: dict[str, int]
    """Number of violations by rule id."""
    findings: list[Finding]
    """The violations, with the lines of the program."""
    calls: dict[str, int]
    """Calls by function."""
    mallocs: dict[str, int]
    """Device allocations by phase ("load", "run")."""
    copied_bytes: dict[str, int]
    """Bytes by name of the copy kind."""
    used_bytes: list[int]
    """Used bytes of each device, including rounding."""
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


NOT_FINALIZED = declare(
    "process.not-finalized", "Release everything and call acl.finalize() before the process ends."
)


def install() -> None:
    """Print a report when this Python process ends. Called when `acl` is imported.

    Functions that the program registers with `atexit` after this call run before the report.
    """
    atexit.unregister(at_exit)
    atexit.register(at_exit)


def at_exit() -> None:
    """Write the report to stderr, and end with the exit code of the settings."""
    now = process.existing()
    if now is None or not now.started_by_program:
        return
    # After an uncaught exception, leftovers are expected, and Python has printed the exception.
    if now.init_count and not now.forked and getattr(sys, "last_value", None) is None:
        left = left_over(now)
        if left:
            text = f"acl.finalize() was not called; not released: {', '.join(left)}"
            violations.note(NOT_FINALIZED, text, Origin("at the end of the program", "", 0, ""))
    found = violations.findings()
    if not found:
        return
    _print(summary(found, now.settings.mode))
    if now.settings.exit_code and not all(finding.caution for finding in found):
        sys.stdout.flush()
        # os._exit is the only way for an exit handler to set the exit code.
        os._exit(now.settings.exit_code)


def left_over(now: process.Process) -> list[str]:
    """Name everything that the program should have released by now."""
    return now.live() + [f"device {device} set" for device, _ in now.contexts.sets()]


def summary(found: Sequence[Finding], mode: str) -> str:
    """Format the findings below a line with their count."""
    cautions = sum(finding.caution for finding in found)
    kinds = (("violation", len(found) - cautions), ("caution", cautions))
    counts = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in kinds if count]
    return "\n".join([f"Ascend simulator, mode {mode}: {', '.join(counts)}", *map(str, found)])


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        print(text, file=sys.stderr, flush=True)
