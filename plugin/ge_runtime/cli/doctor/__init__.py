"""`ge-runtime doctor`: checks a machine and says how to fix what is missing or wrong."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.child_process import ChildResult, Outcome, run_command
from ge_runtime.cli.command import EXIT_NO, Command
from ge_runtime.cli.config_pbtxt import read_model_config
from ge_runtime.cli.doctor.ascend_checks import (
    check_cann,
    check_compiler,
    check_driver,
    check_simulator,
    is_simulated,
)
from ge_runtime.cli.doctor.findings import (
    ALWAYS,
    NEEDS,
    REQUIRABLE,
    Finding,
    as_json,
    faults_of,
    mark_not_needed,
    report_lines,
)
from ge_runtime.cli.doctor.machine import Machine, read_machine
from ge_runtime.cli.doctor.package_checks import (
    check_engines,
    check_ge_py,
    check_nvidia,
    check_python,
    check_server,
    check_torch_npu,
)
from ge_runtime.components import suffixes
from ge_runtime.config import ConfigErrors
from ge_runtime.config.execution_settings import kind_of, read_devices
from ge_runtime.config.model_tensors import read_instances
from ge_runtime.config.parameter_table import read_parameters
from ge_runtime.errors import RuntimeFault
from ge_runtime.memory.plan import in_binary_units

_DESCRIPTION: Final = """\
Check this machine, and print what is missing or wrong and how to fix it.

The command checks Python and the engines' packages, memory and shared memory, Ascend's driver,
device files, CANN, pyACL and torch_npu, GE-PY if a model uses it, and NVIDIA's driver and
libraries. Packages are imported and graphs are opened in child processes, so a crash or a hang
becomes a finding. The command takes no device memory and changes nothing.

With MODEL_REPOSITORY, every model with a graph is inspected too. The models determine what is
required, how much memory is planned, and how much shared memory their inputs and outputs need.

State   ok          as expected
        missing     absent, and required
        wrong       present, but not as expected
        unknown     could not be determined
        not needed  absent, and not required
"""

_EPILOG: Final = """\
examples:
  ge-runtime doctor model_repository
  ge-runtime doctor --require npu || exit 1
  ge-runtime doctor --json | jq '.findings[] | select(.state == "wrong") | .cure'

Exit codes: 0 nothing required is missing or wrong, 1 a required item is, 2 invalid arguments or
input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("repository", type=Path, nargs="?", metavar="MODEL_REPOSITORY", help="folder of models")
    add(
        "--require",
        action="append",
        default=[],
        choices=REQUIRABLE,
        help="what the machine must support; may be repeated (default: what the models need, "
        "otherwise cpu)",
    )
    add("--json", action="store_true", help="print JSON")


def _run(given: argparse.Namespace) -> int:
    models = [] if given.repository is None else read_models(given.repository)
    required = required_by(given.require, models)
    findings = examine(read_machine(), models, required)
    faults = faults_of(findings, required)
    if given.json:
        print(json.dumps(as_json(findings, required, faults), indent=2))
    else:
        print("\n".join(report_lines(findings, required, faults)))
    return EXIT_NO if faults else 0


