"""Where an attack takes place: servers with the models that attacks ask, and how to start them."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contract.probes import write_probes

from benchmarks.bystanders import repository
from tests.support.servers import Flag, Server, start_reference_server, start_tritonserver

PROBES = ("types", "vector", "pair", "batched", "words", "text", "optional", "reshaped", "half")
"""Those that answer always, and whose state no request changes."""

SIDES = ("inline", "process", "triton")
"""The reference server with its models in its own process and in others, and the real server."""


@dataclass
class Ground:
    """One server under one attack."""

    side: str
    server: Server
    repository: Path
    dice: random.Random
    seconds: float

    def over(self) -> Iterator[float]:
        """The seconds that are left, as often as it is asked, until there are none."""
        end = time.monotonic() + self.seconds
        while (left := end - time.monotonic()) > 0:
            yield left


@contextlib.contextmanager
def models() -> Iterator[Path]:
    """A repository of the models that are asked."""
    with repository() as folder:
        write_probes(folder, *PROBES)
        yield folder


@contextlib.contextmanager
def started(side: str, folder: Path, **flags: Flag) -> Iterator[Server]:
    """A server of this side on these models, with more flags."""
    if side == "triton":
        starting = start_tritonserver(folder, **flags)
    else:
        starting = start_reference_server(folder, backend_config=f"python,host={side}", **flags)
    with starting as server:
        yield server
