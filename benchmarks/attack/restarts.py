"""Failed requests and downtime when a process is killed under load.

    python -m benchmarks.attack.restarts               all rows, under a minute
    python -m benchmarks.attack.restarts --kills 50

Eight closed-loop clients send requests while SIGKILL ends the process that executes them: a model
process of the process host, the device service of an inline model, or a model process of NVIDIA's
tritonserver (killed once, because tritonserver does not restart it).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import np_to_triton_dtype

from benchmarks.attack.ground import IMAGE, service_folder, write_image_service
from benchmarks.instruments import print_machine_facts, print_table
from benchmarks.rows import MICRO, copy_add_sub
from tests.support.servers import Server, start_reference_server, start_tritonserver
from tools import oracle

TARGETS = ["process", "service", "triton"]
CLIENTS = 8
NEVER_S = 15.0
FAILURE_S = 0.5
"""Time within which the requests of a killed process fail."""
PAUSE_S = 0.5
"""Time between the recovery from a kill and the next kill."""

Body = tuple[bytes, dict[str, str]]


def as_sent(inputs: Mapping[str, NDArray[Any]]) -> Body:
    """Return the body and the headers of a binary inference request."""
    tensors = []
    for name, array in inputs.items():
        tensors.append(InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(np.ascontiguousarray(array))
    body, length = InferenceServerClient.generate_request_body(tensors)
    return bytes(body), {"Inference-Header-Content-Length": str(length)}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack.restarts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kills_help = "kills per row; tritonserver's row has 1 (10)"
    parser.add_argument("--kills", type=int, default=10, help=kills_help)
    targets_help = "processes to kill (all)"
    parser.add_argument("--of", nargs="+", choices=TARGETS, default=TARGETS, help=targets_help)
    options = parser.parse_args()
    kills = options.kills
    print_machine_facts()
    rows = []
    values = np.arange(16, dtype=np.float32).reshape(1, 16)
    small = as_sent({"INPUT0": values, "INPUT1": values})
    with tempfile.TemporaryDirectory(prefix="restarts-") as directory, service_folder():
        hosted, served = Path(directory, "hosted"), Path(directory, "served")
        copy_add_sub(hosted, in_process=True)
        write_image_service(served)
        if "process" in options.of:
            with start_reference_server(hosted) as server:
                rows.append(
                    row("process host", server, "add_sub", small, model_process(server), kills)
                )
        if "service" in options.of:
            with start_reference_server(served) as server:
                image = as_sent(IMAGE)
                rows.append(row("device service", server, "image_service", image, service, kills))
        if "triton" in options.of and oracle.is_installed():
            with start_tritonserver(MICRO) as server:
                rows.append(row("tritonserver", server, "add_sub", small, model_process(server), 1))
    print_table(
        ["SIGKILL to", "kills", "answered", "refused", "lost", "served after", "longest"], rows
    )
    print("refused: error response; lost: no response, or a wrong one")


def row(
    name: str, server: Server, model: str, body: Body, find: Callable[[], int], kills: int
) -> list[str]:
    """Kill the process that `find` returns under load, and return a row of the table."""
    load = Load(server.http, model, body)
    took: list[float] = []
    with load.running():
        load.until_answered()
        for _ in range(kills):
            os.kill(find(), signal.SIGKILL)
            killed = time.monotonic()
            load.until_refused()
            load.until_answered()
            took.append(time.monotonic() - killed)
            time.sleep(PAUSE_S)
    return [
        name,
        str(kills),
        *(f"{load.counts[what]:,}" for what in ("answered", "refused", "lost")),
        *(f"{s:.1f} s" if s < NEVER_S else "never" for s in (statistics.median(took), max(took))),
    ]


# -- processes to kill


def model_process(server: Server) -> Callable[[], int]:
    """Return a function that finds the model process of the server."""

    def find() -> int:
        children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
        pids = [int(pid) for path in children for pid in path.read_text().split()]
        return next(pid for pid in pids if b"add_sub" in Path(f"/proc/{pid}/cmdline").read_bytes())

    return find


def service() -> int:
    """Return the pid of the device service in this benchmark's runtime folder."""
    folder = os.environ["XDG_RUNTIME_DIR"].encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes()
            if b"ge_runtime.npu.service" in command and folder in (path / "environ").read_bytes():
                return int(path.name)
    raise SystemExit("no device service runs")


# -- the load


class Load:
    """Closed-loop clients that repeat one request and count the outcomes.

    Thread-safe. Unlike `triton_replay.loading` it compares every response with the first one, and
    goes on after failures.
    """

    def __init__(self, address: str, model: str, body: Body) -> None:
        self.counts: Counter[str] = Counter()
        self._address = address
        self._path = f"/v2/models/{model}/infer"
        self._body = body
        self._right: bytes | None = None
        self._ends = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Send requests until the block ends; each response must equal the first one."""
        _, self._right = self._request(http.client.HTTPConnection(self._address, timeout=60))
        clients = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            self._ends = True
            for client in clients:
                client.join()

    def until_answered(self) -> None:
        """Wait for the next correct response, at most NEVER_S."""
        self._until_more(NEVER_S, "answered")

    def until_refused(self) -> None:
        """Wait for the next failure, at most FAILURE_S."""
        self._until_more(FAILURE_S, "refused", "lost")

    def _until_more(self, limit_s: float, *what: str) -> None:
        def count() -> int:
            return sum(self.counts[each] for each in what)

        with self._changed:
            before = count()
            self._changed.wait_for(lambda: count() > before, limit_s)

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        while not self._ends:
            try:
                status, answer = self._request(connection)
            except (OSError, http.client.HTTPException):
                what = "lost"
                connection.close()
            else:
                what = "lost" if answer != self._right else "answered"
                what = what if status == http.client.OK else "refused"
            with self._changed:
                self.counts[what] += 1
                self._changed.notify_all()
        connection.close()

    def _request(self, connection: http.client.HTTPConnection) -> tuple[int, bytes]:
        body, headers = self._body
        connection.request("POST", self._path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()


if __name__ == "__main__":
    main()
