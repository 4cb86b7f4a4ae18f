"""Measurement, runtimes and output shared by the benchmarks.

Executions are counted at the engine, so that the figures have the same meaning for every way to
batch and do not depend on a runtime's own counters.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.runtime import Runtime
from reference_server.config import json_form

ROOT = Path(__file__).resolve().parent.parent


# -- executions


@dataclass
class Executions:
    """Executions of engines since `watch` started."""

    executions: int = 0
    rows: int = 0
    elements: int = 0
    """Elements of the watched input, padding included."""
    seconds: float = 0.0


@contextlib.contextmanager
def watch(tensor: str) -> Iterator[Executions]:
    """Count the executions of ONNX Runtime, their time, and the size of their input `tensor`."""
    seen = Executions()
    run = OnnxEngine.run

    def watched(engine: OnnxEngine, inputs: Mapping, outputs: Mapping) -> dict:
        started = time.perf_counter()
        results = run(engine, inputs, outputs)
        seen.seconds += time.perf_counter() - started
        seen.executions += 1
        seen.rows += len(inputs[tensor])
        seen.elements += inputs[tensor].size
        return results

    setattr(OnnxEngine, "run", watched)  # noqa: B010 - mypy accepts no other assignment
    try:
        yield seen
    finally:
        setattr(OnnxEngine, "run", run)  # noqa: B010


@dataclass
class Call:
    """Figures of one call for one batch."""

    seconds: float
    engine_seconds: float
    executions: int
    elements: int
    page_faults: int
    cpu_seconds: float
    """CPU time of all threads of the process."""


def measure(seen: Executions, call: Callable[[], object]) -> Call:
    """Measure one call under `watch`, without its result: a server frees what it has sent."""
    before, faults = replace(seen), page_faults()
    started, cpu_started = time.perf_counter(), time.process_time()
    call()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return Call(
        seconds,
        seen.seconds - before.seconds,
        seen.executions - before.executions,
        seen.elements - before.elements,
        page_faults() - faults,
        cpu_seconds,
    )


def page_faults() -> int:
    """Return the minor page faults of this process, which allocation of new memory causes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the peak of bytes that one call allocates in Python and NumPy, results included."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


# -- runtimes


def read_config(folder: Path) -> ModelConfig:
    """Read the config.pbtxt in a model's folder."""
    config = text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())
    config.name = config.name or folder.name
    return config


def as_mapping(config: ModelConfig, parameters: Mapping[str, str]) -> dict:
    """Return the configuration in the form that Triton passes to a model, with more parameters."""
    changed = ModelConfig()
    changed.CopyFrom(config)
    for key, value in parameters.items():
        changed.parameters[key].string_value = value
    return json.loads(json_form.as_json(changed))


def open_runtime(
    version: Path,
    config: ModelConfig,
    parameters: Mapping[str, str] = MappingProxyType({}),
    *,
    derived: Sequence[str] = (),
) -> Runtime:
    """Open the model in the folder `version`; `parameters` override those of `config`."""
    mapping = as_mapping(config, parameters)
    return Runtime.open(version, mapping, instance_name="benchmark", derived=derived)


# -- output


def model_folders(graphs: Iterable[Path], names: Sequence[str] | None) -> list[Path]:
    """Return the model folders in some folders; without `names`, all of them."""
    folders = (path.parent for at in graphs for path in sorted(at.glob("*/config.pbtxt")))
    return [folder for folder in folders if not names or folder.name in names]


def print_machine_facts() -> None:
    """Print processor, memory, system and load: the figures depend on them."""
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
    print(f"load     {os.getloadavg()[0]:.1f} before the start (0: idle)")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns, all but the first aligned to the right."""
    lines = [list(map(str, line)) for line in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        print("  ".join([first.ljust(widths[0]), *cells]))
