"""Checks for serving: a repository's models, memory, the device service, NVIDIA."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.cli.config_pbtxt import read_model_config
from ge_runtime.cli.doctor.findings import ANY, Finding, State, Subject
from ge_runtime.cli.doctor.machine import Machine
from ge_runtime.cli.doctor.trials import Outcome, Trial, run_command
from ge_runtime.components import suffixes
from ge_runtime.config import ConfigErrors
from ge_runtime.config.declared import read_instances
from ge_runtime.config.execution_settings import kind_of, read_devices
from ge_runtime.config.parameter_table import read_parameters
from ge_runtime.errors import RuntimeFault
from ge_runtime.memory.plan import in_binary_units

MODELS_GROUP: Final = "Models"
MEMORY_GROUP: Final = "Memory"
SHARED_MEMORY_GROUP: Final = "Shared memory"
SERVICE_GROUP: Final = "Device service"
NVIDIA_GROUP: Final = "NVIDIA"
_CUDA: Final = frozenset({"cuda"})
_SERVICE: Final = frozenset({"service"})
_CUDA_PROVIDER: Final = "CUDAExecutionProvider"
_INSTALL: Final = "pip install 'onnxruntime-gpu[cuda,cudnn]'"

_REGION_BYTES: Final = 2**20
"""Of shared memory that Triton gives each instance of a Python model at first
(`--backend-config=python,shm-default-byte-size`)."""
_EXPERIMENTAL: Final = frozenset({"torch_npu", "ge_session"})
"""What models need whose engine was never run on a device (`EngineEntry.experimental`)."""
_INSPECT_TIMEOUT_S: Final = 300.0
"""Large graphs take a while to open."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the repository whose graph ge_runtime executes."""

    name: str
    needs: frozenset[str]
    """Of `findings.NEEDS`."""
    instances: int
    engines: int
    """Of all instances, one for each device."""
    inspected: Trial
    """`ge-runtime inspect`; its facts are `engine`, `io_bytes` of one engine, and `host_bytes` of
    one instance."""


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
    return [_read_model(folder) for folder in folders if _artifacts(folder)]


def check_models(models: Sequence[Model]) -> list[Finding]:
    """Whether each model's graph can be opened and agrees with its config.pbtxt."""
    return [_check_model(model) for model in models]


def _check_model(model: Model) -> Finding:
    trial, expected = model.inspected, "a graph that opens and agrees with config.pbtxt"
    subject = Subject(MODELS_GROUP, model.name, expected, model.needs)
    if trial.outcome is Outcome.DONE:
        found = f"{trial.facts['engine']}, needs {', '.join(sorted(model.needs))}"
        if not model.needs.isdisjoint(_EXPERIMENTAL):
            found += "; experimental: never run on a device"
        if trial.facts.get("unplanned"):
            found += "; a part of its memory is in no plan"
        return subject.ok(found)
    cure = f"`ge-runtime inspect` its folder: {model.name}"
    return subject.wrong(trial.error.removeprefix("ge-runtime: ").removeprefix("- "), cure)


def _artifacts(folder: Path) -> set[str]:
    """The suffixes of the graphs in its version folders."""
    files = (file for file in folder.glob("*/*") if file.parent.name.isdecimal())
    return {file.suffix for file in files} & {*suffixes().values()}


def _read_model(folder: Path) -> Model:
    config = read_model_config(folder)
    faults = ConfigErrors(folder.name)  # what is faulty is told by `inspect`
    parameters = read_parameters(config, faults)
    devices = read_devices(parameters)
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
    if settings.get("engine") == "torch" or artifacts == {".pt2"}:
        needs.add("torch_npu" if "npu" in needs else "torch")
        needs.discard("cpu")
    if settings.get("engine") == "ge_session" or artifacts == {".air"}:
        needs.add("ge_session")
    if settings.get("placement") == "service":
        needs.add("service")
    return needs


def _inspect(folder: Path) -> Trial:
    command = [sys.executable, "-m", "ge_runtime.cli", "inspect", str(folder), "--format", "json"]
    trial, printed = run_command(command, _INSPECT_TIMEOUT_S)
    lines = printed.splitlines()
    if trial.outcome is Outcome.DIED or "{" not in lines:
        return trial
    # Libraries may print, too: ASCEND_SLOG_PRINT_TO_STDOUT=1 has CANN's logs before and after.
    shown = json.loads("\n".join(lines[lines.index("{") : _last_index(lines, "}") + 1]))
    if shown["faults"]:
        return Trial(Outcome.FAILED, error="; ".join(shown["faults"]))
    memory = shown["memory"]
    io_bytes = memory["inputs_bytes"] + memory["answer_slots"] * memory["answers_bytes"]
    return Trial(
        Outcome.DONE,
        {
            "engine": ", ".join(sorted({each["engine"] for each in shown["engines"]})),
            "io_bytes": str(io_bytes),
            "host_bytes": str(shown["machine"]["host_bytes"]),
            "unplanned": "yes" if shown["unplanned"] else "",
        },
    )


def _last_index(lines: Sequence[str], line: str) -> int:
    return len(lines) - 1 - lines[::-1].index(line)


def check_nvidia(machine: Machine) -> list[Finding]:
    """The driver, its GPUs, and the engines that can use them."""
    return [_nvidia_driver(machine), _gpus(machine), _engine(machine)]


def _needed_bytes(models: Sequence[Model]) -> int:
    """Of shared memory, by all instances of the models: their regions, inputs and answers."""
    return sum(
        model.instances * _REGION_BYTES
        + model.engines * int(model.inspected.facts.get("io_bytes", 0))
        for model in models
    )


