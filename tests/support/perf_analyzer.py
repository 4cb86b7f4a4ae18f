"""NVIDIA's load generator against a running server, for as short a time as it can.

    measured(server, "grpc", "-m", "batched", "--concurrency-range", "2")

Needs what `make oracle` installs.
"""

from __future__ import annotations

import re
import subprocess
import sys

from support.servers import ROOT, Server

SECONDS = 120
# It ends when three windows in a row agree, in this case about anything: how fast it was is not
# looked at. On a busy machine a window may pass without an answer; then it takes more of them.
_SHORT = ("--measurement-interval", "100", "--stability-percentage", "999", "--max-trials", "50")


def measured(server: Server, protocol: str, *arguments: str) -> str:
    """What it prints; it has measured at least one point, and no request failed.

    protocol: `http` or `grpc`.
    """
    address = server.http if protocol == "http" else server.grpc
    program = [sys.executable, str(ROOT / "tools" / "oracle.py"), "perf"]
    done = subprocess.run(
        [*program, "-i", protocol, "-u", address, *_SHORT, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Throughput: [1-9]", done.stdout), done.stdout
    assert "Failed Request Count" not in done.stdout, done.stdout
    return done.stdout
