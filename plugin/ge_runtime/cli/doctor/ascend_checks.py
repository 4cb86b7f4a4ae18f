"""Check Ascend's driver and device files, CANN, pyACL and CANN's compiler."""

from __future__ import annotations

import platform
import re
from functools import partial
from itertools import pairwise
from pathlib import PurePath
from typing import Final, NamedTuple

from ge_runtime.child_process import Outcome
from ge_runtime.cli.doctor.findings import Finding
from ge_runtime.cli.doctor.machine import Cann, Machine
from ge_runtime.cli.doctor.package_checks import VersionRange, failure, version_numbers
from ge_runtime.npu.driver.installation import log_folder

_NPU: Final = frozenset({"npu"})
_driver_check: Final = partial(Finding, "Ascend driver", needed_by=_NPU)
_cann_check: Final = partial(Finding, "CANN", needed_by=_NPU)
_compiler_check: Final = partial(Finding, "Ascend's compiler", needed_by=frozenset({"build"}))

_MANAGER_FILES: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_CARD_FILE: Final = re.compile(r"/dev/v?davinci\d+", re.ASCII)
_DRIVERS_GROUP: Final = "HwHiAiUser"
_PASS_DEVICES: Final = (
    "in a container: `--device /dev/davinci0 --device /dev/davinci_manager --device /dev/devmm_svm "
    "--device /dev/hisi_hdc`, or `-e ASCEND_VISIBLE_DEVICES=0` with Ascend Docker Runtime"
)
_BEFORE_START: Final = "before the server starts: model processes inherit its environment"
_DRIVER_FOLDERS: Final = ":".join(
    f"/usr/local/Ascend/driver/lib64{each}" for each in ("", "/common", "/driver")
)

# A missing dependency is named without a path. With a path, the file itself was found, but is built
# for another processor.
_OTHER_PROCESSOR: Final = re.compile(
    r": /\S+: (cannot open shared object file: No such|wrong ELF class)"
)
_OTHER_PYTHON: Final = re.compile(r"undefined symbol: _?Py|\(PyInit_acl\)|SystemError")

_UPDATE_DRIVER: Final = "update the driver to the version that this CANN requires"
_CODES: Final = {
    100039: ("the stub library was loaded", "remove the toolkit's `stub` from LD_LIBRARY_PATH"),
    207004: ("no device", "give the container its cards: see the device files above"),
    207006: ("no permission", "see the permissions of the device files above"),
    507008: ("driver and CANN do not fit", _UPDATE_DRIVER),
    507033: (
        "device set-up failed",
        "see permissions above; `npu-smi info` shows the processes on the card",
    ),
    507899: ("driver and CANN do not fit", _UPDATE_DRIVER),
}


def check_driver(machine: Machine) -> list[Finding]:
    """Check the driver and its device files."""
    findings = [_driver(machine), _npu_smi(machine), _cards(machine), _managers(machine)]
    if machine.device_files:
        findings.append(_permissions(machine))
    if "ASCEND_RT_VISIBLE_DEVICES" in machine.environment:
        findings.append(_visible_devices(machine))
    return findings


def _driver(machine: Machine) -> Finding:
    check = _driver_check("driver", "/usr/local/Ascend/driver/version.info")
    if machine.npu_driver is None:
        cure = (
            "install Ascend-hdk-<soc>-npu-driver and its firmware on the host; in a container "
            "mount /usr/local/Ascend/driver read-only"
        )
        return check.missing("none", cure)
    if not machine.npu_driver:
        return check.unknown("a version.info without a version", "`npu-smi info` shows the version")
    return check.ok(machine.npu_driver)


def _npu_smi(machine: Machine) -> Finding:
    result, expected = machine.npu_smi, "`npu-smi info` to succeed"
    if result.outcome is Outcome.DONE:
        return _driver_check("npu-smi", expected).ok("answers")
    if result.outcome is Outcome.ABSENT:  # serving does not call it
        cure = "npu-smi is part of the driver; in a container mount /usr/local/bin/npu-smi"
        return _driver_check("npu-smi", expected, needed_by=frozenset()).missing("none", cure)
    cure = "the driver or a card is faulty: see `dmesg`, and restart the host if nothing else helps"
    return _driver_check("npu-smi", expected).wrong(result.error, cure)


