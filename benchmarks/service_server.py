"""What the device service costs in NVIDIA's tritonserver: `benchmarks.service`, seen by clients.

    python -m benchmarks.service_server                        all cases, about two minutes
    python -m benchmarks.service_server --cases image --seconds 60

One tritonserver has each model twice: one executes in its model process, the other through the
device service. As many clients as a batch has requests, each with a connection of its own, ask one
of them for a slice of a second, then the other, and so on: whatever else the machine does hits
both. The clients run on the same machine and cost both the same.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import np_to_triton_dtype

from benchmarks.instruments import print_machine_facts, print_table
from benchmarks.service import CASES, COST, ENCODER, Case, Inputs, service_folder
from tests.support.servers import start_tritonserver
from tools import oracle
from triton_replay.comparing.latencies import percentile_of

SLICE_SECONDS = 1.0
PLACEMENTS = ("local", "service")


def main() -> None:
    options = parse_arguments()
    if not oracle.is_installed():
        raise SystemExit("tritonserver is not installed; run `make oracle`")
    print_machine_facts()
    with tempfile.TemporaryDirectory(prefix="service-") as directory, service_folder():
        repository = Path(directory) / "repository"
        cases = {name: write(repository, name, Path(directory)) for name in options.cases}
        flags = {"allow_grpc": False, "allow_metrics": False}
        with start_tritonserver(repository, **flags) as server:
            rows = [
                compare(server.http, name, case, options.seconds) for name, case in cases.items()
            ]
    headings = ("us", "clients", "requests", "local p50", "p99", "service p50", "p99", "p50 more")
    print_table([*headings, "lost"], rows)
    print("requests: of each; lost: of the throughput of all clients together")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.service_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=20.0, help="for each case (20)")
    return parser.parse_args()


def write(repository: Path, name: str, scratch: Path) -> Case:
    """The case's model twice, as `<name>_local` and `<name>_service`."""
    folder = scratch / name
    folder.mkdir()
    case = CASES[name](folder)
    for placement in PLACEMENTS:
        version = repository / f"{name}_{placement}" / "1"
        version.mkdir(parents=True)
        shutil.copy(ENCODER / "1" / "model.py", version)
        (version / "model.onnx").symlink_to(case.version / "model.onnx")
        config = ModelConfig()
        config.CopyFrom(case.config)
        config.name = version.parent.name
        for key, value in {**COST, "placement": placement}.items():
            config.parameters[key].string_value = value
        (version.parent / "config.pbtxt").write_text(text_format.MessageToString(config))
    return case


# ------------------------------------------------------------------------------------- clients


def compare(address: str, name: str, case: Case, seconds: float) -> list[str]:
    """A row of the table."""
    clients = len(case.batches[0])
    requests = [as_sent(inputs) for batch in case.batches for inputs in batch]
    took: dict[str, list[float]] = {placement: [] for placement in PLACEMENTS}
    busy = dict.fromkeys(PLACEMENTS, 0.0)
    with connections(address, clients) as opened:
        for placement in PLACEMENTS:  # not counted
            load(opened, f"{name}_{placement}", requests)
        for number in range(round(seconds / SLICE_SECONDS / 2) * 2):
            placement = PLACEMENTS[(number + number // 2) % 2]  # one, other, other, one
            started = time.perf_counter()
            took[placement] += load(opened, f"{name}_{placement}", requests)
            busy[placement] += time.perf_counter() - started
    local, service = took["local"], took["service"]
    lost = 1 - (len(service) / busy["service"]) / (len(local) / busy["local"])
    figures = (percentile_of(each, share) for each in (local, service) for share in (50, 99))
    return [
        name,
        str(clients),
        f"{min(len(local), len(service)):,}",
        *(f"{figure * 1e6:.0f}" for figure in figures),
        f"{(percentile_of(service, 50) - percentile_of(local, 50)) * 1e6:.0f}",
        f"{lost:.1%}",
    ]


def as_sent(inputs: Inputs) -> tuple[bytes, dict[str, str]]:
    """The body of a binary request, and its headers."""
    tensors = []
    for name, array in inputs.items():
        tensors.append(InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(np.ascontiguousarray(array))
    body, length = InferenceServerClient.generate_request_body(tensors)
    return bytes(body), {"Inference-Header-Content-Length": str(length)}


@contextmanager
def connections(address: str, count: int) -> Iterator[list[http.client.HTTPConnection]]:
    opened = [http.client.HTTPConnection(address, timeout=60) for _ in range(count)]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()


def load(
    opened: Sequence[http.client.HTTPConnection],
    model: str,
    requests: Sequence[tuple[bytes, dict[str, str]]],
) -> list[float]:
    """Each client asks, again and again, for one slice of time: the seconds of all requests."""
    path, until = f"/v2/models/{model}/infer", time.perf_counter() + SLICE_SECONDS

    def ask(client: int) -> list[float]:
        took = []
        for body, headers in itertools.islice(itertools.cycle(requests), client, None):
            started = time.perf_counter()
            if started >= until:
                return took
            opened[client].request("POST", path, body, headers)
            answer = opened[client].getresponse()
            content = answer.read()
            took.append(time.perf_counter() - started)
            if answer.status != 200:
                raise RuntimeError(f"{model}: {answer.status} {content!r}")
        raise AssertionError("requests come round again")

    with ThreadPoolExecutor(len(opened)) as pool:
        return [one for took in pool.map(ask, range(len(opened))) for one in took]


if __name__ == "__main__":
    main()
