"""Serve the project's models, compiled for a simulated card, with several instances each.

Folders, code and graphs come from model_repository/; a few parameters are added, and .om files
replace the .onnx files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.test_same_repository import Request, as_input
from runtime.support.ascend import compile_in_process
from runtime.support.services import Services
from support.servers import COMPLETE, ROOT, Flag, Server, start_reference_server, start_tritonserver
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from ge_runtime import cli

SIMULATOR = ROOT / "simulator" / "ascend_simulator" / "site"
"""The folders of the simulator that replace CANN's at the start of PYTHONPATH and PATH."""

CHIP = "AscendSimulator"
DEVICE = "npu:0"
INSTANCES = 2
GRAPH = "1/model.onnx"
TOKENS = {"gears.batch,tokens": "1x16, 8x16, 1x64, 8x64, 1x512"}
MODELS = {
    "text_encoder": TOKENS,
    "text_classifier": {"gears.batch": "1, 8, 64"},
    "ge_classifier": {"gears.batch,height,width": "1x32x32, 8x32x32, 8x64x64, 1x256x256"},
    "text_pipeline_fused": TOKENS,
}
"""Gears of the models on the card. No execution is timed at load, as `cost` is configured."""
STAGES = {"text_pipeline_fused": ("encoder", "classifier")}
"""The graphs of models with several graphs. The encoder's graph is compiled with text_encoder."""
OTHERS = ("text_pipeline", "tokenizer")
_SETTINGS = {
    "devices": DEVICE,
    "placement": "service",
    "cost": "launch_us=1000, element_ns=1000, element2_ns=0",
}

STARTERS: dict[str, tuple[Any, dict[str, Flag]]] = {
    "tritonserver": (start_tritonserver, {}),
    "reference server": (
        start_reference_server,
        # Release 2.51 does not call `is_ready` of models.
        {"backend_config": "python,host=process", "triton_version": "newest"},
    ),
}
"""Both servers have a process for each instance."""


@dataclass(frozen=True)
class Served:
    """A server, and the device services of its models."""

    name: str
    server: Server
    services: Services

    @property
    def is_real(self) -> bool:
        """True for NVIDIA's server."""
        return self.name == "tritonserver"

    def ask(self, request: Request) -> np.ndarray | InferenceServerException:
        """Return the logits of a response, or the error."""
        with InferenceServerClient(self.server.http, network_timeout=60) as client:
            try:
                return client.infer(request.model, [as_input(request)]).as_numpy("logits")
            except InferenceServerException as refusal:
                return refusal

    def is_ready(self, model: str) -> bool:
        with InferenceServerClient(self.server.http) as client:
            return client.is_model_ready(model)

    def stats(self) -> dict[str, Any]:
        """Return the state of the only service, as `ge-runtime top` reports it."""
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            assert cli.main(["top", "--json"]) == 0
        (stats,) = json.loads(shown.getvalue())
        return stats

    def instances(self) -> dict[str, int]:
        """Return the process of each model that is a client of the service."""
        clients = self.services.stats(DEVICE)["clients"]
        return {client["name"]: client["pid"] for client in clients}


@contextlib.contextmanager
def serving(
    name: str,
    repository: Path,
    runtime_folder: Path,
    simulator: Mapping[str, object] | None = None,
    **flags: Flag,
) -> Iterator[Served]:
    """Run a server of STARTERS with a simulated card, and with its device services in a folder.

    simulator: settings of the card by name.
    """
    start, own = STARTERS[name]
    variables = environment() | {"XDG_RUNTIME_DIR": str(runtime_folder)}
    for setting, value in (simulator or {}).items():
        variables[f"ASCEND_SIMULATOR_{setting.upper()}"] = str(value)
    with pytest.MonkeyPatch.context() as patch:
        for variable, text in variables.items():
            patch.setenv(variable, text)
        with (
            Services(runtime_folder / "ge_runtime") as services,
            start(repository, **{**COMPLETE, "allow_grpc": False, **own, **flags}) as server,
        ):
            yield Served(name, server, services)


def environment() -> dict[str, str]:
    """Return this process's environment with the simulator's paths added."""
    first = {
        # The compiler runs in the tests' interpreter, as other interpreters may lack onnx.
        "PATH": [SIMULATOR / "bin", Path(sys.executable).parent],
        "PYTHONPATH": [SIMULATOR, ROOT / "simulator", ROOT / "plugin"],
    }
    return {
        name: os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get(name)])])
        for name, paths in first.items()
    } | {"ASCEND_SIMULATOR_PYTHON": sys.executable}


def write_ascend_repository(source: Path, folder: Path) -> None:
    """Copy the models of `source`, and compile the .onnx files of those in MODELS."""
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.pt2", "*.onnx")
    for name in (*MODELS, *OTHERS):
        shutil.copytree(source / name, folder / name, ignore=ignored)
    for name, gears in MODELS.items():
        configure(folder / name, gears | _SETTINGS, instances=instances_of(name))
        build(folder / name, *(source / name / "1" / f"{stem}.onnx" for stem in stems_of(name)))


def instances_of(model: str) -> int:
    """Return a model's number of processes: 1 for a pipeline, as other models cover its stages."""
    return 1 if model in STAGES else INSTANCES


def stems_of(model: str) -> tuple[str, ...]:
    """Return the names of a model's graph files, without suffix."""
    return STAGES.get(model, ("model",))


def configure(folder: Path, parameters: Mapping[str, str], *, instances: int = 1) -> None:
    """Add instances and parameters to a model's config.pbtxt."""
    lines = [f"instance_group [ {{ count: {instances} kind: KIND_CPU }} ]"]
    lines += [
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'
        for name, value in parameters.items()
    ]
    with (folder / "config.pbtxt").open("a") as config:
        config.write("\n".join(["", *lines, ""]))


def reconfigure(folder: Path, was: str, now: str) -> None:
    """Replace a part of a model's config.pbtxt."""
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace(was, now))


def build(folder: Path, *graphs: Path, chip: str = CHIP) -> None:
    """Compile the graphs in a model's folder, where only the results stay."""
    copies = [Path(shutil.copy(graph, folder / "1")) for graph in graphs]
    command = ["build", str(folder), "--soc-version", chip, "--precision", "origin"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        for variable, text in environment().items():
            patch.setenv(variable, text)
        compile_in_process(patch)
        assert cli.main(command) == 0
    for copy in copies:
        copy.unlink()
