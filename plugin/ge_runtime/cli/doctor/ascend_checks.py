"""Checks of Ascend's driver and device files, of CANN and pyACL, and of CANN's compiler.

Sources of what a CANN asks of Python and its packages: the pages "Runtime Dependencies" and "CANN
Software Installation" on hiascend.com for CANN 8.1 to 9.1.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ge_runtime.cli.doctor.findings import Finding, State, Subject
from ge_runtime.cli.doctor.machine import Cann, Machine
from ge_runtime.cli.doctor.package_checks import VersionRange, version_numbers
from ge_runtime.cli.doctor.trials import Outcome

DRIVER_GROUP: Final = "Ascend driver"
_NPU: Final = frozenset({"npu"})
_MANAGER_FILES: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_CARD_FILE: Final = re.compile(r"/dev/v?davinci\d+", re.ASCII)
_DEVICE_FILES_GROUP: Final = "HwHiAiUser"
_GIVE_DEVICES: Final = (
    "in a container: `--device /dev/davinci0 --device /dev/davinci_manager --device /dev/devmm_svm "
    "--device /dev/hisi_hdc`, or `-e ASCEND_VISIBLE_DEVICES=0` with Ascend Docker Runtime"
)
_RENUMBERED: Final = "card numbers that this process has, each once, counted from 0"

CANN_GROUP: Final = "CANN"
COMPILER_GROUP: Final = "Ascend's compiler"
_BEFORE_SERVER: Final = (
    "before the server starts: the processes of its models inherit the environment"
)
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


def check_driver(machine: Machine) -> list[Finding]:
    """What the driver and its device files are like."""
    findings = [_driver(machine), _npu_smi(machine), _cards(machine), _managers(machine)]
    if machine.device_files:
        findings.append(_permissions(machine))
    if "ASCEND_RT_VISIBLE_DEVICES" in machine.environment:
        findings.append(_visible(machine))
    return findings


def _driver(machine: Machine) -> Finding:
    subject = Subject(DRIVER_GROUP, "driver", "/usr/local/Ascend/driver/version.info", _NPU)
    if machine.npu_driver is None:
        cure = (
            "install Ascend-hdk-<soc>-npu-driver and its firmware on the host; in a container "
            "mount /usr/local/Ascend/driver read-only"
        )
        return subject.missing("none", cure)
    if not machine.npu_driver:
        cure = "`npu-smi info` names the driver's version"
        return subject.unknown("a version.info without a version", cure)
    return subject.ok(machine.npu_driver)


def _npu_smi(machine: Machine) -> Finding:
    trial, expected = machine.npu_smi, "`npu-smi info` to succeed"
    subject = Subject(DRIVER_GROUP, "npu-smi", expected)
    if trial.outcome is Outcome.DONE:
        return subject.ok("answers")
    if trial.outcome is Outcome.ABSENT:
        # It comes with the driver; nothing that serves calls it.
        cure = "it comes with the driver; in a container mount /usr/local/bin/npu-smi"
        return subject.missing("none", cure)
    cure = "the driver or a card is not well: see `dmesg`, and restart the host if nothing helps"
    return Finding(DRIVER_GROUP, "npu-smi", State.WRONG, trial.error, expected, cure, _NPU)


def _card_files(machine: Machine) -> list[str]:
    return [each.path for each in machine.device_files if _CARD_FILE.fullmatch(each.path)]


def _cards(machine: Machine) -> Finding:
    cards = _card_files(machine)
    subject = Subject(DRIVER_GROUP, "cards", "/dev/davinci<number> for each card", _NPU)
    if cards:
        return subject.ok(", ".join(cards))
    found, cure = "none", _GIVE_DEVICES
    if machine.environment.get("ASCEND_VISIBLE_DEVICES") == "void":
        found = "none: ASCEND_VISIBLE_DEVICES is void"
        cure = "start the container with the numbers of its cards there, e.g. 0 or 0-3"
    return subject.missing(found, cure)


def _managers(machine: Machine) -> Finding:
    there = {each.path for each in machine.device_files}
    lacking = [path for path in _MANAGER_FILES if path not in there]
    subject = Subject(DRIVER_GROUP, "management", ", ".join(_MANAGER_FILES), _NPU)
    if not lacking:
        return subject.ok("all three")
    return subject.missing(f"no {', '.join(lacking)}", _GIVE_DEVICES)


def _permissions(machine: Machine) -> Finding:
    closed = [each for each in machine.device_files if not each.usable]
    expected = f"{machine.user} may read and write all of them"
    subject = Subject(DRIVER_GROUP, "permissions", expected, _NPU)
    if not closed:
        return subject.ok(f"{machine.user} may")
    group = closed[0].group
    paths = [each.path for each in closed]
    found = f"{machine.user} may not: {', '.join(paths)} of group {group}"
    if group in machine.groups:
        cure = f"`chmod g+rw {' '.join(paths)}` as root: {machine.user} is in {group}"
    elif group == _DEVICE_FILES_GROUP:
        cure = f"`usermod -aG {_DEVICE_FILES_GROUP} {machine.user}` as root, and log in again"
    else:
        cure = f"start the container with `--group-add {group}`"
    return subject.wrong(found, cure)


def _visible(machine: Machine) -> Finding:
    text = machine.environment["ASCEND_RT_VISIBLE_DEVICES"]
    what, count = "ASCEND_RT_VISIBLE_DEVICES", len(_card_files(machine))
    words = [word.strip() for word in text.split(",")]
    found = f"'{text}'"
    subject = Subject(DRIVER_GROUP, what, _RENUMBERED, _NPU)
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        return subject.wrong(found, "export it as e.g. 0,1, or unset it to see all cards")
    if beyond := [word for word in words if int(word) >= count]:
        found += f", and {count} card(s)"
        cure = f"leave out {', '.join(beyond)}: cards are numbered from 0 within a container"
        return subject.wrong(found, cure)
    return subject.ok(found)


def check_cann(machine: Machine) -> list[Finding]:
    """CANN, its environment, and what pyACL sees."""
    findings = [_toolkit(machine)]
    if machine.cann is not None:
        findings += [_environment(machine.cann), _acl_library(machine)]
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
    return [Finding(CANN_GROUP, "pyACL", State.OK, found, expected, needs=_NPU), _devices(machine)]


def check_compiler(machine: Machine) -> list[Finding]:
    """What building an .om on this machine takes; serving one takes nothing of it."""
    cann, expected = machine.cann, "atc in the PATH, where .om files are built"
    subject = Subject(COMPILER_GROUP, "atc", expected)
    findings = [subject.ok(machine.atc or "")]
    if machine.atc is None:
        cure = "install CANN's toolkit and source its set_env.sh, here or on a machine that builds"
        findings = [subject.missing("none", cure)]
    rules = _requirements_of(cann.version) if cann is not None and cann.version else None
    if cann is None or rules is None:
        return findings
    findings.append(_compiler_package(machine, "numpy", rules.numpy, cann))
    if rules.protobuf is not None:
        findings.append(_compiler_package(machine, "protobuf", rules.protobuf, cann))
    return findings


def _toolkit(machine: Machine) -> Finding:
    named = machine.environment.get("ASCEND_HOME_PATH")
    cann, expected = machine.cann, "the toolkit, and a file that tells its version"
    subject = Subject(CANN_GROUP, "toolkit", expected, _NPU)
    if cann is None and named:
        found = f"ASCEND_HOME_PATH={named}, which is not there"
        return subject.wrong(found, "source the set_env.sh of the CANN that is installed")
    if cann is None:
        return subject.missing("none", "install Ascend-cann-toolkit and the operators of your SoC")
    if cann.version is None:
        cure = (
            f"`cat {cann.home}/version.cfg {cann.home}/*-linux/ascend_toolkit_install.info` should "
            "name it: install the toolkit anew if neither does"
        )
        return subject.unknown(f"{cann.home}, of no known version", cure)
    return subject.ok(f"{cann.version} in {cann.home}")


def _environment(cann: Cann) -> Finding:
    subject = Subject(CANN_GROUP, "environment", f"{cann.set_env} sourced", _NPU)
    if cann.sourced:
        return subject.ok("sourced")
    found, cure = "not sourced", f"`source {cann.set_env}` {_BEFORE_SERVER}"
    return subject.wrong(found, cure)


def _acl_library(machine: Machine) -> Finding:
    folders, expected = machine.acl_folders, "CANN's lib64 first, its `stub` nowhere before it"
    what = "LD_LIBRARY_PATH"
    subject = Subject(CANN_GROUP, what, expected, _NPU)
    if not folders:
        cure = f"source CANN's set_env.sh {_BEFORE_SERVER}"
        return subject.missing("no folder with ACL's library", cure)
    if "stub" not in PurePath(folders[0]).parts:
        return subject.ok(folders[0])
    real = [each for each in folders if "stub" not in PurePath(each).parts]
    found = f"{folders[0]} {f'before {real[0]}' if real else 'only'}"
    without = f"tr : '\\n' <<< $LD_LIBRARY_PATH | grep -Fxv {folders[0]} | paste -sd:"
    cure = (
        f"take {folders[0]} out of it: a stub is for linking, every call fails with 100039: "
        f"`export LD_LIBRARY_PATH=$({without})`"
    )
    return subject.wrong(found, cure)


def _python(python: tuple[int, int, int], cann: Cann) -> list[Finding]:
    """Whether CANN is made for this Python; nothing, if it has no version."""
    if cann.version is None:
        return []
    what, found = "Python", ".".join(map(str, python))
    rules = _requirements_of(cann.version)
    if rules is None or rules.python is None:
        expected = f"what CANN {cann.version} asks for, which doctor does not know"
        cure = 'see "Runtime Dependencies" in that release\'s installation guide'
        return [Finding(CANN_GROUP, what, State.UNKNOWN, found, expected, cure, _NPU)]
    expected = f"{rules.python} for CANN {cann.version}"
    if python in rules.python:
        return [Finding(CANN_GROUP, what, State.OK, found, expected, needs=_NPU)]
    newest = _requirements_of(_NEWEST)
    wider = newest is not None and newest.python is not None and python in newest.python
    cure = "give the models a Python of that range" + f", or install CANN {_NEWEST}" * wider
    return [Finding(CANN_GROUP, what, State.WRONG, found, expected, cure, _NPU)]


def _acl(machine: Machine) -> Finding:
    trial, expected = machine.imports["acl"], "`import acl` to succeed"
    subject = Subject(CANN_GROUP, "pyACL", expected, _NPU)
    if trial.outcome is Outcome.DONE:
        return subject.ok(trial.facts["file"])
    if trial.outcome is Outcome.ABSENT:
        script = f"`source {machine.cann.set_env}`" if machine.cann else "source its set_env.sh"
        return subject.missing("none", f"{script} {_BEFORE_SERVER}")
    return subject.wrong(f"{trial.outcome.value}: {trial.error}", _acl_cure(trial.error))


def _acl_cure(error: str) -> str:
    """What helps where `import acl` failed so."""
    # The driver's libraries first: where they lack, "cannot open shared object" is told as well.
    if "libascend_hal" in error or "libdrv" in error:
        return f"`export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:{_DRIVER_FOLDERS}`; install the driver"
    if "Permission denied" in error:
        return "let the user of the models read it: as root, `usermod -aG HwHiAiUser USER`"
    if _OF_ANOTHER_MACHINE.search(error):
        return f"install the CANN for {platform.machine()}: this one is for another processor"
    if "cannot open shared object" in error:
        return f"source CANN's set_env.sh {_BEFORE_SERVER}"
    if _OF_ANOTHER_PYTHON.search(error):
        return "give the models a Python that this CANN is made for: its acl.so is for another"
    return "`npu-smi info` tells whether the driver is well; driver and CANN must fit"


def _devices(machine: Machine) -> Finding:
    facts, expected = machine.imports["acl"].facts, "at least one device"
    code, count = int(facts["code"]), int(facts["devices"])
    subject = Subject(CANN_GROUP, "devices", expected, _NPU)
    if code == 0 and count:
        return subject.ok(f"{count} device(s)")
    meaning, cure = _CODES.get(code, ("", "see ~/ascend/log for what ACL says"))
    if code == 0:
        meaning, cure = _CODES[207004]
    return subject.missing(f"none: code {code}" + f", {meaning}" * bool(meaning), cure)


def _compiler_package(machine: Machine, package: str, range_: VersionRange, cann: Cann) -> Finding:
    expected = f"{range_} for the compiler of CANN {cann.version}"
    subject = Subject(COMPILER_GROUP, package, expected)
    version = machine.packages.get(package)
    cure = (
        f"build .om files with a Python of their own, with {package} {range_}; serving them needs "
        "no compiler"
    )
    if version is None:
        return subject.missing("none", cure)
    return (
        subject.ok(version) if version_numbers(version) in range_ else subject.wrong(version, cure)
    )


@dataclass(frozen=True, slots=True)
class _CannRequirements:
    """What one CANN release asks of Python and its packages; None where nothing is said."""

    python: VersionRange | None
    numpy: VersionRange
    protobuf: VersionRange | None


_RULES: Final = {
    VersionRange((8, 1), (8, 5)): _CannRequirements(
        # The pages name 3.11.4; extension modules do not tell patch releases apart.
        VersionRange((3, 7), (3, 11)),
        VersionRange((1, 19, 2), (1, 24)),
        VersionRange((3, 20), (3, 20)),
    ),
    VersionRange((8,), (8,)): _CannRequirements(
        None, VersionRange((1, 19, 2), (1, 24)), VersionRange((3, 20), (3, 20))
    ),
    VersionRange((9, 1), (9, 1)): _CannRequirements(
        VersionRange((3, 7), (3, 14)), VersionRange((1, 19, 2)), None
    ),
}


def _requirements_of(cann: str) -> _CannRequirements | None:
    """What this CANN release asks for, or None if it is not known."""
    version = version_numbers(cann)
    return next((rule for range_, rule in _RULES.items() if version in range_), None)