def _card_files(machine: Machine) -> list[str]:
    return [each.path for each in machine.device_files if _CARD_FILE.fullmatch(each.path)]


def _cards(machine: Machine) -> Finding:
    cards = _card_files(machine)
    check = _driver_check("cards", "/dev/davinci<number> for each card")
    if cards:
        return check.ok(", ".join(cards))
    if machine.environment.get("ASCEND_VISIBLE_DEVICES") == "void":
        cure = "start the container with ASCEND_VISIBLE_DEVICES=<its cards>, e.g. 0 or 0-3"
        return check.missing("none: ASCEND_VISIBLE_DEVICES is void", cure)
    return check.missing("none", _PASS_DEVICES)


def _managers(machine: Machine) -> Finding:
    present = {each.path for each in machine.device_files}
    absent = [path for path in _MANAGER_FILES if path not in present]
    check = _driver_check("management", ", ".join(_MANAGER_FILES))
    if absent:
        return check.missing(f"no {', '.join(absent)}", _PASS_DEVICES)
    return check.ok("all three")


def _permissions(machine: Machine) -> Finding:
    user = machine.user
    closed = [each for each in machine.device_files if not each.usable]
    check = _driver_check("permissions", f"{user} may read and write all device files")
    if not closed:
        return check.ok(f"{user} may read and write all")
    group = closed[0].group
    paths = [each.path for each in closed]
    if group in machine.groups:
        cure = f"`chmod g+rw {' '.join(paths)}` as root: {user} is in {group}"
    elif group == _DRIVERS_GROUP:
        cure = f"`usermod -aG {group} {user}` as root, and log in again"
    else:
        cure = f"start the container with `--group-add {group}`"
    found = f"{user} may not read and write {', '.join(paths)} of group {group}"
    return check.wrong(found, cure)


def _visible_devices(machine: Machine) -> Finding:
    text = machine.environment["ASCEND_RT_VISIBLE_DEVICES"]
    # CANN accepts only ascending numbers, and ignores everything from the first character on that
    # is neither a digit nor a comma.
    expected = "ascending numbers of this process's cards, counted from 0, without blanks"
    check = _driver_check("ASCEND_RT_VISIBLE_DEVICES", expected)
    numbers = text.split(",")
    is_list = all(map(str.isdecimal, numbers))
    if not is_list or any(int(b) <= int(a) for a, b in pairwise(numbers)):
        return check.wrong(f"'{text}'", "export it as e.g. 0,1, or unset it to use all cards")
    count = len(_card_files(machine))
    if absent := [number for number in numbers if int(number) >= count]:
        cure = f"remove {', '.join(absent)}: inside a container cards are numbered from 0"
        return check.wrong(f"'{text}', and {count} card(s)", cure)
    return check.ok(f"'{text}'")


def check_cann(machine: Machine) -> list[Finding]:
    """Check CANN, its environment, and the devices that pyACL finds."""
    findings = [_toolkit(machine)]
    if machine.cann is not None:
        findings += [_environment(machine.cann), _acl_library(machine)]
        if machine.cann.version is not None:
            findings.append(_python(machine.python, machine.cann.version))
    findings.append(_acl(machine))
    if machine.imports["acl"].outcome is Outcome.DONE:
        findings.append(_devices(machine))
    return findings


def is_simulated(machine: Machine) -> bool:
    """Return whether the module `acl` is the simulator, which needs neither driver nor CANN."""
    return "Simulator" in machine.imports["acl"].facts.get("soc", "")


def check_simulator(machine: Machine) -> list[Finding]:
    """Report the simulator and its devices."""
    check = _cann_check("pyACL", "CANN's pyACL, for a real card")
    found = f"a simulator, {machine.imports['acl'].facts['soc']}"
    return [check.ok(found), _devices(machine)]


