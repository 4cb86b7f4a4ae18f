"""Checks of Ascend's driver and device files."""

from __future__ import annotations

import re
from typing import Final

from ge_runtime.cli.doctor.findings import Finding, State
from ge_runtime.cli.doctor.machine import Machine, Outcome

GROUP: Final = "Ascend driver"
_NPU: Final = frozenset({"npu"})
_MANAGERS: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_CARD: Final = re.compile(r"/dev/v?davinci\d+", re.ASCII)
_OWNERS: Final = "HwHiAiUser"
_GIVE_DEVICES: Final = (
    "in a container: `--device /dev/davinci0 --device /dev/davinci_manager --device /dev/devmm_svm "
    "--device /dev/hisi_hdc`, or `-e ASCEND_VISIBLE_DEVICES=0` with Ascend Docker Runtime"
)
_RENUMBERED: Final = "card numbers that this process has, each once, counted from 0"


def check_driver(machine: Machine) -> list[Finding]:
    """What the driver and its device files are like."""
    findings = [_driver(machine), _npu_smi(machine), _cards(machine), _managers(machine)]
    if machine.device_files:
        findings.append(_permissions(machine))
    if "ASCEND_RT_VISIBLE_DEVICES" in machine.environment:
        findings.append(_visible(machine))
    return findings


def _driver(machine: Machine) -> Finding:
    expected = "/usr/local/Ascend/driver/version.info"
    if machine.npu_driver is None:
        cure = (
            "install Ascend-hdk-<soc>-npu-driver and its firmware on the host; in a container "
            "mount /usr/local/Ascend/driver read-only"
        )
        return Finding(GROUP, "driver", State.MISSING, "none", expected, cure, _NPU)
    if not machine.npu_driver:
        cure = "`npu-smi info` names the driver's version"
        found = "a version.info without a version"
        return Finding(GROUP, "driver", State.UNKNOWN, found, expected, cure, _NPU)
    return Finding(GROUP, "driver", State.OK, machine.npu_driver, expected, needs=_NPU)


def _npu_smi(machine: Machine) -> Finding:
    trial, expected = machine.npu_smi, "`npu-smi info` to succeed"
    if trial.outcome is Outcome.DONE:
        return Finding(GROUP, "npu-smi", State.OK, "answers", expected)
    if trial.outcome is Outcome.ABSENT:
        # It comes with the driver; nothing that serves calls it.
        cure = "it comes with the driver; in a container mount /usr/local/bin/npu-smi"
        return Finding(GROUP, "npu-smi", State.MISSING, "none", expected, cure)
    cure = "the driver or a card is not well: see `dmesg`, and restart the host if nothing helps"
    return Finding(GROUP, "npu-smi", State.WRONG, trial.error, expected, cure, _NPU)


def _card_files(machine: Machine) -> list[str]:
    return [each.path for each in machine.device_files if _CARD.fullmatch(each.path)]


def _cards(machine: Machine) -> Finding:
    cards = _card_files(machine)
    expected = "/dev/davinci<number> for each card"
    if cards:
        return Finding(GROUP, "cards", State.OK, ", ".join(cards), expected, needs=_NPU)
    found, cure = "none", _GIVE_DEVICES
    if machine.environment.get("ASCEND_VISIBLE_DEVICES") == "void":
        found = "none: ASCEND_VISIBLE_DEVICES is void"
        cure = "start the container with the numbers of its cards there, e.g. 0 or 0-3"
    return Finding(GROUP, "cards", State.MISSING, found, expected, cure, _NPU)


def _managers(machine: Machine) -> Finding:
    there = {each.path for each in machine.device_files}
    lacking = [path for path in _MANAGERS if path not in there]
    expected = ", ".join(_MANAGERS)
    if not lacking:
        return Finding(GROUP, "management", State.OK, "all three", expected, needs=_NPU)
    found = f"no {', '.join(lacking)}"
    return Finding(GROUP, "management", State.MISSING, found, expected, _GIVE_DEVICES, _NPU)


def _permissions(machine: Machine) -> Finding:
    expected = f"{machine.user} may read and write all of them"
    closed = [each for each in machine.device_files if not each.usable]
    if not closed:
        found = f"{machine.user} may"
        return Finding(GROUP, "permissions", State.OK, found, expected, needs=_NPU)
    group = closed[0].group
    paths = [each.path for each in closed]
    found = f"{machine.user} may not: {', '.join(paths)} of group {group}"
    if group in machine.groups:
        cure = f"`chmod g+rw {' '.join(paths)}` as root: {machine.user} is in {group}"
    elif group == _OWNERS:
        cure = f"`usermod -aG {_OWNERS} {machine.user}` as root, and log in again"
    else:
        cure = f"start the container with `--group-add {group}`"
    return Finding(GROUP, "permissions", State.WRONG, found, expected, cure, _NPU)


def _visible(machine: Machine) -> Finding:
    text = machine.environment["ASCEND_RT_VISIBLE_DEVICES"]
    what, count = "ASCEND_RT_VISIBLE_DEVICES", len(_card_files(machine))
    words = [word.strip() for word in text.split(",")]
    found = f"'{text}'"
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        cure = "export it as e.g. 0,1, or unset it to see all cards"
        return Finding(GROUP, what, State.WRONG, found, _RENUMBERED, cure, _NPU)
    if beyond := [word for word in words if int(word) >= count]:
        found += f", and {count} card(s)"
        cure = f"leave out {', '.join(beyond)}: cards are numbered from 0 within a container"
        return Finding(GROUP, what, State.WRONG, found, _RENUMBERED, cure, _NPU)
    return Finding(GROUP, what, State.OK, found, _RENUMBERED, needs=_NPU)
