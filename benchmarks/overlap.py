"""Copies beside executions on a card: one buffer set, two, and two executors, on the simulator.

    python -m benchmarks.overlap
    python -m benchmarks.overlap --plot docs/images/overlap.png

Eight executions that two callers ask for, of 4 MiB in and 1 MiB out each. The simulated card copies
0.4 GB/s and takes 12 ms for an execution: no card's times, but a proportion in which overlap shows.
For each way: how long they took, what the card had to do meanwhile, and device memory; the picture
is what the simulator noted of its streams.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

import ascend_simulator
from ascend_simulator import Report, Settings, atc
from benchmarks.instruments import print_machine_facts, print_table
from ge_runtime.runtime import Runtime

ROWS, WIDTH, EXECUTIONS, CALLERS = 8, 131072, 8, 2
CARD = Settings(copy_gbps=0.4, launch_us=12_000, timeline=1000)
WAYS = {
    "one buffer set": {},
    "two buffer sets": {"io_buffers": "2"},
    "two executors": {"devices": "npu:0, npu:0"},
}
KINDS = {
    "ACL_MEMCPY_HOST_TO_DEVICE": ("copies to the card", "tab:blue"),
    "execute": ("executions", "tab:orange"),
    "ACL_MEMCPY_DEVICE_TO_HOST": ("copies back", "tab:green"),
}


class Measured(NamedTuple):
    """One way to serve them."""

    seconds: float
    device_bytes: int
    mallocs: int
    """While it served."""
    report: Report
    """Whose time line begins with them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the streams; matplotlib")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(ascend_simulator.__file__).parent / "site"))
    print_machine_facts()
    with tempfile.TemporaryDirectory() as folder:
        compile_model(Path(folder))
        found = {way: measure(Path(folder), parameters) for way, parameters in WAYS.items()}
    header = ["", "ms", "busy copying, ms", "busy executing, ms", "card, MiB", "allocations"]
    print_table(header, [[way, *cells(each)] for way, each in found.items()])
    if given.plot is not None:
        draw(given.plot, found)


def cells(way: Measured) -> list[str]:
    copying = sum(span.end_ns - span.begin_ns for span in way.report.timeline if is_copy(span))
    executing = sum(
        span.end_ns - span.begin_ns for span in way.report.timeline if not is_copy(span)
    )
    return [
        f"{way.seconds * 1e3:.0f}",
        f"{copying / 1e6:.0f}",
        f"{executing / 1e6:.0f}",
        f"{way.device_bytes / 2**20:.1f}",
        str(way.mallocs),
    ]


def is_copy(span: ascend_simulator.Span) -> bool:
    return span.kind != "execute"


def compile_model(folder: Path) -> None:
    """model.om: a quarter of what comes in, doubled."""
    graph = helper.make_graph(
        [
            helper.make_node("Slice", ["x", "from", "to", "axis"], ["part"]),
            helper.make_node("Add", ["part", "part"], ["y"]),
        ],
        "overlap",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH // 4])],
        [
            helper.make_tensor(name, TensorProto.INT64, [1], [value])
            for name, value in (("from", 0), ("to", WIDTH // 4), ("axis", 1))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    atc.run(
        [
            "--framework=5",
            f"--model={folder / 'model.onnx'}",
            f"--output={folder / 'model'}",
            f"--soc_version={CARD.soc}",
            f"--input_shape=x:{ROWS},{WIDTH}",
            "--precision_mode_v2=origin",
        ]
    )


def measure(folder: Path, parameters: dict[str, str]) -> Measured:
    ascend_simulator.reset_for_tests(CARD)
    settings = {
        "devices": "npu:0",
        "cost": "launch_us=12000, element_ns=1, element2_ns=0",
        "load_check": "off",
        **parameters,
    }
    config = {
        "name": "overlap",
        "max_batch_size": ROWS,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [WIDTH]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [WIDTH // 4]}],
        "parameters": {key: {"string_value": text} for key, text in settings.items()},
    }
    runtime = Runtime.open(folder, config, instance_name="overlap_0")
    requests = [{"x": np.full((ROWS, WIDTH), number, np.float32)} for number in range(EXECUTIONS)]
    before = ascend_simulator.report()
    ascend_simulator.freeze()
    begin = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as callers:
        assert all(callers.map(lambda request: is_right(runtime, request), requests))
    seconds = time.perf_counter() - begin
    report = ascend_simulator.report()
    runtime.close()
    del report.timeline[: len(before.timeline)]
    mallocs = sum(report.mallocs.values()) - sum(before.mallocs.values())
    return Measured(seconds, report.used_bytes[0], mallocs, report)


def is_right(runtime: Runtime, request: dict[str, np.ndarray]) -> bool:
    (answer,) = runtime.infer([request])
    return bool((answer["y"] == 2 * request["x"][0, 0]).all())


def draw(path: Path, found: dict[str, Measured]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(found), 1, sharex=True, figsize=(9, 5.5))
    for axis, (way, each) in zip(axes, found.items(), strict=True):
        spans = each.report.timeline
        start = min(span.begin_ns for span in spans)
        streams = sorted({span.stream for span in spans}, key=lambda name: int(name.split()[-1]))
        for kind, (label, colour) in KINDS.items():
            for stream in streams:
                bars = [
                    ((span.begin_ns - start) / 1e6, (span.end_ns - span.begin_ns) / 1e6)
                    for span in spans
                    if span.kind == kind and span.stream == stream
                ]
                place = (streams.index(stream) - 0.4, 0.8)
                axis.broken_barh(
                    bars, place, facecolors=colour, edgecolor="white", linewidth=0.5, label=label
                )
                label = None
        axis.set_yticks(range(len(streams)), streams)
        axis.set_title(
            f"{way}: {each.seconds * 1e3:.0f} ms, {each.device_bytes / 2**20:.1f} MiB of the card",
            loc="left",
            fontsize=10,
        )
    axes[1].legend(loc="lower right", fontsize=8)
    axes[-1].set_xlabel("ms on the simulator")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
