"""What the benchmarks of ge_runtime measure with, and how they open a runtime and print.

Executions are watched from outside, at the engine, so that figures mean the same for every way to
batch and do not depend on what a runtime says of itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.runtime import Runtime
from reference_server.config import render

ROOT = Path(__file__).resolve().parent.parent

ONE_EXECUTION = {"cost": "launch_us=1000000, element_ns=1, element2_ns=0"}
"""Parameters that make executions so dear that a batch becomes one if it can."""


# ------------------------------------------------------------------------------- executions


@dataclass
class Executions:
    """What engines were given since the watch began."""

    executions: int = 0
    rows: int = 0
    elements: int = 0
    """Of the watched input, padding included."""
    seconds: float = 0.0


@contextlib.contextmanager
def watch(tensor: str, *, execute: bool = True) -> Iterator[Executions]:
    """Watch every execution of ONNX Runtime: what it gets as input `tensor`, and how long it takes.

    execute: whether the graph is executed at all; without, planned outputs keep what they held,
    and what is left of the time is the runtime's own.
    """
    seen = Executions()
    run = OnnxEngine.run

    def watched(engine: OnnxEngine, inputs: Mapping, outputs: Mapping) -> dict:
        started = time.perf_counter()
        results = run(engine, inputs, outputs) if execute else dict(outputs)
        seen.seconds += time.perf_counter() - started
        seen.executions += 1
        seen.rows += len(inputs[tensor])
        seen.elements += inputs[tensor].size
        return results

    OnnxEngine.run = watched
    try:
        yield seen
    finally:
        OnnxEngine.run = run


@dataclass
class Call:
    """One call for one batch, measured."""

    seconds: float
    engine_seconds: float
    executions: int
    elements: int
    page_faults: int


def measure(seen: Executions, call: Callable[[], object]) -> Call:
    """Call once under `watch`; the result is dropped, as a server drops what it has sent."""
    before, faults = replace(seen), page_faults()
    started = time.perf_counter()
    call()
    seconds = time.perf_counter() - started
    return Call(
        seconds,
        seen.seconds - before.seconds,
        seen.executions - before.executions,
        seen.elements - before.elements,
        page_faults() - faults,
    )


def page_faults() -> int:
    """Pages that this process had to ask the system for, so far: where allocation shows."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes of Python and NumPy that one call holds at once, its answers among them."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


# ----------------------------------------------------------------------------------- runtimes


def read_config(folder: Path) -> ModelConfig:
    """The config.pbtxt of a model's folder."""
    config = text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())
    config.name = config.name or folder.name
    return config


def as_mapping(config: ModelConfig, parameters: Mapping[str, str]) -> dict:
    """The configuration as Triton hands it to a model, with these parameters over its own."""
    changed = ModelConfig()
    changed.CopyFrom(config)
    for key, value in parameters.items():
        changed.parameters[key].string_value = value
    return json.loads(render.as_json(changed))


def open_runtime(
    version: Path,
    config: ModelConfig,
    parameters: Mapping[str, str] = MappingProxyType({}),
    *,
    derived: Sequence[str] = (),
) -> Runtime:
    """The model in `version` with these parameters over those of its configuration."""
    mapping = as_mapping(config, parameters)
    return Runtime.open(version, mapping, instance_name="benchmark", derived=derived)


# -------------------------------------------------------------------------------------- output


def print_machine_facts() -> None:
    """Print what the numbers depend on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown processor",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"machine  {cpu}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB")
    print(f"system   {platform.platform()}, Python {platform.python_version()}")
    print(f"load     {os.getloadavg()[0]:.1f} before the start (0 is an idle machine)")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns; the first is text and the others are numbers, aligned to the right."""
    lines = [list(map(str, line)) for line in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        print("  ".join([first.ljust(widths[0]), *cells]))


def percentile(values: Sequence[float], share: float) -> float:
    return float(np.percentile(values, share))
