"""Cost of the device service in NVIDIA's tritonserver, measured by clients.

    python -m benchmarks.service_server                        all cases, about two minutes
    python -m benchmarks.service_server --cases image --seconds 60

One tritonserver has each model twice: one executes in its model process, the other through the
device service. The load alternates between them every second, so that other work on the machine
affects both. It has as many connections as a batch has requests.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from benchmarks.instruments import print_machine_facts, print_table
from benchmarks.load import HTTP, closed_loop
from benchmarks.rows import http
from benchmarks.service import CASES, COST, ENCODER, Case, service_folder
from tests.support.servers import start_tritonserver
from tools import oracle
from triton_replay.comparing.latencies import percentile_of

SLICE_SECONDS = 1.0
PLACEMENTS = ("local", "service")


def main() -> None:
    """Run the command."""
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
    print("requests: of each placement; lost: share of the throughput")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.service_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--cases", nargs="+", choices=CASES, default=list(CASES), help="cases (all)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each case (20)")
    return parser.parse_args()


def write(repository: Path, name: str, scratch: Path) -> Case:
    """Write the case's model twice, as `<name>_local` and `<name>_service`."""
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


# -- clients


def compare(address: str, name: str, case: Case, seconds: float) -> list[str]:
    """Load both placements in alternating slices; return a row of the table."""
    clients = len(case.batches[0])
    load = {
        placement: (address, HTTP, http(f"{name}_{placement}", *itertools.chain(*case.batches)))
        for placement in PLACEMENTS
    }
    latencies: dict[str, list[float]] = {placement: [] for placement in PLACEMENTS}
    for placement in PLACEMENTS:  # warm-up
        closed_loop(*load[placement], clients, SLICE_SECONDS)
    slices = round(seconds / SLICE_SECONDS / 2) * 2
    for number in range(slices):
        placement = PLACEMENTS[(number + number // 2) % 2]  # one, other, other, one
        latencies[placement] += closed_loop(*load[placement], clients, SLICE_SECONDS)
    local, service = latencies["local"], latencies["service"]
    figures = (percentile_of(each, share) for each in (local, service) for share in (50, 99))
    return [
        name,
        str(clients),
        f"{min(len(local), len(service)):,}",
        *(f"{figure:.0f}" for figure in figures),
        f"{percentile_of(service, 50) - percentile_of(local, 50):.0f}",
        f"{1 - len(service) / len(local):.1%}",
    ]


if __name__ == "__main__":
    main()
