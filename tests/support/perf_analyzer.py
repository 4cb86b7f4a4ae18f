"""Run NVIDIA's load generator against a server, for the shortest possible time.

    measured(server, "grpc", "-m", "batched", "--concurrency-range", "2")

Needs `make oracle`.
"""

from __future__ import annotations

import re
import subprocess
import sys

from support.servers import ROOT, Server

SECONDS = 120
# perf_analyzer ends when three successive windows agree. These options accept any three windows,
# because the tests ignore the speed. On a busy machine a window may have no response; then
# perf_analyzer measures more windows.
_SHORT = ("--measurement-interval", "100", "--stability-percentage", "999", "--max-trials", "50")


def measured(server: Server, protocol: str, *arguments: str) -> str:
    """Run perf_analyzer and return its output.

    Args:
        server: The server.
        protocol: `http` or `grpc`.
        arguments: More arguments for perf_analyzer.

    Raises AssertionError if it measured nothing, or if a request failed.
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