def _toolkit(machine: Machine) -> Finding:
    configured, cann = machine.environment.get("ASCEND_HOME_PATH"), machine.cann
    check = _cann_check("toolkit", "the toolkit, with a file that names its version")
    if cann is None and configured:
        found = f"ASCEND_HOME_PATH={configured}, which does not exist"
        return check.wrong(found, "source the set_env.sh of the installed CANN")
    if cann is None:
        return check.missing("none", "install Ascend-cann-toolkit and the operators of your SoC")
    if cann.version is None:
        cure = (
            f"`cat {cann.home}/version.cfg {cann.home}/*-linux/ascend_toolkit_install.info` should "
            "name it: reinstall the toolkit if neither does"
        )
        return check.unknown(f"{cann.home}, version unknown", cure)
    return check.ok(f"{cann.version} in {cann.home}")


def _environment(cann: Cann) -> Finding:
    check = _cann_check("environment", f"{cann.set_env} sourced")
    if cann.sourced:
        return check.ok("sourced")
    return check.wrong("not sourced", f"`source {cann.set_env}` {_BEFORE_START}")


def _acl_library(machine: Machine) -> Finding:
    folders = machine.acl_folders
    check = _cann_check("LD_LIBRARY_PATH", "CANN's lib64, and no `stub` folder before it")
    if not folders:
        cure = f"source CANN's set_env.sh {_BEFORE_START}"
        return check.missing("no folder with ACL's library", cure)
    first = folders[0]
    if not _is_stub(first):
        return check.ok(first)
    real = next((each for each in folders if not _is_stub(each)), None)
    without = f"tr : '\\n' <<< $LD_LIBRARY_PATH | grep -Fxv {first} | paste -sd:"
    cure = (
        f"remove {first}, which is for linking only; every call fails with 100039: "
        f"`export LD_LIBRARY_PATH=$({without})`"
    )
    return check.wrong(f"{first} {f'before {real}' if real else 'only'}", cure)


def _is_stub(folder: str) -> bool:
    return "stub" in PurePath(folder).parts


def _python(python: tuple[int, int, int], cann: str) -> Finding:
    found, rules = ".".join(map(str, python)), _requirements_of(cann)
    if rules is None or rules.python is None:
        expected = f"what CANN {cann} requires, which doctor does not know"
        cure = 'see "Runtime Dependencies" in that release\'s installation guide'
        return _cann_check("Python", expected).unknown(found, cure)
    check = _cann_check("Python", f"{rules.python} for CANN {cann}")
    if python in rules.python:
        return check.ok(found)
    cure = "run the models with a Python in that range"
    if python in _NEWEST_PYTHON:
        cure += ", or install CANN 9.1"
    return check.wrong(found, cure)


def _acl(machine: Machine) -> Finding:
    result = machine.imports["acl"]
    check = _cann_check("pyACL", "`import acl` to succeed")
    if result.outcome is Outcome.DONE:
        return check.ok(result.facts["file"])
    if result.outcome is Outcome.ABSENT:
        script = f"`source {machine.cann.set_env}`" if machine.cann else "source its set_env.sh"
        return check.missing("none", f"{script} {_BEFORE_START}")
    return check.wrong(failure(result), _acl_cure(result.error))


def _acl_cure(error: str) -> str:
    # The driver's libraries are checked first: for them, too, the error says "cannot open shared
    # object".
    if "libascend_hal" in error or "libdrv" in error:
        return f"`export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:{_DRIVER_FOLDERS}`; install the driver"
    if "Permission denied" in error:
        return f"let the models' user read acl.so: as root, `usermod -aG {_DRIVERS_GROUP} USER`"
    if _OTHER_PROCESSOR.search(error):
        return f"install the CANN for {platform.machine()}: this CANN is for another processor"
    if "cannot open shared object" in error:
        return f"source CANN's set_env.sh {_BEFORE_START}"
    if _OTHER_PYTHON.search(error):
        return (
            "run the models with a Python that this CANN supports, as acl.so is for another Python"
        )
    return "check the driver with `npu-smi info`; driver and CANN must fit each other"


def _devices(machine: Machine) -> Finding:
    facts = machine.imports["acl"].facts
    code, count = int(facts["code"]), int(facts["devices"])
    check = _cann_check("devices", "at least one device")
    if code == 0 and count:
        return check.ok(f"{count} device(s)")
    meaning, cure = _CODES.get(code or 207004, ("", f"see CANN's log in {log_folder()}"))
    return check.missing(f"none: code {code}" + (f", {meaning}" if meaning else ""), cure)


