"""What a program hears of the rules that it broke when it ends, whatever the mode."""

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
    "Everything is released, and acl.finalize() called, before the process ends.",
)


def install() -> None:
    """From now on the end of this Python tells what was found. To be called when `acl` is imported.

    Whatever the program has registered with `atexit` since then comes before it.
    """
    atexit.unregister(at_exit)
    atexit.register(at_exit)


def at_exit() -> None:
    """Write the report to stderr, and end with the exit code that the settings want."""
    now = process.begun()
    if now is None or not now.is_a_programs:
        return
    # An exception that nobody caught is why things are left, and Python has told of it.
    if now.init_count and not now.forked and getattr(sys, "last_value", None) is None:
        left = left_over(now)
        if left:
            text = f"found no acl.finalize(), and left {', '.join(left)}"
            violations.note(NOT_FINALIZED, text, Origin("at the end of the program", "", 0, ""))
    found = violations.findings()
    if not found:
        return
    _print(summary(found, now.settings.mode))
    if now.settings.exit_code and not all(finding.caution for finding in found):
        sys.stdout.flush()
        # An exit handler has no other way to set it.
        os._exit(now.settings.exit_code)


def left_over(now: process.Process) -> list[str]:
    """Names of what the program should have released by now."""
    return now.live() + [f"device {device} set" for device, _ in now.contexts.sets()]


def summary(found: Sequence[Finding], mode: str) -> str:
    """The findings, line by line, below a line that counts them."""
    cautions = sum(finding.caution for finding in found)
    kinds = (("violation", len(found) - cautions), ("caution", cautions))
    counts = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in kinds if count]
    return "\n".join([f"Ascend simulator, mode {mode}: {', '.join(counts)}", *map(str, found)])


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody listens any more
        print(text, file=sys.stderr, flush=True)
