"""The reference server with a report of event loop callbacks that use much CPU time.

    python -m benchmarks.attack.loop_callbacks --model-repository=...

While callbacks run, no other client is served. CPU time of the loop's thread counts, so a busy
machine changes nothing. The loop is asyncio's, because uvloop's callbacks cannot be measured.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio import base_events, events
from collections.abc import Callable
from typing import Any

CALLBACK_S, ITERATION_S = 0.02, 0.1
"""The limits of one callback, and of all callbacks in one iteration of the loop."""
MARK = "long loop callback"
"""The start of each reported line."""


def install(
    report: Callable[[str], object], clock: Callable[[], float] = time.thread_time
) -> Callable[[], None]:
    """Report each callback and iteration of asyncio's loops that exceeds its limit.

    Args:
        report: receives the line.
        clock: the CPU time of the calling thread in seconds.

    Returns:
        The function that removes the measurement.
    """
    handles: Any = events.Handle  # their methods have no types
    loops: Any = base_events.BaseEventLoop
    run, run_once = handles._run, loops._run_once

    def measured(
        method: Callable[[Any], None], limit_s: float, shown: Callable[[Any], str]
    ) -> Callable[[Any], None]:
        def measure(own: Any) -> None:
            started_s = clock()
            method(own)
            used_s = clock() - started_s
            if used_s > limit_s:
                report(f"{MARK}: {used_s * 1e3:.0f} ms in {shown(own)}")

        return measure

    def remove() -> None:
        handles._run, loops._run_once = run, run_once

    handles._run = measured(run, CALLBACK_S, repr)
    loops._run_once = measured(run_once, ITERATION_S, lambda _: "all callbacks of one iteration")
    return remove


def main() -> None:
    """Serve."""
    from reference_server.command import cli

    setattr(cli, "_run", asyncio.run)  # noqa: B010 - instead of uvloop's
    install(lambda line: print(line, file=sys.stderr, flush=True))
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
