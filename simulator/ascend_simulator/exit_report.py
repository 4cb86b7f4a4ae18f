"""The report of violated rules at the end of a program, in every mode."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence

from ascend_simulator import process, violations
from ascend_simulator.origins import Origin
from ascend_simulator.violations import Finding, declare

NOT_FINALIZED = declare(
    "process.not-finalized",
    "Release everything and call acl.finalize() before the process ends.",
)


def install() -> None:
    """Print a report when this Python process ends. Called when `acl` is imported.

    Functions that the program registers with `atexit` after that run before the report.
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
