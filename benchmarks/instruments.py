"""Runtimes and output shared by the benchmarks."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from ge_runtime.runtime import Runtime
from reference_server.config import json_form

ROOT = Path(__file__).resolve().parent.parent


def read_config(folder: Path) -> ModelConfig:
    """Read the config.pbtxt in a model's folder."""
    config = text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())
    config.name = config.name or folder.name
    return config


def as_mapping(config: ModelConfig, parameters: Mapping[str, str]) -> dict:
    """Return the configuration as Triton passes it to a model, with these parameters added."""
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
