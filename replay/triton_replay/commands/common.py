"""What commands share: the event loop, the first record of a capture, lines for the terminal."""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections.abc import Coroutine, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from triton_replay.addresses import Address
from triton_replay.capture.records import Opening


def run_loop(task: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:  # Windows has none
        asyncio.run(task)
    else:
        uvloop.run(task)


def opening(server: Address, settings: Mapping[str, object]) -> Opening:
    """The first record of a capture that begins now."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    return Opening(str(server), now, package_version(), settings)


def package_version() -> str:
    """Of triton-replay."""
    try:
        return version("triton-replay")
    except PackageNotFoundError:
        return "0 (not installed)"


def tell(line: str) -> None:
    """Say something that is no result."""
    print(line, file=sys.stderr, flush=True)
