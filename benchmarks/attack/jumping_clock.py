"""The reference server with a wall clock that jumps by a day every second.

    python -m benchmarks.attack.jumping_clock --model-repository=...

The monotonic clock is not changed: durations must not depend on the wall clock.
"""

from __future__ import annotations

import time

_DAY_NS = 86_400 * 10**9
_time_ns = time.time_ns


def jumping_ns() -> int:
    """Return the wall clock time: a day ahead, a day behind or correct, second by second."""
    now = _time_ns()
    return now + (now // 10**9 % 3 - 1) * _DAY_NS


def main() -> None:
    """Serve."""
    time.time_ns = jumping_ns
    time.time = lambda: jumping_ns() / 1e9
    from reference_server.command.cli import main as serve

    serve()


if __name__ == "__main__":
    main()
