"""The facts about a machine, as plain values, and how they are read.

Nothing here is judged. A value is None or empty where there is nothing to read.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from ge_runtime.cli.doctor.trials import TRIED_MODULES, Outcome, Trial, run_command, try_import
from ge_runtime.memory.machine import MemoryLimit, read_limits
from ge_runtime.npu.driver.installation import cann_version, read_text_or_none
from ge_runtime.npu.service.runtime_folder import runtime_folder


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A file below /dev."""

    path: str
    group: str
    usable: bool
    """Whether this process may read and write it."""


@dataclass(frozen=True, slots=True)
class Cann:
    """An installation of CANN."""

    home: str
    version: str | None
    """As in its version.cfg or ascend_toolkit_install.info, e.g. 8.3.RC1."""
    set_env: str
    """The script that sets its environment."""
    sourced: bool
    """Whether the environment looks as if that script had set it."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The file system /dev/shm, in bytes."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that is read of a machine and of the Python that reads it."""

    python: tuple[int, int, int]
    user: str
    groups: frozenset[str]
    """The names of the process's groups."""
    environment: Mapping[str, str]
    """Of the variables that matter, those that are set."""
    packages: Mapping[str, str]
    """Distribution, in lower case and with hyphens: its version. Installed, perhaps broken."""
    imports: Mapping[str, Trial]
    """Of each module in `trials.TRIED_MODULES`."""
    npu_driver: str | None
    """The version of Ascend's driver; empty if it has a version.info that names none."""
    npu_smi: Trial
    device_files: tuple[DeviceFile, ...]
    """Ascend's."""
    cann: Cann | None
    atc: str | None
    """The path of Ascend's compiler."""
    acl_folders: tuple[str, ...]
    """Of the folders in LD_LIBRARY_PATH, in order, those that hold a library of ACL."""
    memory: tuple[MemoryLimit, ...]
    """What bounds a process's memory."""
    shared_memory: SharedMemory | None
    service_folder: str
    """Where the device services of this user are found."""
    service_fault: str
    """Why no service can be started there; empty if one can."""
    nvidia_driver: str | None
    nvidia_smi: Trial
    """Its facts are the GPUs, by number."""


VARIABLES: Final = (
    "ASCEND_HOME_PATH",
    "ASCEND_OPP_PATH",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)
_ASCEND: Final = "usr/local/Ascend"
_CANN_HOMES: Final = (f"{_ASCEND}/cann", f"{_ASCEND}/ascend-toolkit/latest")
_OWN_CANN_HOMES: Final = ("Ascend/cann", "Ascend/ascend-toolkit/latest")
_SET_ENV: Final = "set_env.sh"
_ACL_LIBRARIES: Final = ("libascendcl.so", "libacl_rt.so")
_DEVICE_FILE: Final = re.compile(r"v?davinci\d+|davinci_manager|devmm_svm|hisi_hdc", re.ASCII)
_DRIVER_VERSION: Final = re.compile(r"^Version=(\S+)", re.MULTILINE)
_NVIDIA_VERSION: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d[\d.]*)")
_NVIDIA_SMI: Final = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader")


def read_machine(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Machine:
    """The machine below `root`, and the Python that runs this. Takes as long as its imports."""
    # Two at a time: each is a process that imports a large library.
    with ThreadPoolExecutor(max_workers=2) as trials:
        imports = dict(zip(TRIED_MODULES, trials.map(try_import, TRIED_MODULES), strict=True))
    service_folder = runtime_folder(environment, os.geteuid())
    return Machine(
        python=sys.version_info[:3],
        user=_user(),
        groups=frozenset(filter(None, map(_group_name, {os.getegid(), *os.getgroups()}))),
        environment={name: environment[name] for name in VARIABLES if name in environment},
        packages={
            re.sub(r"[-_.]+", "-", each.name).lower(): each.version  # names as PEP 503 compares
            for each in distributions()
            if each.name
        },
        imports=imports,
        npu_driver=_npu_driver(root),
        npu_smi=run_command(["npu-smi", "info"])[0],
        device_files=_device_files(root / "dev"),
        cann=_cann(root, environment),
        atc=shutil.which("atc"),
        acl_folders=_acl_folders(environment),
        memory=read_limits(root),
        shared_memory=_shared_memory(root / "dev/shm"),
        service_folder=str(service_folder),
        service_fault=_service_fault(service_folder),
        nvidia_driver=_nvidia_driver(root),
        nvidia_smi=_nvidia_smi(),
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return ""


def _npu_driver(root: Path) -> str | None:
    text = read_text_or_none(root / _ASCEND / "driver/version.info")
    if text is None:
        return None
    match = _DRIVER_VERSION.search(text)
    return match[1] if match else ""


def _device_files(folder: Path) -> tuple[DeviceFile, ...]:
    found = sorted(entry for entry in folder.iterdir() if _DEVICE_FILE.fullmatch(entry.name))
    return tuple(
        DeviceFile(
            path=f"/dev/{entry.name}",
            group=_group_name(entry.stat().st_gid) or str(entry.stat().st_gid),
            usable=os.access(entry, os.R_OK | os.W_OK),
        )
        for entry in found
    )


def _cann(root: Path, environment: Mapping[str, str]) -> Cann | None:
    named = environment.get("ASCEND_HOME_PATH")
    homes = [Path(named)] if named else [root / home for home in _CANN_HOMES]
    if not named and "HOME" in environment:  # where those who are not root install it
        homes += [Path(environment["HOME"]) / home for home in _OWN_CANN_HOMES]
    for home in homes:
        if home.is_dir():
            script = next(
                (each for each in (home, home.parent) if (each / _SET_ENV).is_file()), home
            )
            return Cann(
                home=str(home),
                version=cann_version(home),
                set_env=str(script / _SET_ENV),
                sourced=bool(named) and "ASCEND_OPP_PATH" in environment,
            )
    return None


def _acl_folders(environment: Mapping[str, str]) -> tuple[str, ...]:
    folders = filter(None, environment.get("LD_LIBRARY_PATH", "").split(":"))
    return tuple(
        folder
        for folder in folders
        if any((Path(folder) / name).exists() for name in _ACL_LIBRARIES)
    )


def _shared_memory(folder: Path) -> SharedMemory | None:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return SharedMemory(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


def _service_fault(folder: Path) -> str:
    """Why nobody can start a service there; nothing is made."""
    try:
        found = folder.stat(follow_symlinks=False)
    except FileNotFoundError:
        writable = os.access(folder.parent, os.W_OK | os.X_OK)
        return "" if writable else f"{folder.parent} cannot be written"
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not mode & 0o077:
        return ""
    return f"{folder} is of user {found.st_uid} with mode {mode:04o}"


def _nvidia_driver(root: Path) -> str | None:
    text = read_text_or_none(root / "proc/driver/nvidia/version")
    if text is None:
        return None
    match = _NVIDIA_VERSION.search(text)
    return match[1] if match else ""


def _nvidia_smi() -> Trial:
    trial, printed = run_command(_NVIDIA_SMI)
    if trial.outcome is not Outcome.DONE:
        return trial
    gpus = (line.partition(",") for line in printed.splitlines() if line.strip())
    return Trial(Outcome.DONE, facts={number.strip(): rest.strip() for number, _, rest in gpus})
