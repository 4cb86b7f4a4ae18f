"""A Ray cluster of several nodes on this machine, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.servers import ROOT

#: Ten processes start, on cores that others use.
START_SECONDS = 240
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    # Or what is told to listen to the loopback is sought at the machine's address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # What is told for autoscaling is told every 10 s.
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "plugin"))),
    "PYTHONWARNINGS": "ignore",
}
_PROGRAM = ROOT / "tests" / "stack" / "ray_cluster" / "nodes.py"
_MARK = "answer: "
_LISTENS = "0A"


class Nodes:
    """The process that has the cluster: `tests/stack/ray_cluster/nodes.py`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, _PROGRAM],
                env=os.environ | ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self._answer()

    def __call__(self, *command: object) -> Any:
        """What a command answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_MARK):
                return json.loads(line.removeprefix(_MARK))
        raise AssertionError(self._log.read_text())

    def close(self) -> None:
        """End the cluster."""
        try:
            self._process.communicate(timeout=START_SECONDS)
        finally:
            self._process.kill()


def places_of(process: int) -> Iterator[str]:
    """Where a process listens: addresses as Linux tells them, in hexadecimal numbers."""
    links = (
        str(path.readlink()) for path in Path(f"/proc/{process}/fd").iterdir() if path.exists()
    )
    inodes = {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", link))}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == _LISTENS and rest[5] in inodes:
                yield local.partition(":")[0]
