"""Checks of CANN, of pyACL, and of the Python packages that CANN's compiler wants."""

from __future__ import annotations

import platform
import re
from pathlib import PurePath
from typing import Final

from ge_runtime.cli.doctor.findings import NOBODY, Finding, State
from ge_runtime.cli.doctor.machine import Cann, Machine, Outcome
from ge_runtime.cli.doctor.versions import Range, numbers, rule_of

GROUP: Final = "CANN"
COMPILER: Final = "Ascend's compiler"
_NPU: Final = frozenset({"npu"})
_IN_TIME: Final = "before the server starts: the processes of its models inherit the environment"
_NEWEST: Final = "9.1"
"""The CANN that takes most versions of Python."""
_DRIVER_FOLDERS: Final = ":".join(
    f"/usr/local/Ascend/driver/lib64{each}" for each in ("", "/common", "/driver")
)

# A library that lacks another says so by its name alone; where it is itself that cannot be opened,
# though it was found, it is for another processor.
_OF_ANOTHER_MACHINE: Final = re.compile(
    r": /\S+: (cannot open shared object file: No such|wrong ELF class)"
)
_OF_ANOTHER_PYTHON: Final = re.compile(r"undefined symbol: _?Py|\(PyInit_acl\)|SystemError")

_CODES: Final = {
    100039: ("the stub library was loaded", "take the toolkit's `stub` out of LD_LIBRARY_PATH"),
    207004: ("no device", "give the container its cards: see the device files above"),
    207006: ("no permission", "see the permissions of the device files above"),
    507008: ("driver and CANN do not fit", "update the driver to what this CANN asks for"),
    507033: ("a device cannot be set up", "see permissions above; `npu-smi info` tells who has it"),
    507899: ("driver and CANN do not fit", "update the driver to what this CANN asks for"),
}


def check_cann(machine: Machine) -> list[Finding]:
    """CANN, its environment, and what pyACL sees."""
    findings = [_installed(machine)]
    if machine.cann is not None:
        findings += [_sourced(machine.cann), _library(machine)]
        findings += _python(machine.python, machine.cann)
    findings.append(_acl(machine))
    if machine.imports["acl"].outcome is Outcome.DONE:
        findings.append(_devices(machine))
    return findings


def is_simulated(machine: Machine) -> bool:
    """Whether the module `acl` is a simulator, which needs neither driver nor CANN."""
    return "Simulator" in machine.imports["acl"].facts.get("soc", "")


def check_simulator(machine: Machine) -> list[Finding]:
    """What stands in for CANN."""
    expected = "CANN's pyACL, for a real card"
    found = f"a simulator, {machine.imports['acl'].facts['soc']}"
    return [Finding(GROUP, "pyACL", State.OK, found, expected, needs=_NPU), _devices(machine)]


def check_compiler(machine: Machine) -> list[Finding]:
    """What building an .om on this machine takes; serving one takes nothing of it."""
    cann, expected = machine.cann, "atc in the PATH, where .om files are built"
    findings = [Finding(COMPILER, "atc", State.OK, machine.atc or "", expected)]
    if machine.atc is None:
        cure = "install CANN's toolkit and source its set_env.sh, here or on a machine that builds"
        findings = [Finding(COMPILER, "atc", State.MISSING, "none", expected, cure)]
    rule = rule_of(cann.version) if cann is not None and cann.version else None
    if cann is None or rule is None:
        return findings
    findings.append(_pinned(machine, "numpy", rule.numpy, cann))
    if rule.protobuf is not None:
        findings.append(_pinned(machine, "protobuf", rule.protobuf, cann))
    return findings


def _installed(machine: Machine) -> Finding:
    named = machine.environment.get("ASCEND_HOME_PATH")
    cann, expected = machine.cann, "the toolkit, and a file that tells its version"
    if cann is None and named:
        found = f"ASCEND_HOME_PATH={named}, which is not there"
        cure = "source the set_env.sh of the CANN that is installed"
        return Finding(GROUP, "toolkit", State.WRONG, found, expected, cure, _NPU)
    if cann is None:
        cure = "install Ascend-cann-toolkit and the operators of your SoC"
        return Finding(GROUP, "toolkit", State.MISSING, "none", expected, cure, _NPU)
    if cann.version is None:
        cure = (
            f"`cat {cann.home}/version.cfg {cann.home}/*-linux/ascend_toolkit_install.info` should "
            "name it: install the toolkit anew if neither does"
        )
        found = f"{cann.home}, of no known version"
        return Finding(GROUP, "toolkit", State.UNKNOWN, found, expected, cure, _NPU)
    found = f"{cann.version} in {cann.home}"
    return Finding(GROUP, "toolkit", State.OK, found, expected, needs=_NPU)


def _sourced(cann: Cann) -> Finding:
    expected = f"{cann.set_env} sourced"
    if cann.sourced:
        return Finding(GROUP, "environment", State.OK, "sourced", expected, needs=_NPU)
    found, cure = "not sourced", f"`source {cann.set_env}` {_IN_TIME}"
    return Finding(GROUP, "environment", State.WRONG, found, expected, cure, _NPU)


