"""Check Python and the engines' packages: for the CPU, for NVIDIA's GPUs, and torch_npu."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ge_runtime.child_process import ChildResult, Outcome
from ge_runtime.cli.doctor.findings import ALWAYS, Finding
from ge_runtime.cli.doctor.machine import Machine

_torch_npu_check: Final = partial(Finding, "torch_npu", needed_by=frozenset({"torch_npu"}))
_nvidia_check: Final = partial(Finding, "NVIDIA", needed_by=frozenset({"cuda"}))

_CUDA_PROVIDER: Final = "CUDAExecutionProvider"
_INSTALL: Final = "pip install 'onnxruntime-gpu[cuda,cudnn]'"
_ONE_PACKAGE: Final = "Python sees both as one package"
_OR_BUILD: Final = "or build a model.om, which does not need it: `ge-runtime build`"

CANN_OF_TORCH_NPU: Final = {
    "2.12.0": "9.1.0",
    "2.11.0": "9.1.0",
    "2.10.0.post4": "9.1.0",
    "2.9.0.post6": "9.1.0",
    "2.7.1.post8": "9.1.0",
    "2.10.0": "9.0.0",
    "2.9.0.post2": "9.0.0",
    "2.8.0.post4": "9.0.0",
    "2.7.1.post4": "9.0.0",
    "2.9.0": "8.5.0",
    "2.8.0.post2": "8.5.0",
    "2.7.1.post2": "8.5.0",
    "2.8.0": "8.3.RC1",
    "2.7.1": "8.3.RC1",
}
"""The CANN that each version of torch_npu is built for, newest first.