def check_compiler(machine: Machine) -> list[Finding]:
    """Check the requirements of compiling .om files; serving .om files does not have them."""
    cann = machine.cann
    check = _compiler_check("atc", "atc in PATH, on a machine that compiles .om files")
    cure = "install CANN's toolkit and source its set_env.sh, here or on a machine that compiles"
    findings = [check.ok(machine.atc) if machine.atc else check.missing("none", cure)]
    rules = _requirements_of(cann.version) if cann is not None and cann.version else None
    if cann is None or rules is None:
        return findings
    for package, versions in (("numpy", rules.numpy), ("protobuf", rules.protobuf)):
        if versions is None:
            continue
        check = _compiler_check(package, f"{versions} for the compiler of CANN {cann.version}")
        version = machine.packages.get(package)
        cure = (
            f"compile .om files in a separate Python environment with {package} {versions}; "
            "serving them needs no compiler"
        )
        if version is None:
            findings.append(check.missing("none", cure))
        elif version_numbers(version) in versions:
            findings.append(check.ok(version))
        else:
            findings.append(check.wrong(version, cure))
    return [*findings, _compiler_packages(machine)]


def _compiler_packages(machine: Machine) -> Finding:
    """Check the packages that atc imports at its start, for any model."""
    check = _compiler_check("packages", f"{', '.join(_ATC_PACKAGES)} for the compiler")
    absent = [name for name in _ATC_PACKAGES if name not in machine.packages]
    if absent:
        cure = (
            f'`pip install {" ".join(absent)}`; without them atc fails with E40020 or "Initialize '
            'ge using ge global options failed"'
        )
        # With atc, the state is not `missing`: it could become `not needed`, which shows no fix.
        found = f"no {', '.join(absent)}"
        return check.wrong(found, cure) if machine.atc else check.missing(found, cure)
    return check.ok("all")


_ATC_PACKAGES: Final = (
    *("decorator", "attrs", "psutil", "scipy", "sympy", "absl-py", "cloudpickle", "cffi"),
)


class _CannRequirements(NamedTuple):
    """Versions that one CANN release requires; None if the documents do not name them."""

    python: VersionRange | None
    numpy: VersionRange
    protobuf: VersionRange | None


# Source: "Runtime Dependencies" and "CANN Software Installation" on hiascend.com for CANN 8.1 to
# 9.1; 9.2 is assumed to be as 9.1. The newest Python of 9.0.0 is 3.11 in the English page, and 3.13
# in the Chinese page. The pages name Python 3.11.4, but patch releases are binary compatible.
_OLD_NUMPY: Final = VersionRange((1, 19, 2), (1, 24))
_PROTOBUF: Final = VersionRange((3, 20), (3, 20))
_MORE_PYTHON: Final = VersionRange((3, 7), (3, 13))
_NEWEST_PYTHON: Final = VersionRange((3, 7), (3, 14))
"""Range of CANN 9.1, which supports the most Python versions."""
_REQUIREMENTS: Final = {
    VersionRange((8, 1), (8, 3)): _CannRequirements(
        VersionRange((3, 7), (3, 11)), _OLD_NUMPY, _PROTOBUF
    ),
    VersionRange((8, 5), (8, 5)): _CannRequirements(
        _MORE_PYTHON, VersionRange((1, 19, 2), (1,)), _PROTOBUF
    ),
    VersionRange((8,), (8,)): _CannRequirements(None, _OLD_NUMPY, _PROTOBUF),
    VersionRange((9, 0), (9, 0)): _CannRequirements(
        _MORE_PYTHON, VersionRange((1, 19, 2)), _PROTOBUF
    ),
    VersionRange((9, 1), (9, 2)): _CannRequirements(_NEWEST_PYTHON, VersionRange((1, 19, 2)), None),
}


def _requirements_of(cann: str) -> _CannRequirements | None:
    """Return the requirements of a CANN release, or None if they are not known."""
    version = version_numbers(cann)
    return next((rule for range_, rule in _REQUIREMENTS.items() if version in range_), None)