def _library(machine: Machine) -> Finding:
    folders, expected = machine.acl_folders, "CANN's lib64 first, its `stub` nowhere before it"
    what = "LD_LIBRARY_PATH"
    if not folders:
        cure = f"source CANN's set_env.sh {_IN_TIME}"
        found = "no folder with ACL's library"
        return Finding(GROUP, what, State.MISSING, found, expected, cure, _NPU)
    if "stub" not in PurePath(folders[0]).parts:
        return Finding(GROUP, what, State.OK, folders[0], expected, needs=_NPU)
    real = [each for each in folders if "stub" not in PurePath(each).parts]
    found = f"{folders[0]} {f'before {real[0]}' if real else 'only'}"
    without = f"tr : '\\n' <<< $LD_LIBRARY_PATH | grep -Fxv {folders[0]} | paste -sd:"
    cure = (
        f"take {folders[0]} out of it: a stub is for linking, every call fails with 100039: "
        f"`export LD_LIBRARY_PATH=$({without})`"
    )
    return Finding(GROUP, what, State.WRONG, found, expected, cure, _NPU)


def _python(python: tuple[int, int, int], cann: Cann) -> list[Finding]:
    """Whether CANN is made for this Python; nothing, if it has no version."""
    if cann.version is None:
        return []
    what, found = "Python", ".".join(map(str, python))
    rule = rule_of(cann.version)
    if rule is None or rule.python is None:
        expected = f"what CANN {cann.version} asks for, which doctor does not know"
        cure = 'see "Runtime Dependencies" in that release\'s installation guide'
        return [Finding(GROUP, what, State.UNKNOWN, found, expected, cure, _NPU)]
    expected = f"{rule.python} for CANN {cann.version}"
    if python in rule.python:
        return [Finding(GROUP, what, State.OK, found, expected, needs=_NPU)]
    newest = rule_of(_NEWEST)
    wider = newest is not None and newest.python is not None and python in newest.python
    cure = "give the models a Python of that range" + f", or install CANN {_NEWEST}" * wider
    return [Finding(GROUP, what, State.WRONG, found, expected, cure, _NPU)]


def _acl(machine: Machine) -> Finding:
    trial, expected = machine.imports["acl"], "`import acl` to succeed"
    if trial.outcome is Outcome.DONE:
        return Finding(GROUP, "pyACL", State.OK, trial.facts["file"], expected, needs=_NPU)
    if trial.outcome is Outcome.ABSENT:
        script = f"`source {machine.cann.set_env}`" if machine.cann else "source its set_env.sh"
        cure = f"{script} {_IN_TIME}"
        return Finding(GROUP, "pyACL", State.MISSING, "none", expected, cure, _NPU)
    found = f"{trial.outcome.value}: {trial.error}"
    return Finding(GROUP, "pyACL", State.WRONG, found, expected, _acl_cure(trial.error), _NPU)


def _acl_cure(error: str) -> str:
    """What helps where `import acl` failed so."""
    if "libascend_hal" in error or "libdrv" in error:
        return f"`export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:{_DRIVER_FOLDERS}`; install the driver"
    if "Permission denied" in error:
        return "let the user of the models read it: as root, `usermod -aG HwHiAiUser USER`"
    if _OF_ANOTHER_MACHINE.search(error):
        return f"install the CANN for {platform.machine()}: this one is for another processor"
    if "cannot open shared object" in error:
        return f"source CANN's set_env.sh {_IN_TIME}"
    if _OF_ANOTHER_PYTHON.search(error):
        return "give the models a Python that this CANN is made for: its acl.so is for another"
    return "`npu-smi info` tells whether the driver is well; driver and CANN must fit"


def _devices(machine: Machine) -> Finding:
    facts, expected = machine.imports["acl"].facts, "at least one device"
    code, count = int(facts["code"]), int(facts["devices"])
    if code == 0 and count:
        return Finding(GROUP, "devices", State.OK, f"{count} device(s)", expected, needs=_NPU)
    meaning, cure = _CODES.get(code, ("", "see ~/ascend/log for what ACL says"))
    if code == 0:
        meaning, cure = _CODES[207004]
    found = f"none: code {code}" + f", {meaning}" * bool(meaning)
    return Finding(GROUP, "devices", State.MISSING, found, expected, cure, _NPU)


def _pinned(machine: Machine, package: str, range_: Range, cann: Cann) -> Finding:
    expected = f"{range_} for the compiler of CANN {cann.version}"
    version = machine.packages.get(package)
    cure = (
        f"build .om files with a Python of their own, with {package} {range_}; serving them needs "
        "no compiler"
    )
    if version is None:
        return Finding(COMPILER, package, State.MISSING, "none", expected, cure)
    state = State.OK if numbers(version) in range_ else State.WRONG
    cure = "" if state is State.OK else cure
    return Finding(COMPILER, package, state, version, expected, cure, NOBODY)