def check_shared_memory(machine: Machine, models: Sequence[Model]) -> Finding:
    """Whether tensors have room on their way between the server and its models' processes."""
    needed, memory = _needed_bytes(models), machine.shared_memory
    engines = sum(model.engines for model in models)
    size = f"{_gibibytes(needed)}g"
    cure = (
        f"`docker run --shm-size={size}`; on a host, as root, `mount -o remount,size={size} "
        "/dev/shm`"
    )
    expected = f"{_bytes(needed)} for inputs and answers of {engines} engine(s)"
    subject = Subject(SHARED_MEMORY_GROUP, "/dev/shm", expected, ANY)
    if memory is None:
        return subject.missing("none", cure)
    found = f"{_bytes(memory.free_bytes)} free of {_bytes(memory.total_bytes)}"
    if models:
        found += f", {_bytes(needed)} needed"
    if memory.free_bytes < needed or not memory.free_bytes:
        return subject.wrong(found, cure)
    return subject.ok(found)


def check_memory(machine: Machine, models: Sequence[Model]) -> list[Finding]:
    """Whether RAM, and each control group, has room for the plans of all instances together."""
    needed = sum(
        model.instances * int(model.inspected.facts.get("host_bytes", 0)) for model in models
    )
    expected = (
        f"{_bytes(needed)} for what {sum(model.instances for model in models)} instance(s) plan"
    )
    cure = "lower limits, max_batch_size or the number of instances, or give it more memory"
    findings = []
    for limit in machine.memory:
        subject = Subject(MEMORY_GROUP, limit.name, expected, ANY)
        found = f"{_bytes(limit.free_bytes)} free of {_bytes(limit.total_bytes)}"
        if models:
            found += f", {_bytes(needed)} needed"
        enough = limit.free_bytes >= needed
        findings.append(subject.ok(found) if enough else subject.wrong(found, cure))
    return findings


def check_service(machine: Machine) -> Finding:
    """Whether a process that owns a device can be found."""
    folder = machine.service_folder
    expected = f"{folder}, this user's alone, or room to make it"
    subject = Subject(SERVICE_GROUP, "runtime folder", expected, _SERVICE)
    if not machine.service_fault:
        return subject.ok(folder)
    cure = "`export XDG_RUNTIME_DIR=$(mktemp -d)` before the server starts: a folder of this user's"
    return subject.wrong(machine.service_fault, cure)


def _nvidia_driver(machine: Machine) -> Finding:
    subject = Subject(NVIDIA_GROUP, "driver", "/proc/driver/nvidia/version", _CUDA)
    if machine.nvidia_driver is None:
        return subject.missing(
            "none", "install NVIDIA's driver on the host; `docker run --gpus all`"
        )
    if not machine.nvidia_driver:
        found, cure = "of no known version", "`nvidia-smi` names it"
        return subject.unknown(found, cure)
    return subject.ok(machine.nvidia_driver)


def _gpus(machine: Machine) -> Finding:
    trial, expected = machine.nvidia_smi, "at least one in `nvidia-smi`"
    subject = Subject(NVIDIA_GROUP, "GPUs", expected, _CUDA)
    if trial.outcome is Outcome.DONE and trial.facts:
        return subject.ok("; ".join(f"{number}: {gpu}" for number, gpu in trial.facts.items()))
    if trial.outcome in (Outcome.DONE, Outcome.ABSENT):
        found = "none" if trial.outcome is Outcome.DONE else "no nvidia-smi"
        return subject.missing(found, "`docker run --gpus all` with NVIDIA's container toolkit")
    return subject.wrong(
        trial.error, "the driver is not well: load its module again, or restart the host"
    )


def _engine(machine: Machine) -> Finding:
    """Either of two will do: ONNX Runtime's CUDA provider, or a torch built for CUDA."""
    onnxruntime, torch = machine.imports["onnxruntime"].facts, machine.imports["torch"].facts
    both = [each for each in ("onnxruntime", "onnxruntime-gpu") if each in machine.packages]
    expected = f"ONNX Runtime's {_CUDA_PROVIDER}, or torch for CUDA"
    subject = Subject(NVIDIA_GROUP, "engine", expected, _CUDA)
    if len(both) > 1:
        found = " beside ".join(f"{each} {machine.packages[each]}" for each in both)
        cure = f"`pip uninstall -y {' '.join(both)}; {_INSTALL}`: both are one package to Python"
        return Finding(NVIDIA_GROUP, "engine", State.WRONG, found, "one of the two", cure, _CUDA)
    offered = _CUDA_PROVIDER in onnxruntime.get("providers", "").split(", ")
    if offered and "cuda_error" not in onnxruntime:
        return subject.ok(_CUDA_PROVIDER)
    if torch.get("cuda") and torch["cuda_devices"] != "0":
        return subject.ok(f"torch for CUDA {torch['cuda']}")
    if offered:
        cure = f"`{_INSTALL}`, or install CUDA and cuDNN of the releases that it is built for"
        return subject.wrong(onnxruntime["cuda_error"], cure)
    cure = f"`pip uninstall -y onnxruntime; {_INSTALL}`: both are one package to Python"
    return subject.missing("none", cure)


def _bytes(nbytes: int) -> str:
    return in_binary_units(nbytes) or f"{nbytes} bytes"


def _gibibytes(nbytes: int) -> int:
    """Whole GiB with room for what request batches need beyond one; at least one."""
    return 1 + -(-nbytes // 2**30)
