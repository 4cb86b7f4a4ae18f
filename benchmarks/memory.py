"""Memory of models, compared with the plan: alone, several in one process, in the service.

    python -m benchmarks.memory                          at the repository's limits: some minutes
    python -m benchmarks.memory --tokens 128 --rows 16 --side 128          smaller executions
    python -m benchmarks.memory --parts models --json memory.json

Each figure is measured in a process of its own: the growth of its anonymous memory
(/proc/self/smaps_rollup) after another model was loaded, executed and closed, so that the memory of
libraries does not count. "at load" is measured after the load, "busy" after each model has executed
twice at its limits. With the device service, the memory of the service counts as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.instruments import ROOT, open_runtime, print_machine_facts, print_table, read_config
from ge_runtime import Runtime

MIB = 2**20
REPOSITORY = ROOT / "model_repository"
MODELS = {
    "text_encoder": (),
    "text_pipeline_fused": ("label",),
    "ge_classifier": (),
    "ocr_detection": (),
    "ocr_recognition": ("text", "score"),
    "ocr_angle": (),
    "voice_activity": (),
}
"""Models with a graph, and the outputs that their model.py computes.

text_classifier is missing because its 9 KiB of weights are below the resolution of the figures.
"""
COST = {"cost": "launch_us=100, element_ns=100, element2_ns=0"}


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    print_machine_facts()
    limits = {"tokens": options.tokens, "rows": options.rows, "side": options.side}
    limits["counts"] = options.counts
    results = {part: PARTS[part](limits) for part in options.parts}
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="tables (all)")
    add("--tokens", type=int, help="longest text (each model's limit)")
    add("--rows", type=int, help="largest batch (each model's limit)")
    add("--side", type=int, help="largest side of images (each model's limit)")
    add("--counts", type=int, nargs="+", default=[1, 2, 4], help="numbers of encoders (1 2 4)")
    add("--json", type=Path, metavar="FILE", help="write all figures")
    return parser.parse_args()


# -- parts


def models(limits: Mapping[str, Any]) -> list[dict]:
    """Measure each model of the repository and its plan."""
    rows = [measured([str(REPOSITORY / name)], limits) for name in MODELS]
    print_table(
        ["model", "weights planned", "at load", "planned", "busy", "busy/planned"],
        [
            [name, *(f"{row[key] / MIB:.0f}" for key in ("weights", "load", "planned", "busy")),
             f"{row['busy'] / row['planned']:.2f}"]
            for name, row in zip(MODELS, rows, strict=True)
        ],
    )  # fmt: skip
    return rows


def together(limits: Mapping[str, Any]) -> list[dict]:
    """Measure several encoders in one process, with equal and with different files."""
    return _several(limits, {})


def service(limits: Mapping[str, Any]) -> list[dict]:
    """Measure several encoders that execute in the device service."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        return _several(limits, {"placement": "service"})


def _several(limits: Mapping[str, Any], parameters: Mapping[str, str]) -> list[dict]:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        copies = [copy_of_encoder(Path(folder) / str(n), n) for n in range(max(limits["counts"]))]
        for count in limits["counts"]:
            equal = measured(copies[:1] * count, limits, parameters)
            alone = count == 1  # the file does not matter
            different = equal if alone else measured(copies[:count], limits, parameters)
            results.append({"models": count, "equal": equal, "different": different})
    print_table(
        ["models", "equal, at load", "busy", "different, at load", "busy"],
        [
            [row["models"], *(f"{row[kind][key] / MIB:.0f}"
                              for kind in ("equal", "different") for key in ("load", "busy"))]
            for row in results
        ],
    )  # fmt: skip
    return results


PARTS = {"models": models, "together": together, "service": service}


def copy_of_encoder(folder: Path, number: int) -> str:
    """Copy the encoder under another name, with a different file."""
    (folder / "1").mkdir(parents=True)
    source = REPOSITORY / "text_encoder"
    graph = (source / "1" / "model.onnx").read_bytes()
    # Concatenated protobuf messages are parsed as one merged message.
    graph += onnx.ModelProto(doc_string=f"copy {number}").SerializeToString()
    (folder / "1" / "model.onnx").write_bytes(graph)
    (folder / "config.pbtxt").write_text((source / "config.pbtxt").read_text())
    return str(folder)


# -- one process


def measured(
    folders: list[str], limits: Mapping[str, Any], parameters: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Measure a process with these models; return its bytes, and the plan of the first model.

    It is a fork of this process, which has imported the libraries and opened no model.
    """
    task = {"folders": folders, "limits": dict(limits), "parameters": parameters or {}}
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(child, (task,))


def child(task: Mapping[str, Any]) -> dict[str, int]:
    limits, parameters = task["limits"], task["parameters"]
    small = {"tokens": 32, "rows": 2, "side": 32}
    keep = opened(str(REPOSITORY / "ge_classifier"), small, parameters)  # so the service stays up
    for name in ("text_encoder", "ge_classifier"):
        runtime = opened(str(REPOSITORY / name), small, {})
        execute(runtime)
        runtime.close()
    execute(keep)
    before = anonymous_bytes()
    runtimes = [opened(folder, limits, parameters) for folder in task["folders"]]
    load = anonymous_bytes() - before
    for runtime in runtimes * 2:
        execute(runtime)
    plan = runtimes[0].plan
    return {
        "weights": plan.weights_bytes,
        "planned": plan.total_bytes,
        "load": load,
        "busy": anonymous_bytes() - before,
    }


def opened(folder: str, limits: Mapping[str, int], parameters: Mapping[str, str]) -> Runtime:
    config = read_config(Path(folder))
    values = {"limit.tokens": limits["tokens"], "limit.height": limits["side"],
              "limit.width": limits["side"], "rows": limits["rows"]}  # fmt: skip
    given = {key: str(value) for key, value in values.items() if value is not None}
    changed = {key: text for key, text in given.items() if key in config.parameters}
    if config.max_batch_size and limits["rows"] is not None:
        config.max_batch_size = limits["rows"]
    derived = MODELS.get(Path(folder).name, ())
    return open_runtime(
        Path(folder) / "1", config, {**COST, **changed, **parameters}, derived=derived
    )


def execute(runtime: Runtime) -> None:
    """Execute the largest request that the limits allow."""
    config = runtime.config
    sizes = {axis: config.limits[axis] for axis in config.limits}
    request = {
        spec.name: np.zeros((config.rows, *spec.shape(sizes)), spec.dtype.numpy)
        for spec in config.sources
    }
    for axis, name in config.axis_lengths.items():
        request[name][...] = sizes[axis]
    (answer,) = runtime.infer([request])
    if isinstance(answer, Exception):
        raise answer


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process and of its device services."""
    gc.collect()
    time.sleep(0.1)  # until the service has completed its work
    folder = os.environ.get("XDG_RUNTIME_DIR", "/nowhere")
    own = [os.getpid(), *map(int, pids_of_services(folder))]
    found = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in own]
    sizes = re.findall(r"^Anonymous: +(\d+)", "\n".join(found), re.M)
    return 1024 * sum(map(int, sizes))


def pids_of_services(folder: str) -> list[str]:
    """Return the pids of the device services in this runtime folder."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        served = any(b"ge_runtime.npu.service" in part for part in command)
        if served and f"XDG_RUNTIME_DIR={folder}".encode() in environment:
            pids.append(process.name)
    return pids


if __name__ == "__main__":
    main()
