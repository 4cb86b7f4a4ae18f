"""A Ray cluster of several nodes on this machine, in a separate process."""

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

#: The time limit for the start of ten processes on busy cores.
START_SECONDS = 240
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    # Otherwise Ray connects to the machine's address, where servers on loopback do not listen.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Autoscaling metrics; the default interval is 10 s.
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
    # Otherwise a worker starts for each of the head's processors before it has work.
    "RAY_prestart_worker_first_driver": "0",
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "plugin"))),
    "PYTHONWARNINGS": "ignore",
}
_PROGRAM = ROOT / "tests" / "stack" / "ray_cluster" / "nodes.py"
_MARK = "answer: "
_LISTENS = "0A"


class Nodes:
    """The cluster's process, which runs `tests/stack/ray_cluster/nodes.py`."""

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
        """Send a command and return the answer."""
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
    """Yield the addresses at which a process listens, in the hexadecimal form of /proc/net."""
    links = (
        str(path.readlink()) for path in Path(f"/proc/{process}/fd").iterdir() if path.exists()
    )
    inodes = {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", link))}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == _LISTENS and rest[5] in inodes:
                yield local.partition(":")[0]
