"""Cost of the device service: the same batches in process and through the service.

    python -m benchmarks.service                 all cases, about a minute
    python -m benchmarks.service --seconds 60    longer, for meaningful percentiles
    python -m benchmarks.service --cases image   one case

Each pair is one call in process and one through the service, in alternating order, so that other
work on the machine affects both. Both use one execution thread and the same engine. The service
runs in a temporary runtime folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

from benchmarks import traces
from benchmarks.instruments import (
    ROOT,
    open_runtime,
    print_machine_facts,
    print_table,
    read_config,
)
from ge_runtime.runtime import Runtime
from model_factory.onnx_graph import GraphWriter
from triton_replay.comparing.latencies import percentile_of

ENCODER = ROOT / "model_repository" / "text_encoder"
SIDE = 224
COST = {"cost": "launch_us=100, element_ns=100, element2_ns=0", "intra_op_threads": "1"}
WARM = 20
"""Pairs of the warm-up."""


@dataclass
class Comparison:
    """Figures of one case. Times are seconds of a call."""

    case: str
    pairs: int
    nbytes: int
    """Size of a batch's inputs."""
    local_p50: float
    local_p99: float
    service_p50: float
    service_p99: float
    local_mean: float
    service_mean: float

    @property
    def lost(self) -> float:
        """Share of one caller's throughput that is lost."""
        return 1 - self.local_p50 / self.service_p50


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    print_machine_facts()
    with service_folder():
        results = [
            compare(case, CASES[case](directory), options.seconds)
            for case in options.cases
            for directory in temporary_folders()
        ]
    print_comparisons(results)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="(all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each case (10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return parser.parse_args()


@contextmanager
def service_folder() -> Iterator[None]:
    """Use a temporary runtime folder for device services until the block ends."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, XDG_RUNTIME_DIR=folder),
    ):
        yield


def temporary_folders() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


# -- cases


Inputs = dict[str, np.ndarray]


@dataclass
class Case:
    """A model and batches of requests."""

    version: Path
    config: ModelConfig
    batches: list[list[Inputs]]

    def open(self, parameters: Mapping[str, str]) -> Runtime:
        return open_runtime(self.version, self.config, {**COST, **parameters})


def image(folder: Path) -> Case:
    """One image of 602,112 bytes, reduced to its means: small outputs."""
    return _image(folder, "ReduceMean")


def copy(folder: Path) -> Case:
    """One image of 602,112 bytes, returned unchanged: large outputs."""
    return _image(folder, "Identity")


def _image(folder: Path, node: str) -> Case:
    dims = [3, SIDE, SIDE]
    answer = dims if node == "Identity" else [3, 1, 1]
    graph = GraphWriter()
    given = graph.input("image", np.float32, ["batch", *dims])
    attributes: dict[str, Any] = {} if node == "Identity" else {"axes": [2, 3], "keepdims": 1}
    graph.node(
        node, given, name=graph.output("answer", np.float32, ["batch", *answer]), **attributes
    )
    (folder / "model.onnx").write_bytes(graph.model("image", "for its copies").SerializeToString())
    config = ModelConfig(
        name="image",
        backend="python",
        max_batch_size=8,
        input=[ModelInput(name="image", data_type="TYPE_FP32", dims=dims)],
        output=[ModelOutput(name="answer", data_type="TYPE_FP32", dims=answer)],
    )
    batch = [{"image": np.ones((1, *dims), np.float32)}]
    return Case(folder, config, [batch])


def tokens(requests: int) -> Callable[[Path], Case]:
    """Return a case with batches of short texts for the sentence encoder."""

    def case(folder: Path) -> Case:
        lengths = traces.token_lengths("queries", 20 * requests, seed=5)
        rows = traces.token_rows(np.minimum(lengths, 32), 5)
        batches = [
            [{"input_ids": row, "lengths": np.array([[row.shape[1]]], np.int32)} for row in batch]
            for batch in traces.batches(rows, requests)
        ]
        config = read_config(ENCODER)
        config.parameters["limit.tokens"].string_value = "32"
        return Case(ENCODER / "1", config, batches)

    return case


CASES: dict[str, Callable[[Path], Case]] = {
    "image": image,
    "copy": copy,
    "tokens-1": tokens(1),
    "tokens-8": tokens(8),
    "tokens-32": tokens(32),
}


# -- measuring


def compare(name: str, case: Case, seconds: float) -> Comparison:
    local, service = case.open({}), case.open({"placement": "service"})
    batches = case.batches
    took: dict[Runtime, list[float]] = {local: [], service: []}
    try:
        pair, until = 0, time.perf_counter() + seconds
        while pair <= WARM or time.perf_counter() < until:
            pair += 1
            batch = batches[pair % len(batches)]
            order = (local, service) if pair % 2 else (service, local)
            for runtime in order:
                started = time.perf_counter()
                answers = runtime.infer(batch)
                took[runtime].append(time.perf_counter() - started)
                for answer in answers:
                    if isinstance(answer, Exception):
                        raise answer
    finally:
        local.close()
        service.close()
    ours, theirs = took[local][WARM:], took[service][WARM:]
    return Comparison(
        name,
        len(ours),
        sum(array.nbytes for request in batches[0] for array in request.values()),
        percentile_of(ours, 50),
        percentile_of(ours, 99),
        percentile_of(theirs, 50),
        percentile_of(theirs, 99),
        statistics.mean(ours),
        statistics.mean(theirs),
    )


def print_comparisons(results: list[Comparison]) -> None:
    print_table(
        [
            "us",
            "pairs",
            "KB",
            "local p50",
            "p99",
            "service p50",
            "p99",
            "p50 more",
            "p99 more",
            "lost",
        ],
        [
            [
                one.case,
                one.pairs,
                f"{one.nbytes / 1e3:.1f}",
                f"{one.local_p50 * 1e6:.0f}",
                f"{one.local_p99 * 1e6:.0f}",
                f"{one.service_p50 * 1e6:.0f}",
                f"{one.service_p99 * 1e6:.0f}",
                f"{(one.service_p50 - one.local_p50) * 1e6:.0f}",
                f"{(one.service_p99 - one.local_p99) * 1e6:.0f}",
                f"{one.lost:.1%}",
            ]
            for one in results
        ],
    )
    print("KB: inputs of a batch; lost: share of one caller's throughput, by p50")


def write(repository: Path, name: str, scratch: Path) -> Case:
    """Write the case's model twice, as `<name>_local` and `<name>_service`, for a server."""
    folder = scratch / name
    folder.mkdir()
    case = CASES[name](folder)
    for placement in ("local", "service"):
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


if __name__ == "__main__":
    main()
