"""Checks of Python, NumPy and the engines' packages, and which torch_npu fits which CANN.

Source of the table: "Ascend Auxiliary Software" in the README of github.com/Ascend/pytorch, from
January to August 2026.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ge_runtime.cli.doctor.findings import ANY, Finding, State, Subject
from ge_runtime.cli.doctor.machine import Machine
from ge_runtime.cli.doctor.trials import Outcome, Trial

PYTHON_GROUP: Final = "Python"
ENGINES_GROUP: Final = "Engines"
SERVER_GROUP: Final = "Reference server"
TORCH_NPU_GROUP: Final = "torch_npu"
_TORCH: Final = frozenset({"torch"})
_TORCH_NPU: Final = frozenset({"torch_npu"})
_GE_SESSION: Final = frozenset({"ge_session"})

_OR_BUILD: Final = "or build a model.om, which needs none of it: `ge-runtime build`"

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
"""Version of torch_npu: the CANN that it is made for. The newest first."""


def version_numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: (8, 3) of 8.3.RC1, (2, 9, 0) of 2.9.0.post6."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions from `least` to `most`, both included with all that begin with them."""

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


_PYTHON: Final = VersionRange((3, 10))
_NUMPY: Final = VersionRange((1, 26), (2,))
_ONNXRUNTIME: Final = VersionRange((1, 18))


def check_python(machine: Machine) -> list[Finding]:
    """Python and NumPy, which everything needs."""
    version = ".".join(map(str, machine.python))
    right = machine.python in _PYTHON
    cure = "" if right else "give ge_runtime a newer Python"
    state = State.OK if right else State.WRONG
    return [
        Finding(PYTHON_GROUP, "Python", state, version, str(_PYTHON), cure, ANY),
        _package(machine, PYTHON_GROUP, "numpy", _NUMPY, ANY, "pip install 'numpy>=1.26,<3'"),
    ]


def check_engines(machine: Machine) -> list[Finding]:
    """ONNX Runtime and torch, on the CPU."""
    return [
        _package(
            machine,
            ENGINES_GROUP,
            "onnxruntime",
            _ONNXRUNTIME,
            frozenset({"cpu"}),
            "pip install 'onnxruntime>=1.18'",
        ),
        _torch(machine),
    ]


def check_torch_npu(machine: Machine) -> list[Finding]:
    """Whether torch_npu works, and fits torch and CANN."""
    version = machine.packages.get("torch-npu")
    torch = machine.packages.get("torch")
    if version is None:
        base = ".".join(map(str, version_numbers(torch or "")))
        cure = f"`pip install torch_npu=={base}`" if base else "`pip install torch_npu`"
        expected = "torch_npu, for torch on Ascend"
        return [
            Finding(TORCH_NPU_GROUP, "torch_npu", State.MISSING, "none", expected, cure, _TORCH_NPU)
        ]
    findings = [_imported(machine.imports["torch_npu"], version)]
    if torch is not None:
        findings += [_fits_torch(version, torch), _cuda_beside(machine, torch)]
    if machine.cann is not None and machine.cann.version is not None:
        findings.append(_fits_cann(version, machine.cann.version))
    return findings


def check_server(machine: Machine) -> list[Finding]:
    """Which tritonserver the reference server stands in for, where it is installed."""
    trial = machine.imports["reference_server"]
    if trial.outcome is Outcome.ABSENT:
        return []
    subject = Subject(SERVER_GROUP, "reference_server", "`import reference_server` to succeed")
    if trial.outcome is not Outcome.DONE:
        return [subject.wrong(_failed(trial), "`pip install reference-server --force-reinstall`")]
    found = f"as {trial.facts['default']}; --triton-version={trial.facts['proven']}"
    return [subject.ok(found)]


def check_ge_py(machine: Machine) -> list[Finding]:
    """GE-PY, for models that ask for engine ge_session."""
    trial, version = machine.imports["ge"], machine.packages.get("ge-py", "of no known version")
    group, what, expected = "GE-PY", "ge", "GE-PY of CANN's toolkit, for model.air"
    subject = Subject(group, what, expected, _GE_SESSION)
    if trial.outcome is Outcome.ABSENT:
        cure = f"source set_env.sh of a CANN toolkit that has it, {_OR_BUILD}"
        return [subject.missing("none", cure)]
    if trial.outcome is not Outcome.DONE:
        cure = f"source CANN's set_env.sh, whose libraries it loads, {_OR_BUILD}"
        return [subject.wrong(_failed(trial), cure)]
    if trial.facts["lacking"]:
        found = f"{version}, without {trial.facts['lacking']}"
        cure = f"install another release of CANN's toolkit, {_OR_BUILD}"
        return [subject.wrong(found, cure)]
    found = f"{version}, {trial.facts['file']}"
    return [subject.ok(found)]


