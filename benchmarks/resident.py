"""What leaves a card between two models of an ensemble: all, handles, or nothing.

    python -m benchmarks.resident
    python -m benchmarks.resident --rounds 20

The texts of benchmarks/data/text_pipeline.json on a simulated card, three ways: text_encoder and
text_classifier, whose embeddings travel; the two of examples/resident, whose embeddings stay; and
text_pipeline_fused. All use the device service, which is in this process, so that the simulator's
counters are those of its copies; requests go one by one, the three ways in turns. Without a server:
what that copies of a tensor between two models comes on top. The card computes on this CPU: its
times are no card's, and the differences are those of the way alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import numpy as np
from tokenizers import Tokenizer

import ascend_simulator
from benchmarks.instruments import (
    ROOT,
    open_runtime,
    print_machine_facts,
    print_table,
    read_config,
)
from benchmarks.pipelines import pad
from ge_runtime.clock import SystemClock
from ge_runtime.engines.backend import open_backend
from ge_runtime.npu.service.protocol import Timeouts
from ge_runtime.npu.service.runtime_folder import RuntimeFolder
from ge_runtime.npu.service.server import Server
from ge_runtime.runtime import Runtime

MODELS, EXAMPLE = ROOT / "model_repository", ROOT / "examples" / "resident"
TOKENS = {"gears.batch,tokens": "1x16, 8x16, 1x64, 8x64, 1x512, 8x512"}
ROWS = {"gears.batch": "1, 8"}
OPENED = {
    "text_encoder": (MODELS, TOKENS),
    "text_classifier": (MODELS, ROWS),
    "text_encoder_resident": (EXAMPLE, TOKENS),
    "text_classifier_resident": (EXAMPLE, ROWS),
    "text_pipeline_fused": (MODELS, TOKENS),
}
WAYS = {
    "host": ("text_encoder", "text_classifier"),
    "resident": ("text_encoder_resident", "text_classifier_resident"),
    "fused": ("text_pipeline_fused",),
}
ON_CARD = {
    "placement": "service",
    "cost": "launch_us=1000, element_ns=1000, element2_ns=0",
}
DIRECTIONS = ("HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="through all requests")
    given = parser.parse_args()
    site = Path(ascend_simulator.__file__).parent / "site"
    sys.path.insert(0, str(site))
    print_machine_facts()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)):
        runtimes = {name: opened(name, Path(folder), site) for name in OPENED}
        requests = tokens()
        copied = {way: [0.0] * len(DIRECTIONS) for way in WAYS}
        passed: Counter[str] = Counter()
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(given.rounds):
            for request in requests:
                for way, names in WAYS.items():
                    before = ascend_simulator.report().copied_bytes
                    start = time.perf_counter()
                    between = infer([runtimes[name] for name in names], request)
                    times[way].append(time.perf_counter() - start)
                    after = ascend_simulator.report().copied_bytes
                    passed[way] += between
                    for index, direction in enumerate(DIRECTIONS):
                        kind = f"ACL_MEMCPY_{direction}"
                        copied[way][index] += after.get(kind, 0) - before.get(kind, 0)
        for runtime in runtimes.values():
            runtime.close()
    count = given.rounds * len(requests)
    print(f"{count} requests of 1 to {max(len(r['lengths']) for r in requests)} texts; for one:")
    header = ["", "H2D bytes", "D2H bytes", "D2D bytes", "between models", "p50 ms", "mean ms"]
    table = [
        [
            way,
            *(f"{total / count:,.0f}" for total in copied[way]),
            f"{passed[way] / count:,.0f}",
            f"{statistics.median(times[way]) * 1e3:.2f}",
            f"{statistics.mean(times[way]) * 1e3:.2f}",
        ]
        for way in WAYS
    ]
    print_table(header, table)


def infer(runtimes: list[Runtime], request: Mapping[str, np.ndarray]) -> int:
    """Pass a request through the models; the bytes that passed between them."""
    tensors, between = dict(request), 0
    for runtime in runtimes:
        (answer,) = runtime.infer([tensors])
        if isinstance(answer, Exception):
            raise answer
        tensors = answer
        if runtime is not runtimes[-1]:
            between += sum(array.nbytes for array in answer.values())
    return between


def tokens() -> list[dict[str, np.ndarray]]:
    """The requests as the tokenizer's model gives them."""
    data = json.loads((ROOT / "benchmarks" / "data" / "text_pipeline.json").read_text())["data"]
    tokenizer = Tokenizer.from_file(str(MODELS / "tokenizer" / "1" / "tokenizer.json"))
    tokenizer.enable_truncation(512)
    texts = (request["text"]["content"] for request in data)
    return [pad([own.ids for own in tokenizer.encode_batch(each)]) for each in texts]


def opened(name: str, folder: Path, site: Path) -> Runtime:
    """The model, compiled for the simulated card."""
    source, gears = OPENED[name]
    own = folder / name
    shutil.copytree(source / name, own)
    graphs = MODELS / name.removesuffix("_resident") / "1"
    (own / "1").mkdir(exist_ok=True)
    for graph in graphs.glob("*.onnx"):
        shutil.copy(graph, own / "1")
    config = own / "config.pbtxt"
    lines = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in {**gears, "devices": "npu:0"}.items()
    ]
    config.write_text("\n".join([config.read_text(), *lines]))
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(site / "bin"), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join((str(site), str(ROOT / "plugin"), str(ROOT / "simulator"))),
        "ASCEND_SIMULATOR_PYTHON": sys.executable,
    }
    command = [sys.executable, "-m", "ge_runtime.cli", "build", str(own), "--precision", "origin"]
    command += ["--soc-version", ascend_simulator.Settings.soc]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    for graph in (own / "1").glob("*.onnx"):
        graph.unlink()
    derived = [] if "encoder" in name else ["label"]
    return open_runtime(own / "1", read_config(own), ON_CARD, derived=derived)


@contextmanager
def service(folder: Path) -> Iterator[None]:
    """A device service of the card in this process."""
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    with RuntimeFolder.open(folder / "ge_runtime") as runtime_folder:
        server = Server(
            "npu:0",
            runtime_folder,
            clock=SystemClock(),
            timeouts=Timeouts(grace_s=3600.0),  # compiling takes longer than it waits
            open_backend=open_backend,
            cores=1,
        )
        thread = Thread(target=lambda: (server.run(), server.close()))
        thread.start()
        try:
            yield
        finally:
            server.end("it is measured")
            thread.join()


if __name__ == "__main__":
    main()
