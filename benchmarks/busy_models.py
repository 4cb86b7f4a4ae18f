"""Latency of other requests while a model computes 50 ms for each of its requests.

    python -m benchmarks.busy_models                            three minutes
    python -m benchmarks.busy_models --work python --servers reference process

The inline host runs models in the server's process, so they share its GIL. The busy model computes
in Python, which releases the GIL periodically (`python`); in matrix products, which release it
(`numpy`); or in single calls of C code that hold it for 50 ms (`call`). `process` is the reference
server with the busy model in a process of its own. A bystander sends health checks and small
inferences of another model every few milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.instruments import print_machine_facts, print_table
from benchmarks.load import HTTP, closed_loop, connect, starter
from benchmarks.rows import IN_PROCESS, MICRO, http
from triton_replay.comparing.latencies import percentile_of

PAUSE_S = 0.004
IN_FLIGHT = 2
"""Requests in flight of the busy model, so that one always waits."""
WORK = {
    "python": "sum(number * number for number in range(1_000))",
    "numpy": "MATRIX @ MATRIX",
    "call": "sum(range(COUNT))",
}
MODEL = """\
import time

import numpy as np
import triton_python_backend_utils as pb_utils

LASTS_S = 0.05
MATRIX = np.ones((256, 256), np.float32)
started = time.perf_counter()
sum(range(1_000_000))
COUNT = int(1_000_000 * LASTS_S / (time.perf_counter() - started))


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            over = time.perf_counter() + LASTS_S
            while time.perf_counter() < over:
                WORK
            given = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", given)]))
        return responses
"""
CONFIG = """
backend: "python"
max_batch_size: 1
input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""


@contextlib.contextmanager
def repository(work: str, *, in_process: bool) -> Iterator[Path]:
    """A repository with the busy model and the bystander's model."""
    with tempfile.TemporaryDirectory(prefix="busy-") as name:
        folder = Path(name)
        shutil.copytree(MICRO / "identity", folder / "identity_1")
        version = folder / "busy" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL.replace("WORK", WORK[work]))
        (version.parent / "config.pbtxt").write_text(CONFIG + IN_PROCESS * in_process)
        yield folder


def bystander(http: str, seconds: float) -> dict[str, list[float]]:
    """Send health checks and small inferences over HTTP; return the seconds of each response."""
    document = b'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}'
    requests = {
        "health": b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
        "inference": b"POST /v2/models/identity_1/infer HTTP/1.1\r\nHost: x\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(document), document),
    }
    taken: dict[str, list[float]] = {name: [] for name in requests}
    with contextlib.ExitStack() as stack:
        clients = {name: stack.enter_context(connect(http)) for name in requests}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name, request in requests.items():
                started = time.perf_counter()
                clients[name].sendall(request)
                response = clients[name].recv(65_536)
                taken[name].append(time.perf_counter() - started)
                if not response.startswith(b"HTTP/1.1 200"):
                    raise SystemExit(f"bystander's {name} request: received {response!r}")
            time.sleep(PAUSE_S)
    return taken


def measure(work: str, server: str, seconds: float) -> dict[str, list[float]]:
    """Return the latencies of the bystander's and the busy model's requests, in seconds."""
    start = starter("triton" if server == "triton" else "reference")
    with (
        repository(work, in_process=server == "process") as folder,
        start(folder, allow_metrics=False) as running,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        sent = http("busy", {"INPUT": np.zeros((1, 4), np.float32)})
        bystander(running.http, 0.2)
        load = (running.http, HTTP, sent, IN_FLIGHT, seconds + 2)
        busy = pool.apply_async(closed_loop, load)
        time.sleep(1)  # until the client process has started
        taken = bystander(running.http, seconds)
        return {**taken, "busy": [us / 1e6 for us in busy.get()]}


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    print_machine_facts()
    turns: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(options.turns):
        for work in options.work:
            for server in options.servers:
                taken = measure(work, server, options.seconds)
                turns.setdefault((work, server), []).append(
                    [
                        *(1e3 * percentile_of(taken["health"], share) for share in (50, 99)),
                        *(1e3 * percentile_of(taken["inference"], share) for share in (50, 99)),
                        len(taken["busy"]) / (options.seconds + 2),
                    ]
                )
    rows = [
        [*point, *(f"{statistics.median(figures):.1f}" for figures in zip(*each, strict=True))]
        for point, each in turns.items()
    ]
    print(f"medians of {options.turns} turns of {options.seconds:g} s; milliseconds")
    print_table(
        ("work", "server", "health p50", "p99", "other p50", "p99", "busy model's per second"), rows
    )
    if options.json:
        figures = [{"point": point, "turns": each} for point, each in turns.items()]
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.busy_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    servers = ["reference", "process", "triton"]
    add = parser.add_argument
    add("--work", nargs="+", choices=WORK, default=list(WORK), help="types of work (all)")
    add("--servers", nargs="+", choices=servers, default=servers, help="servers (all)")
    add("--seconds", type=float, default=5.0, help="duration of each turn (5)")
    add("--turns", type=int, default=3, help="turns of each server (3)")
    add("--json", type=Path, metavar="FILE", help="write the figures of each turn")
    return parser.parse_args()


if __name__ == "__main__":
    main()
