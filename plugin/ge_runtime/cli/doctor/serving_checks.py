"""Check a repository's models, memory, the device service, and NVIDIA's driver and engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.cli.child_process import ChildResult, Outcome, run_command
from ge_runtime.cli.config_pbtxt import read_model_config
from ge_runtime.cli.doctor.findings import ALWAYS, Check, Finding
from ge_runtime.cli.doctor.machine import Machine
from ge_runtime.components import suffixes
from ge_runtime.config import ConfigErrors
from ge_runtime.config.declared import read_instances
from ge_runtime.config.execution_settings import kind_of, read_devices
from ge_runtime.config.parameter_table import read_parameters
from ge_runtime.errors import RuntimeFault
from ge_runtime.memory.plan import in_binary_units

_CUDA_PROVIDER: Final = "CUDAExecutionProvider"
_INSTALL: Final = "pip install 'onnxruntime-gpu[cuda,cudnn]'"
_ONE_PACKAGE: Final = "Python sees both as one package"

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

    Raises:
        RuntimeFault: the folder contains no model.
        ConfigFault, OSError: a config.pbtxt cannot be read.
    """
    folders = sorted(file.parent for file in repository.glob("*/config.pbtxt"))
    if not folders:
        is_model = (repository / "config.pbtxt").is_file()
        hint = f". It is a model; use its repository, {repository.parent}" if is_model else ""
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
    # ASCEND_SLOG_PRINT_TO_STDOUT=1.
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
    check = Check("Models", model.name, expected, model.needs)
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
    size = f"{_gibibytes(needed)}g"
    cure = (
        f"`docker run --shm-size={size}`; on a host, as root, `mount -o remount,size={size} "
        "/dev/shm`"
    )
    expected = f"{_bytes(needed)} for inputs and outputs of {engines} engine(s)"
    check, memory = Check("Shared memory", "/dev/shm", expected, ALWAYS), machine.shared_memory
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
        check = Check("Memory", limit.name, expected, ALWAYS)
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
    check = Check("Device service", "runtime folder", expected, frozenset({"service"}))
    if not machine.service_fault:
        return check.ok(folder)
    cure = "`export XDG_RUNTIME_DIR=$(mktemp -d)` before the server starts"
    return check.wrong(machine.service_fault, cure)


def check_nvidia(machine: Machine) -> list[Finding]:
    """Check the driver, its GPUs, and the engines that can use them."""
    return [_nvidia_driver(machine), _gpus(machine), _engine(machine)]


def _nvidia_check(what: str, expected: str) -> Check:
    return Check("NVIDIA", what, expected, frozenset({"cuda"}))


def _nvidia_driver(machine: Machine) -> Finding:
    check = _nvidia_check("driver", "/proc/driver/nvidia/version")
    if machine.nvidia_driver is None:
        cure = "install NVIDIA's driver on the host; `docker run --gpus all`"
        return check.missing("none", cure)
    if not machine.nvidia_driver:
        return check.unknown("version unknown", "`nvidia-smi` shows the version")
    return check.ok(machine.nvidia_driver)


def _gpus(machine: Machine) -> Finding:
    result = machine.nvidia_smi
    check = _nvidia_check("GPUs", "at least one in `nvidia-smi`")
    if result.outcome is Outcome.DONE and result.facts:
        return check.ok("; ".join(f"{number}: {gpu}" for number, gpu in result.facts.items()))
    if result.outcome in (Outcome.DONE, Outcome.ABSENT):
        found = "none" if result.outcome is Outcome.DONE else "no nvidia-smi"
        return check.missing(found, "`docker run --gpus all` with NVIDIA's container toolkit")
    return check.wrong(result.error, "the driver is faulty: reload its module or restart the host")


def _engine(machine: Machine) -> Finding:
    """Check for ONNX Runtime's CUDA provider or a torch built for CUDA; either is enough."""
    onnxruntime, torch = machine.imports["onnxruntime"].facts, machine.imports["torch"].facts
    both = [each for each in ("onnxruntime", "onnxruntime-gpu") if each in machine.packages]
    check = _nvidia_check("engine", f"ONNX Runtime's {_CUDA_PROVIDER}, or torch for CUDA")
    if len(both) > 1:
        found = " and ".join(f"{each} {machine.packages[each]}" for each in both)
        cure = f"`pip uninstall -y {' '.join(both)}; {_INSTALL}`: {_ONE_PACKAGE}"
        return _nvidia_check("engine", "one of the two packages").wrong(found, cure)
    offered = _CUDA_PROVIDER in onnxruntime.get("providers", "").split(", ")
    if offered and "cuda_error" not in onnxruntime:
        return check.ok(_CUDA_PROVIDER)
    if torch.get("cuda") and torch["cuda_devices"] != "0":
        return check.ok(f"torch for CUDA {torch['cuda']}")
    if offered:
        cure = f"`{_INSTALL}`, or install CUDA and cuDNN of the releases that it is built for"
        return check.wrong(onnxruntime["cuda_error"], cure)
    return check.missing("none", f"`pip uninstall -y onnxruntime; {_INSTALL}`: {_ONE_PACKAGE}")


def _bytes(nbytes: int) -> str:
    return in_binary_units(nbytes) or f"{nbytes} bytes"


def _gibibytes(nbytes: int) -> int:
    """Return whole GiB, with up to one GiB of reserve for several request batches."""
    return 1 + -(-nbytes // 2**30)
