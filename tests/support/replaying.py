"""`triton-replay record` in a separate process, as users run it.

with recording(server.http, path) as recorder:
    exchange(recorder.address, request)
assert recorder.returncode == 0
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.servers import ROOT

STOP_SECONDS = 30


def command(*words: str | Path) -> Sequence[str | Path]:
    """Return a command line of triton-replay."""
    return (sys.executable, "-m", "triton_replay", *words)


def environment() -> dict[str, str]:
    """Return an environment in which Python finds triton_replay in the sources."""
    return os.environ | {"PYTHONPATH": str(ROOT / "replay")}


@dataclass
class Recorder:
    """A running recorder; after the block, its results."""

    process: subprocess.Popen[str]
    address: str
    grpc: str = ""
    stderr_text: str = ""

    @property
    def returncode(self) -> int | None:
        return self.process.returncode


@contextlib.contextmanager
def recording(server: str, capture: Path, *options: str, grpc: str = "") -> Iterator[Recorder]:
    """Record the traffic at the recorder's `address` until the block ends, then send SIGINT.

    grpc: the server's address for gRPC; "" to record only HTTP.
    """
    if grpc:
        options = (*options, "--grpc-listen=127.0.0.1:0", f"--grpc-server={grpc}")
    words = ("record", "--listen=127.0.0.1:0", "--server", server, "--output", capture, *options)
    process = subprocess.Popen(
        command(*words), env=environment(), stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            recorder = Recorder(process, *[_bound(process) for _ in range(2 if grpc else 1)])
            yield recorder
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            recorder.stderr_text = process.communicate(timeout=STOP_SECONDS)[1]
        finally:
            process.kill()


def _bound(process: subprocess.Popen[str]) -> str:
    line = process.stderr.readline()
    assert line.startswith("recording "), line + process.stderr.read()
    return line.split(" at ")[1].split(" into ")[0]
