"""Checks of shared memory and of NVIDIA's driver and libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ge_runtime.cli.doctor.findings import ANY, Finding, State
from ge_runtime.cli.doctor.machine import Machine, Model, Outcome
from ge_runtime.memory.table import in_units

SHARED_MEMORY: Final = "Shared memory"
SERVICE: Final = "Device service"
NVIDIA: Final = "NVIDIA"
_CUDA: Final = frozenset({"cuda"})
_SERVICE: Final = frozenset({"service"})
_CUDA_PROVIDER: Final = "CUDAExecutionProvider"
_INSTALL: Final = "pip install 'onnxruntime-gpu[cuda,cudnn]'"

_REGION_BYTES: Final = 2**20
"""Of shared memory that Triton gives each instance of a Python model at first
(`--backend-config=python,shm-default-byte-size`)."""


def check_shared_memory(machine: Machine, models: Sequence[Model]) -> list[Finding]:
    """Whether tensors have room on their way between the server and its models' processes."""
    return [_shm(machine, models)]


def check_service(machine: Machine) -> list[Finding]:
    """Whether a process that owns a device can be found."""
    return [_service(machine)]


def check_nvidia(machine: Machine) -> list[Finding]:
    """The driver, its GPUs, and the engines that can use them."""
    return [_driver(machine), _gpus(machine), _engine(machine)]


def _needed_bytes(models: Sequence[Model]) -> int:
    """Of shared memory, by all instances of the models: their regions, inputs and answers."""
    return sum(
        model.instances * _REGION_BYTES
        + model.engines * int(model.inspected.facts.get("io_bytes", 0))
        for model in models
    )


def _shm(machine: Machine, models: Sequence[Model]) -> Finding:
    needed, memory = _needed_bytes(models), machine.shared_memory
    engines = sum(model.engines for model in models)
    expected = f"{_bytes(needed)} for inputs and answers of {engines} engine(s)"
    size = f"{_gibibytes(needed)}g"
    cure = (
        f"`docker run --shm-size={size}`; on a host, as root, `mount -o remount,size={size} "
        "/dev/shm`"
    )
    if memory is None:
        return Finding(SHARED_MEMORY, "/dev/shm", State.MISSING, "none", expected, cure, ANY)
    found = f"{_bytes(memory.free_bytes)} free of {_bytes(memory.total_bytes)}"
    if models:
        found += f", {_bytes(needed)} needed"
    if memory.free_bytes < needed or not memory.free_bytes:
        return Finding(SHARED_MEMORY, "/dev/shm", State.WRONG, found, expected, cure, ANY)
    return Finding(SHARED_MEMORY, "/dev/shm", State.OK, found, expected, needs=ANY)


def _service(machine: Machine) -> Finding:
    folder, what = machine.service_folder, "runtime folder"
    expected = f"{folder}, this user's alone, or room to make it"
    if not machine.service_fault:
        return Finding(SERVICE, what, State.OK, folder, expected, needs=_SERVICE)
    cure = "`export XDG_RUNTIME_DIR=$(mktemp -d)` before the server starts: a folder of this user's"
    return Finding(SERVICE, what, State.WRONG, machine.service_fault, expected, cure, _SERVICE)


def _driver(machine: Machine) -> Finding:
    expected = "/proc/driver/nvidia/version"
    if machine.nvidia_driver is None:
        cure = "install NVIDIA's driver on the host; `docker run --gpus all`"
        return Finding(NVIDIA, "driver", State.MISSING, "none", expected, cure, _CUDA)
    if not machine.nvidia_driver:
        found, cure = "of no known version", "`nvidia-smi` names it"
        return Finding(NVIDIA, "driver", State.UNKNOWN, found, expected, cure, _CUDA)
    return Finding(NVIDIA, "driver", State.OK, machine.nvidia_driver, expected, needs=_CUDA)


def _gpus(machine: Machine) -> Finding:
    trial, expected = machine.nvidia_smi, "at least one in `nvidia-smi`"
    if trial.outcome is Outcome.DONE and trial.facts:
        found = "; ".join(f"{number}: {gpu}" for number, gpu in trial.facts.items())
        return Finding(NVIDIA, "GPUs", State.OK, found, expected, needs=_CUDA)
    if trial.outcome in (Outcome.DONE, Outcome.ABSENT):
        found = "none" if trial.outcome is Outcome.DONE else "no nvidia-smi"
        cure = "`docker run --gpus all` with NVIDIA's container toolkit"
        return Finding(NVIDIA, "GPUs", State.MISSING, found, expected, cure, _CUDA)
    cure = "the driver is not well: load its module again, or restart the host"
    return Finding(NVIDIA, "GPUs", State.WRONG, trial.error, expected, cure, _CUDA)


def _engine(machine: Machine) -> Finding:
    """Either of two will do: ONNX Runtime's CUDA provider, or a torch built for CUDA."""
    onnxruntime, torch = machine.imports["onnxruntime"].facts, machine.imports["torch"].facts
    expected = f"ONNX Runtime's {_CUDA_PROVIDER}, or torch for CUDA"
    both = [each for each in ("onnxruntime", "onnxruntime-gpu") if each in machine.packages]
    if len(both) > 1:
        found = " beside ".join(f"{each} {machine.packages[each]}" for each in both)
        cure = f"`pip uninstall -y {' '.join(both)}; {_INSTALL}`: both are one package to Python"
        return Finding(NVIDIA, "engine", State.WRONG, found, "one of the two", cure, _CUDA)
    offered = _CUDA_PROVIDER in onnxruntime.get("providers", "").split(", ")
    if offered and "cuda_error" not in onnxruntime:
        return Finding(NVIDIA, "engine", State.OK, _CUDA_PROVIDER, expected, needs=_CUDA)
    if torch.get("cuda") and torch["cuda_devices"] != "0":
        found = f"torch for CUDA {torch['cuda']}"
        return Finding(NVIDIA, "engine", State.OK, found, expected, needs=_CUDA)
    if offered:
        cure = f"`{_INSTALL}`, or install CUDA and cuDNN of the releases that it is built for"
        return Finding(
            NVIDIA, "engine", State.WRONG, onnxruntime["cuda_error"], expected, cure, _CUDA
        )
    cure = f"`pip uninstall -y onnxruntime; {_INSTALL}`: both are one package to Python"
    return Finding(NVIDIA, "engine", State.MISSING, "none", expected, cure, _CUDA)


def _bytes(nbytes: int) -> str:
    return in_units(nbytes) or f"{nbytes} bytes"


def _gibibytes(nbytes: int) -> int:
    """Whole GiB with room for what request batches need beyond one batch; at least one."""
    return 1 + -(-nbytes // 2**30)
