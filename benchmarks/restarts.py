"""What the death of a process under load costs its callers: how many requests fail, how long.

    python -m benchmarks.restarts               all rows, under a minute
    python -m benchmarks.restarts --kills 50

Eight clients ask without a pause, each over a connection of its own, while SIGKILL ends the process
that executes: that of a model in the process host, the device service of a model that runs inline,
and that of a model in NVIDIA's tritonserver, once, since it does not come back there.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.bars import MICRO, copy_add_sub
from benchmarks.instruments import print_machine_facts, print_table
from benchmarks.service import service_folder
from benchmarks.service_server import as_sent, write
from tests.support.servers import Server, start_reference_server, start_tritonserver
from tools import oracle

WHO = ["process", "service", "triton"]
CLIENTS = 8
GIVEN_UP_S = 15.0
#: That what a process had is refused within, when it has been killed.
AT_WORK_S = 0.5
#: Between a right answer after a kill and the next kill.
PAUSE_S = 0.5

Body = tuple[bytes, dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restarts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=10, help="of each but the real one's (10)")
    parser.add_argument("--of", nargs="+", choices=WHO, default=WHO, help="whom to kill (all)")
    options = parser.parse_args()
    kills = options.kills
    print_machine_facts()
    rows = []
    values = np.arange(16, dtype=np.float32).reshape(1, 16)
    small = as_sent({"INPUT0": values, "INPUT1": values})
    with tempfile.TemporaryDirectory(prefix="restarts-") as directory, service_folder():
        hosted, served = Path(directory, "hosted"), Path(directory, "served")
        copy_add_sub(hosted, in_process=True)
        case = write(served, "image", Path(directory))
        shutil.rmtree(served / "image_local")
        if "process" in options.of:
            with start_reference_server(hosted) as server:
                rows.append(
                    row("process host", server, "add_sub", small, model_process(server), kills)
                )
        if "service" in options.of:
            with start_reference_server(served) as server:
                image = as_sent(case.batches[0][0])
                rows.append(row("device service", server, "image_service", image, service, kills))
        if "triton" in options.of and oracle.is_installed():
            with start_tritonserver(MICRO) as server:
                rows.append(row("tritonserver", server, "add_sub", small, model_process(server), 1))
    print_table(
        ["SIGKILL to", "kills", "answered", "refused", "lost", "served after", "longest"], rows
    )
    print("refused: answered with an error; lost: not answered at all, or wrongly")


def row(
    name: str, server: Server, model: str, body: Body, find: Callable[[], int], kills: int
) -> list[str]:
    """A row of the table."""
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
        *(
            f"{s:.1f} s" if s < GIVEN_UP_S else "never"
            for s in (statistics.median(took), max(took))
        ),
    ]


# ---------------------------------------------------------------------------------- who is killed


def model_process(server: Server) -> Callable[[], int]:
    """The process of the model, of which there is one."""

    def find() -> int:
        children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
        pids = [int(pid) for path in children for pid in path.read_text().split()]
        return next(pid for pid in pids if b"add_sub" in Path(f"/proc/{pid}/cmdline").read_bytes())

    return find


def service() -> int:
    """The device service of this benchmark's runtime folder."""
    folder = os.environ["XDG_RUNTIME_DIR"].encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes()
            if b"ge_runtime.npu.service" in command and folder in (path / "environ").read_bytes():
                return int(path.name)
    raise SystemExit("found no device service")


# --------------------------------------------------------------------------------------- the load


class Load:
    """Clients that ask one thing again and again, and count what they get."""

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
        """Ask, with a first answer that all later ones are to equal."""
        _, self._right = self._ask(http.client.HTTPConnection(self._address, timeout=60))
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
        """Wait for the next right answer, or give up."""
        self._until_more(GIVEN_UP_S, "answered")

    def until_refused(self) -> None:
        """Wait for one that fails, if the process was at work."""
        self._until_more(AT_WORK_S, "refused", "lost")

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
                status, answer = self._ask(connection)
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

    def _ask(self, connection: http.client.HTTPConnection) -> tuple[int, bytes]:
        body, headers = self._body
        connection.request("POST", self._path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()


if __name__ == "__main__":
    main()
