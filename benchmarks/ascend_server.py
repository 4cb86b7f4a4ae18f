"""The real server on a simulated card, beside the same models on the CPU.

    PYTHONPATH=tests python -m benchmarks.ascend_server
    PYTHONPATH=tests python -m benchmarks.ascend_server --models ge_classifier --requests 10000

Two tritonservers serve the same models, two instances of each: one from .om files through the
device service, one from .onnx files in the model processes. They get the same requests in turns,
and all answers are compared. The card is simulated on the cores of this machine: the ratio tells
what gears, the service and the simulator cost, and nothing of a card's speed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from contract.ascend_repository import (
    MODELS,
    OTHERS,
    Served,
    configure,
    instances_of,
    serving,
    write_ascend_repository,
)
from contract.test_same_repository import Request, as_input, samples, text
from tritonclient.http import InferenceServerClient

from benchmarks.instruments import ROOT, print_machine_facts, print_table

ROUNDS = 5
ABSOLUTE = 1e-3


def main() -> None:
    given = arguments()
    print_machine_facts()
    with tempfile.TemporaryDirectory(prefix="ascend-") as directory, ExitStack() as stack:
        servers = serve_both(Path(directory), stack)
        rows = [compare(servers, model, LOADS[model], given) for model in given.models]
    print(
        f"{given.clients} clients in {ROUNDS} rounds; the answers of both are equal within "
        f"{ABSOLUTE:g}; allocated: on the card, in all rounds"
    )
    headings = (
        "",
        "requests",
        "card/s",
        "CPU/s",
        "ratio",
        "card p50 ms",
        "CPU p50 ms",
        "allocated",
    )
    print_table(headings, rows)


def arguments() -> Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ascend_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--requests", type=int, default=1000, help="of each model to each server (1000)"
    )
    parser.add_argument("--models", nargs="+", choices=LOADS, default=list(LOADS), help="(all)")
    parser.add_argument("--clients", type=int, default=4, help="at once (4)")
    return parser.parse_args()


def images() -> list[Request]:
    return [
        Request(
            "ge_classifier",
            "image",
            "FP32",
            np.array(sample["content"], np.float32).reshape(1, *sample["shape"]),
        )
        for sample in samples("ge_classifier")
    ]


LOADS = {
    "text_pipeline": [text(*sample["content"]) for sample in samples("text_pipeline")],
    "ge_classifier": images(),
}


def serve_both(folder: Path, stack: ExitStack) -> dict[str, Served]:
    """The real server with a card, and without."""
    subprocess.run([sys.executable, "-m", "model_factory", "build"], cwd=ROOT, check=True)
    source = ROOT / "model_repository"
    write_ascend_repository(source, folder / "card")
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.pt2")
    for name in (*MODELS, *OTHERS):
        shutil.copytree(source / name, folder / "CPU" / name, ignore=ignored)
    for name in MODELS:
        configure(folder / "CPU" / name, {}, instances=instances_of(name))
    (folder / "run").mkdir()
    # The card's executions take turns; the instances on the CPU share the cores.
    settings = {"threads": os.cpu_count()}
    return {
        name: stack.enter_context(
            serving("tritonserver", folder / name, folder / "run", settings, allow_metrics=False)
        )
        for name in ("card", "CPU")
    }


def compare(
    servers: Mapping[str, Served], model: str, requests: Sequence[Request], given: Namespace
) -> list[str]:
    """A row of the table. Raises AssertionError for an answer that is not the CPU's."""
    expected, _, _ = send(servers["CPU"], requests, len(requests), 1)
    count = max(1, given.requests // ROUNDS)
    speeds: dict[str, list[float]] = {name: [] for name in servers}
    latencies: dict[str, list[float]] = {name: [] for name in servers}
    before = servers["card"].stats()["memory"]["allocations"]
    for _ in range(ROUNDS):
        for name, served in servers.items():
            answers, times, seconds = send(served, requests, count, given.clients)
            for number, answer in enumerate(answers):
                right = expected[number % len(requests)]
                np.testing.assert_allclose(answer, right, rtol=0, atol=ABSOLUTE)
            speeds[name].append(count / seconds)
            latencies[name] += times
    allocated = servers["card"].stats()["memory"]["allocations"] - before
    ratios = [card / host for card, host in zip(*speeds.values(), strict=True)]
    return [
        model,
        f"{ROUNDS * count:,}",
        *(f"{statistics.median(each):.0f}" for each in speeds.values()),
        f"{statistics.median(ratios):.2f}",
        *(f"{statistics.median(each) * 1e3:.1f}" for each in latencies.values()),
        str(allocated),
    ]


def send(
    served: Served, requests: Sequence[Request], count: int, clients: int
) -> tuple[list[np.ndarray], list[float], float]:
    """So many requests, from so many clients at once: logits, seconds of each, and of all."""
    answers: list[np.ndarray] = [np.empty(0)] * count
    times = [0.0] * count

    def ask(client: int) -> None:
        with InferenceServerClient(served.server.http, network_timeout=60) as connection:
            for number in range(client, count, clients):
                request = requests[number % len(requests)]
                given = as_input(request)
                started = time.perf_counter()
                answers[number] = connection.infer(request.model, [given]).as_numpy("logits")
                times[number] = time.perf_counter() - started

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        for future in [pool.submit(ask, client) for client in range(clients)]:
            future.result()
    return answers, times, time.perf_counter() - started


if __name__ == "__main__":
    main()