Source: "Ascend Auxiliary Software" in the README of github.com/Ascend/pytorch, January to August
2026.
"""


_CANN_WITHOUT_LIBGRAPH: Final = (9, 2)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (8, 3) for 8.3.RC1, (2, 9, 0) for 2.9.0.post6."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _release(version: str) -> str:
    return ".".join(map(str, version_numbers(version)))


@dataclass(frozen=True, slots=True)
class VersionRange:
    """A range of versions. Both ends are inclusive prefixes: a `most` of (8, 5) includes 8.5.1."""

    least: tuple[int, ...]
    most: tuple[int, ...] | None = None

    def __contains__(self, version: tuple[int, ...]) -> bool:
        low = version[: len(self.least)] >= self.least
        return low and (self.most is None or version[: len(self.most)] <= self.most)

    def __str__(self) -> str:
        least = ".".join(map(str, self.least))
        if self.most is None:
            return f"at least {least}"
        most = ".".join(map(str, self.most))
        return f"{least}.x" if most == least else f"{least} to {most}.x"


_PYTHON_RANGE: Final = VersionRange((3, 10))
_NUMPY_RANGE: Final = VersionRange((1, 26), (2,))
_ONNXRUNTIME_RANGE: Final = VersionRange((1, 18))


def failure(result: ChildResult) -> str:
    """Return how an import failed, as text for a finding."""
    return f"{result.outcome.value}: {result.error}"


def check_python(machine: Machine) -> list[Finding]:
    """Check Python and NumPy."""
    version = ".".join(map(str, machine.python))
    check = Finding("Python", "Python", str(_PYTHON_RANGE), ALWAYS)
    if machine.python in _PYTHON_RANGE:
        python = check.ok(version)
    else:
        python = check.wrong(version, "run ge_runtime with a newer Python")
    check, pip = replace(check, what="numpy", expected=str(_NUMPY_RANGE)), "numpy>=1.26,<3"
    return [python, _package(machine, check, _NUMPY_RANGE, f"pip install '{pip}'")]


def check_engines(machine: Machine) -> list[Finding]:
    """Check ONNX Runtime and torch on the CPU."""
    check = Finding("Engines", "onnxruntime", str(_ONNXRUNTIME_RANGE), frozenset({"cpu"}))
    pip = "pip install 'onnxruntime>=1.18'"
    return [_package(machine, check, _ONNXRUNTIME_RANGE, pip), _torch(machine)]


def check_server(machine: Machine) -> list[Finding]:
    """Report which version of tritonserver an installed reference server reproduces."""
    result = machine.imports["reference_server"]
    if result.outcome is Outcome.ABSENT:
        return []
    check = Finding("Reference server", "reference_server", "`import reference_server` to succeed")
    if result.outcome is not Outcome.DONE:
        cure = "`pip install triton-reference-server --force-reinstall`"
        return [check.wrong(failure(result), cure)]
    return [check.ok(f"as {result.facts['default']}; --triton-version={result.facts['proven']}")]


def check_ge_py(machine: Machine) -> list[Finding]:
    """Check GE-PY, which the engine ge_session needs."""
    result, version = machine.imports["ge"], machine.packages.get("ge-py", "of unknown version")
    expected = "GE-PY of CANN's toolkit, for model.air"
    check = Finding("GE-PY", "ge", expected, frozenset({"ge_session"}))
    if result.outcome is Outcome.ABSENT:
        cure = f"source set_env.sh of a CANN toolkit that contains it, {_OR_BUILD}"
        return [check.missing("none", cure)]
    if result.outcome is not Outcome.DONE:
        cure = f"source set_env.sh of CANN, whose libraries it loads, {_OR_BUILD}"
        return [check.wrong(failure(result), cure)]
    if result.facts["lacking"]:
        found = f"{version}, without {result.facts['lacking']}"
        return [check.wrong(found, f"install another release of CANN's toolkit, {_OR_BUILD}")]
    return [check.ok(f"{version}, {result.facts['file']}")]


def check_torch_npu(machine: Machine) -> list[Finding]:
    """Check whether torch_npu can be imported, and fits torch and CANN."""
    version = machine.packages.get("torch-npu")
    torch = machine.packages.get("torch")
    if version is None:
        cure = f"`pip install torch_npu=={_release(torch)}`" if torch else "`pip install torch_npu`"
        check = _torch_npu_check("torch_npu", "torch_npu, for torch on Ascend")
        return [check.missing("none", cure)]
    findings = [_import_of_torch_npu(machine.imports["torch_npu"], version)]
    if torch is not None:
        findings += [_fits_torch(version, torch), _no_gpu(machine, torch)]
    if machine.cann is not None and machine.cann.version is not None:
        findings.append(_fits_cann(version, machine.cann.version))
    return findings


def check_nvidia(machine: Machine) -> list[Finding]:
    """Check the driver, its GPUs, and the engines that can use them."""
    return [_nvidia_driver(machine), _gpus(machine), _engine(machine)]


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


def _package(machine: Machine, check: Finding, versions: VersionRange, pip: str) -> Finding:
    """Check that a package can be imported and has one of the versions."""
    package = check.what
    result = machine.imports[package]
    # onnxruntime is published in several distributions, e.g. onnxruntime-gpu.
    version = machine.packages.get(package) or machine.packages.get(f"{package}-gpu")
    if result.outcome is Outcome.ABSENT:
        return check.missing("none", f"`{pip}`")
    if result.outcome is not Outcome.DONE:
        return check.wrong(failure(result), f"`{pip} --force-reinstall`")
    if version is None:
        return check.unknown("importable, version unknown", f"`{pip}` if models fail")
    if version_numbers(version) in versions:
        return check.ok(version)
    return check.wrong(version, f"`{pip}`")


def _torch(machine: Machine) -> Finding:
    result = machine.imports["torch"]
    check = Finding("Engines", "torch", "torch, for model.pt2", frozenset({"torch"}))
    pip = "pip install 'ge-runtime[torch]'"
    if result.outcome is Outcome.ABSENT:
        return check.missing("none", f"`{pip}`")
    if result.outcome is Outcome.DONE:
        return check.ok(machine.packages.get("torch", ""))
    autoload = machine.environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    if "torch-npu" in machine.packages and autoload != "0":
        cure = (
            "torch imports torch_npu automatically: fix torch_npu, or `export "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0` on a machine without CANN"
        )
        return check.wrong(failure(result), cure)
    return check.wrong(failure(result), f"`{pip} --force-reinstall`")


def _import_of_torch_npu(result: ChildResult, version: str) -> Finding:
    check = _torch_npu_check("torch_npu", "`import torch_npu` to succeed")
    if result.outcome is Outcome.DONE:
        return check.ok(version)
    cure = "source CANN's set_env.sh, because torch_npu loads CANN's libraries"
    return check.wrong(f"{version} {failure(result)}", cure)


def _fits_torch(version: str, torch: str) -> Finding:
    check = _torch_npu_check("fits torch", "the same release of both")
    found = f"torch_npu {version}, torch {torch}"
    if version_numbers(version)[:3] == version_numbers(torch)[:3]:
        return check.ok(found)
    return check.wrong(found, f"`pip install torch=={_release(version)}`")


def _no_gpu(machine: Machine, torch: str) -> Finding:
    facts = machine.imports["torch"].facts
    expected = "no GPU visible to torch: a process uses one type of accelerator"
    check = _torch_npu_check("only accelerator", expected)
    if not facts.get("cuda") or facts.get("cuda_devices") == "0":
        return check.ok("torch sees no GPU")
    found = f"torch {torch} sees {facts['cuda_devices']} GPU(s)"
    return check.wrong(found, "install the CPU build of torch, or `export CUDA_VISIBLE_DEVICES=`")


def _fits_cann(version: str, cann: str) -> Finding:
    found = f"torch_npu {version}, CANN {cann}"
    if version_numbers(cann)[:2] == _CANN_WITHOUT_LIBGRAPH:
        check = _torch_npu_check("fits CANN", f"torch_npu 2.9 or later for CANN {cann}")
        if version_numbers(version) < (2, 9):
            cure = "`pip install 'torch_npu>=2.9'`: older torch_npu needs libgraph.so of older CANN"
            return check.wrong(found, cure)
        cure = "the table of github.com/Ascend/pytorch does not name this CANN yet"
        return check.unknown(found, cure)
    built_for = CANN_OF_TORCH_NPU.get(version)
    if built_for is None:
        expected = "a torch_npu in the table of github.com/Ascend/pytorch"
        cure = "look up this version in that table; doctor's copy does not contain it"
        return _torch_npu_check("fits CANN", expected).unknown(found, cure)
    check = _torch_npu_check("fits CANN", f"CANN {built_for} for torch_npu {version}")
    if built_for.lower() == cann.lower():
        return check.ok(found)
    if version_numbers(built_for)[:2] == version_numbers(cann)[:2]:  # e.g. 8.5.0 and 8.5.1
        cure = f"install CANN {built_for} if models fail: the table names only this patch release"
        return check.unknown(found, cure)
    fitting = [each for each, its in CANN_OF_TORCH_NPU.items() if its.lower() == cann.lower()]
    if not fitting:
        return check.wrong(found, f"install CANN {built_for}")
    # Prefer a torch_npu that fits the installed torch.
    best = min(fitting, key=lambda each: version_numbers(each) != version_numbers(version))
    other = "" if _release(best) == _release(version) else f" torch=={_release(best)}"
    return check.wrong(found, f"`pip install torch_npu=={best}{other}`")
