"""Start the reference server in other environments, with its usual command-line options.

    python -m benchmarks.attack.programs asgi --model-repository=... --http-port=8000
    python -m benchmarks.attack.programs clock --model-repository=...
    python -m benchmarks.attack.programs callbacks --model-repository=...

`asgi` is the ASGI application in uvicorn, without gRPC. With `clock` the wall clock jumps by a day
every second; the monotonic clock is not changed, because durations must not depend on the wall
clock. `callbacks` reports event loop callbacks that use much CPU time: while they run, no other
client is served. It measures the CPU time of the loop's thread, so a busy machine changes nothing,
and uses asyncio's loop, because callbacks of uvloop cannot be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from asyncio import base_events, events
from collections.abc import Callable
from typing import Any


def asgi() -> None:
    """Serve HTTP in uvicorn."""
    import uvicorn

    from reference_server.asgi import application

    parser = argparse.ArgumentParser()
    parser.add_argument("--http-port", type=int)
    port = parser.parse_known_args()[0].http_port
    app = application(sys.argv[1:])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


_DAY_NS = 86_400 * 10**9
_time_ns = time.time_ns


def jumping_ns() -> int:
    """Return the wall clock time: a day ahead, a day behind or correct, second by second."""
    now = _time_ns()
    return now + (now // 10**9 % 3 - 1) * _DAY_NS


def clock() -> None:
    """Serve with the wall clock of `jumping_ns`."""
    time.time_ns = jumping_ns
    time.time = lambda: jumping_ns() / 1e9
    from reference_server.command.cli import main as serve

    serve()


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


def callbacks() -> None:
    """Serve with the report of `install`."""
    from reference_server.command import cli

    setattr(cli, "_run", asyncio.run)  # noqa: B010 - instead of uvloop's
    install(lambda line: print(line, file=sys.stderr, flush=True))
    sys.exit(cli.main())


if __name__ == "__main__":
    {"asgi": asgi, "clock": clock, "callbacks": callbacks}[sys.argv.pop(1)]()
