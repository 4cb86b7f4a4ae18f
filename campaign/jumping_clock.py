"""The reference server under a clock that somebody sets, by a day and back, every second.

    python -m campaign.jumping_clock --model-repository=...

Only the time of day jumps; what measures durations must not be it.
"""

from __future__ import annotations

import time

_DAY_NS = 86_400 * 10**9
_time_ns = time.time_ns


def jumping_ns() -> int:
    """The time of day, a day ahead, behind or right, by the second in which it is asked."""
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