def _package(
    machine: Machine,
    group: str,
    package: str,
    range_: VersionRange,
    needs: frozenset[str],
    pip: str,
) -> Finding:
    """A package that must be of some version and can be imported."""
    trial = machine.imports[package]
    # onnxruntime comes in several distributions, e.g. onnxruntime-gpu.
    version = next(
        (
            machine.packages[each]
            for each in (package, f"{package}-gpu")
            if each in machine.packages
        ),
        None,
    )
    subject = Subject(group, package, str(range_), needs)
    if trial.outcome is Outcome.ABSENT:
        return subject.missing("none", f"`{pip}`")
    if trial.outcome is not Outcome.DONE:
        cure = f"`{pip} --force-reinstall`"
        return Finding(group, package, State.WRONG, _failed(trial), "importable", cure, needs)
    if version is None:
        cure = f"`{pip}` if models fail"
        return subject.unknown("importable, of no known version", cure)
    right = version_numbers(version) in range_
    state, cure = (State.OK, "") if right else (State.WRONG, f"`{pip}`")
    return subject.finding(state, version, cure)


def _torch(machine: Machine) -> Finding:
    trial, version = machine.imports["torch"], machine.packages.get("torch", "")
    subject = Subject(ENGINES_GROUP, "torch", "torch, for model.pt2", _TORCH)
    if trial.outcome is Outcome.ABSENT:
        return subject.missing("none", "`pip install 'ge-runtime[torch]'`")
    if trial.outcome is Outcome.DONE:
        return subject.ok(version)
    cure = "`pip install 'ge-runtime[torch]' --force-reinstall`"
    autoload = machine.environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    if "torch-npu" in machine.packages and autoload != "0":
        cure = (
            "torch imports torch_npu by itself: make that work, or `export "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0` where there is no CANN"
        )
    return subject.wrong(_failed(trial), cure)


def _imported(trial: Trial, version: str) -> Finding:
    subject = Subject(TORCH_NPU_GROUP, "torch_npu", "`import torch_npu` to succeed", _TORCH_NPU)
    if trial.outcome is Outcome.DONE:
        return subject.ok(version)
    cure = "source CANN's set_env.sh: torch_npu loads its libraries"
    return subject.wrong(f"{version} {_failed(trial)}", cure)


def _fits_torch(version: str, torch: str) -> Finding:
    found, expected = f"torch_npu {version}, torch {torch}", "the same release of both"
    what, base = "fits torch", ".".join(map(str, version_numbers(version)))
    subject = Subject(TORCH_NPU_GROUP, what, expected, _TORCH_NPU)
    if version_numbers(version)[:3] == version_numbers(torch)[:3]:
        return subject.ok(found)
    return subject.wrong(found, f"`pip install torch=={base}`")


def _cuda_beside(machine: Machine, torch: str) -> Finding:
    facts = machine.imports["torch"].facts
    what, expected = "only accelerator", "no GPU that torch sees: one kind for each process"
    subject = Subject(TORCH_NPU_GROUP, what, expected, _TORCH_NPU)
    if not facts.get("cuda") or facts.get("cuda_devices") == "0":
        return subject.ok("torch sees no GPU")
    found = f"torch {torch} sees {facts['cuda_devices']} GPU(s)"
    return subject.wrong(found, "install the CPU build of torch, or `export CUDA_VISIBLE_DEVICES=`")


def _fits_cann(version: str, cann: str) -> Finding:
    found, what = f"torch_npu {version}, CANN {cann}", "fits CANN"
    made_for = CANN_OF_TORCH_NPU.get(version)
    if made_for is None:
        expected = "a torch_npu of the table in github.com/Ascend/pytorch"
        cure = "look this version up in that table; doctor does not know it"
        return Finding(TORCH_NPU_GROUP, what, State.UNKNOWN, found, expected, cure, _TORCH_NPU)
    subject = Subject(TORCH_NPU_GROUP, what, f"CANN {made_for} for torch_npu {version}", _TORCH_NPU)
    if made_for.lower() == cann.lower():
        return subject.ok(found)
    if version_numbers(made_for)[:2] == version_numbers(cann)[:2]:  # e.g. 8.5.0 and 8.5.1
        cure = f"install CANN {made_for} if models fail: the table has no other patch of it"
        return subject.unknown(found, cure)
    others = [each for each, its in CANN_OF_TORCH_NPU.items() if its.lower() == cann.lower()]
    # torch may stay, if it can.
    others.sort(key=lambda each: version_numbers(each) != version_numbers(version))
    cure = f"install CANN {made_for}"
    if others:
        torch = ".".join(map(str, version_numbers(others[0])))
        other = f" torch=={torch}" if version_numbers(others[0]) != version_numbers(version) else ""
        cure = f"`pip install torch_npu=={others[0]}{other}`"
    return subject.wrong(found, cure)


def _failed(trial: Trial) -> str:
    return f"{trial.outcome.value}: {trial.error}"
