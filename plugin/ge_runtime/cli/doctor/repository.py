"""The models of a repository: what they ask of the machine, and whether they can have it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ge_runtime.cli.doctor.findings import Finding, State
from ge_runtime.cli.doctor.imports import run
from ge_runtime.cli.doctor.machine import Model, Outcome, Trial
from ge_runtime.cli.model_config import read_model_config
from ge_runtime.config import ConfigErrors
from ge_runtime.config.execution_settings import kind_of, read_devices
from ge_runtime.config.triton_config import Parameters, read_instances
from ge_runtime.engines.artifact import SUFFIXES
from ge_runtime.errors import RuntimeFault

GROUP: Final = "Models"
_INSPECT_TIMEOUT_S: Final = 300.0
"""Large graphs take a while to open."""


def read_models(repository: Path) -> list[Model]:
    """The models in it that have a graph, each inspected in a process of its own.

    Raises RuntimeFault if no folder of it is a model's, and ConfigFault or OSError for a
    config.pbtxt that cannot be read.
    """
    folders = sorted(file.parent for file in repository.glob("*/config.pbtxt"))
    if not folders:
        own = (repository / "config.pbtxt").is_file()
        hint = f"; it is a model: {repository.parent} may be meant" if own else ""
        expected = "expected folders with a config.pbtxt"
        raise RuntimeFault(f"{repository}: found no model, {expected}{hint}")
    return [_model(folder) for folder in folders if _artifacts(folder)]


def check_models(models: Sequence[Model]) -> list[Finding]:
    """Whether each model's graph can be opened and agrees with its config.pbtxt."""
    return [_finding(model) for model in models]


def _finding(model: Model) -> Finding:
    trial, expected = model.inspected, "a graph that opens and agrees with config.pbtxt"
    if trial.outcome is Outcome.DONE:
        found = f"{trial.facts['engine']}, needs {', '.join(sorted(model.needs))}"
        return Finding(GROUP, model.name, State.OK, found, expected, needs=model.needs)
    cure = f"`ge-runtime inspect` its folder: {model.name}"
    found = trial.error.removeprefix("ge-runtime: ").removeprefix("- ")
    return Finding(GROUP, model.name, State.WRONG, found, expected, cure, model.needs)


def _artifacts(folder: Path) -> set[str]:
    """The suffixes of the graphs in its version folders."""
    files = (file for file in folder.glob("*/*") if file.parent.name.isdecimal())
    return {file.suffix for file in files} & {*SUFFIXES.values()}


def _model(folder: Path) -> Model:
    config = read_model_config(folder)
    faults = ConfigErrors(folder.name)  # what is faulty is told by `inspect`
    parameters = Parameters.read(config, faults)
    devices = read_devices(parameters, faults)
    instances = read_instances(config, faults)
    return Model(
        name=folder.name,
        needs=frozenset(_needs(parameters.settings, devices, _artifacts(folder))),
        instances=instances,
        engines=instances * len(devices),
        inspected=_inspect(folder),
    )


def _needs(settings: Mapping[str, str], devices: Sequence[str], artifacts: set[str]) -> set[str]:
    needs = set(map(kind_of, devices))
    if settings.get("engine") == "torch" or artifacts == {SUFFIXES["torch"]}:
        needs.add("torch_npu" if "npu" in needs else "torch")
        needs.discard("cpu")
    if settings.get("engine") == "ge_session" or artifacts == {SUFFIXES["ge_session"]}:
        needs.add("ge_session")
    if settings.get("placement") == "service":
        needs.add("service")
    return needs


def _inspect(folder: Path) -> Trial:
    command = [sys.executable, "-m", "ge_runtime.cli", "inspect", str(folder), "--format", "json"]
    trial, printed = run(command, _INSPECT_TIMEOUT_S)
    lines = printed.splitlines()
    if trial.outcome is Outcome.DIED or "{" not in lines:
        return trial
    # Libraries may print, too: ASCEND_SLOG_PRINT_TO_STDOUT=1 has CANN's logs before and after.
    shown = json.loads("\n".join(lines[lines.index("{") : _last(lines, "}") + 1]))
    if shown["faults"]:
        return Trial(Outcome.FAILED, error="; ".join(shown["faults"]))
    memory = shown["memory"]
    io_bytes = memory["inputs_bytes"] + memory["answer_slots"] * memory["answers_bytes"]
    return Trial(
        Outcome.DONE,
        {
            "engine": ", ".join(sorted({each["engine"] for each in shown["engines"]})),
            "io_bytes": str(io_bytes),
        },
    )


def _last(lines: Sequence[str], line: str) -> int:
    return len(lines) - 1 - lines[::-1].index(line)