COMMAND: Final = Command(
    name="doctor",
    help="check what a machine lacks for serving, and how to fix it",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def required_by(requested: Sequence[str], models: Sequence[Model]) -> frozenset[str]:
    """Return the values of --require and the needs of the models; cpu if both are empty."""
    needs = frozenset(requested).union(*(model.needs for model in models))
    return needs & {*NEEDS} or frozenset({"cpu"})


def examine(machine: Machine, models: Sequence[Model], required: frozenset[str]) -> list[Finding]:
    """Return all findings about a machine that is to serve these models."""
    simulated = is_simulated(machine)
    findings = [
        *check_python(machine),
        *check_engines(machine),
        *check_server(machine),
        *check_models(models),
        *check_memory(machine, models),
        check_shared_memory(machine, models),
        check_service(machine),
        *([] if simulated else check_driver(machine)),
        *(check_simulator(machine) if simulated else check_cann(machine)),
        *check_compiler(machine),
        *check_torch_npu(machine),
        *(check_ge_py(machine) if "ge_session" in required else []),
        *check_nvidia(machine),
    ]
    return mark_not_needed(findings, required)


_REGION_BYTES: Final = 2**20
"""Shared memory that Triton initially gives each instance of a Python model
(`--backend-config=python,shm-default-byte-size`)."""
_EXPERIMENTAL: Final = frozenset({"torch_npu", "ge_session"})
"""Needs of engines that never ran on a device (`EngineEntry.experimental`)."""
_INSPECT_TIMEOUT_S: Final = 300.0
"""Opening a large graph takes a while."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the repository whose graph ge_runtime executes."""

    name: str
    needs: frozenset[str]
    """Members of `findings.NEEDS`."""
    instances: int
    engines: int
    """Engines of all instances; each instance has one for each device."""
    inspected: ChildResult
    """The result of `ge-runtime inspect`. Its facts are `engine`, `io_bytes` for each engine, and
    `host_bytes` for each instance."""


def read_models(repository: Path) -> list[Model]:
    """Return the models that have a graph, each inspected in a child process.

    Raises RuntimeFault if the folder contains no model, or a config.pbtxt cannot be read.
    """
    folders = sorted(file.parent for file in repository.glob("*/config.pbtxt"))
    if not folders:
        is_model = (repository / "config.pbtxt").is_file()
        hint = (
            f". This folder is a model; its repository is {repository.parent}" if is_model else ""
        )
        raise RuntimeFault(
            f"{repository}: found no model, expected folders with a config.pbtxt{hint}"
        )
    return [_read_model(folder) for folder in folders if _artifacts(folder)]


def _artifacts(folder: Path) -> set[str]:
    """Return the suffixes of the graphs in the version folders."""
    files = (file for file in folder.glob("*/*") if file.parent.name.isdecimal())
    return {file.suffix for file in files} & {*suffixes().values()}


def _read_model(folder: Path) -> Model:
    config = read_model_config(folder)
    errors = ConfigErrors(folder.name)  # ignored here, because `inspect` reports them
    parameters = read_parameters(config, errors)
    devices = read_devices(parameters)
    instances = read_instances(config, errors)
    return Model(
        name=folder.name,
        needs=frozenset(_needs(parameters.settings, devices, _artifacts(folder))),
        instances=instances,
        engines=instances * len(devices),
        inspected=_inspect(folder),
    )


def _needs(settings: Mapping[str, str], devices: Sequence[str], artifacts: set[str]) -> set[str]:
    needs = set(map(kind_of, devices))
    if settings.get("engine") == "torch" or artifacts == {".pt2"}:
        needs.add("torch_npu" if "npu" in needs else "torch")
        needs.discard("cpu")
    if settings.get("engine") == "ge_session" or artifacts == {".air"}:
        needs.add("ge_session")
    if settings.get("placement") == "service":
        needs.add("service")
    return needs


def _inspect(folder: Path) -> ChildResult:
    command = [sys.executable, "-m", "ge_runtime.cli", "inspect", str(folder), "--format", "json"]
    result = run_command(command, _INSPECT_TIMEOUT_S)
    lines = result.stdout.splitlines()
    if result.outcome is Outcome.CRASHED or "{" not in lines:
        return result
    # Libraries may print before and after the JSON, as CANN does with
    # ASCEND_LOG_PRINT_TO_STDOUT=1 (ASCEND_SLOG_PRINT_TO_STDOUT before CANN 9.2).
    end = len(lines) - lines[::-1].index("}")
    report = json.loads("\n".join(lines[lines.index("{") : end]))
    if report["faults"]:
        return ChildResult(Outcome.FAILED, error="; ".join(report["faults"]))
    memory = report["memory"]
    io_bytes = memory["inputs_bytes"] + memory["answer_slots"] * memory["answers_bytes"]
    return ChildResult(
        Outcome.DONE,
        {
            "engine": ", ".join(sorted({each["engine"] for each in report["engines"]})),
            "io_bytes": str(io_bytes),
            "host_bytes": str(report["machine"]["host_bytes"]),
            "unplanned": "yes" if report["unplanned"] else "",
        },
    )


def check_models(models: Sequence[Model]) -> list[Finding]:
    """Check whether each model's graph can be opened and agrees with its config.pbtxt."""
    return [_check_model(model) for model in models]


def _check_model(model: Model) -> Finding:
    result, expected = model.inspected, "a graph that opens and agrees with config.pbtxt"
    check = Finding("Models", model.name, expected, model.needs)
    if result.outcome is not Outcome.DONE:
        error = result.error.removeprefix("ge-runtime: ").removeprefix("- ")
        return check.wrong(error, f"run `ge-runtime inspect` for its folder, {model.name}")
    found = f"{result.facts['engine']}, needs {', '.join(sorted(model.needs))}"
    if not model.needs.isdisjoint(_EXPERIMENTAL):
        found += "; experimental: never run on a device"
    if result.facts.get("unplanned"):
        found += "; part of its memory is not planned"
    return check.ok(found)


def check_shared_memory(machine: Machine, models: Sequence[Model]) -> Finding:
    """Check whether /dev/shm has room for the tensors that pass between server and models."""
    needed = sum(
        model.instances * _REGION_BYTES
        + model.engines * int(model.inspected.facts.get("io_bytes", 0))
        for model in models
    )
    engines = sum(model.engines for model in models)
    # Whole GiB, with up to one GiB of reserve for several request batches.
    size = f"{1 + -(-needed // 2**30)}g"
    cure = (
        f"`docker run --shm-size={size}`; on a host, as root, `mount -o remount,size={size} "
        "/dev/shm`"
    )
    expected = f"{_bytes(needed)} for inputs and outputs of {engines} engine(s)"
    check, memory = Finding("Shared memory", "/dev/shm", expected, ALWAYS), machine.shared_memory
    if memory is None:
        return check.missing("none", cure)
    found = f"{_bytes(memory.free_bytes)} free of {_bytes(memory.total_bytes)}"
    if models:
        found += f", {_bytes(needed)} needed"
    if memory.free_bytes < needed or not memory.free_bytes:
        return check.wrong(found, cure)
    return check.ok(found)


def check_memory(machine: Machine, models: Sequence[Model]) -> list[Finding]:
    """Check whether RAM and each control group have room for the plans of all instances."""
    needed = sum(
        model.instances * int(model.inspected.facts.get("host_bytes", 0)) for model in models
    )
    instances = sum(model.instances for model in models)
    expected = f"{_bytes(needed)} for the plans of {instances} instance(s)"
    cure = "reduce limits, max_batch_size or the number of instances, or provide more memory"
    findings = []
    for limit in machine.memory:
        check = Finding("Memory", limit.name, expected, ALWAYS)
        found = f"{_bytes(limit.free_bytes)} free of {_bytes(limit.total_bytes)}"
        if models:
            found += f", {_bytes(needed)} needed"
        enough = limit.free_bytes >= needed
        findings.append(check.ok(found) if enough else check.wrong(found, cure))
    return findings


def check_service(machine: Machine) -> Finding:
    """Check the runtime folder in which model processes find the device service."""
    folder = machine.service_folder
    expected = f"{folder}, owned by this user with mode 0700, or a writable parent folder"
    check = Finding("Device service", "runtime folder", expected, frozenset({"service"}))
    if not machine.service_fault:
        return check.ok(folder)
    cure = "`export XDG_RUNTIME_DIR=$(mktemp -d)` before the server starts"
    return check.wrong(machine.service_fault, cure)


def _bytes(nbytes: int) -> str:
    return in_binary_units(nbytes) or f"{nbytes} bytes"
