"""Read the facts about a machine, without judging them.

Values that cannot be read are None or empty. Modules are imported in child processes.
"""

from __future__ import annotations

import grp
import json
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

from ge_runtime.child_process import TIMEOUT_S, ChildResult, Outcome, run_command
from ge_runtime.memory.machine import MemoryLimit, read_limits
from ge_runtime.npu.driver.installation import cann_version, read_text_or_none
from ge_runtime.npu.service.launcher import runtime_folder


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A device file of Ascend's driver below /dev."""

    path: str
    group: str
    usable: bool
    """True if this process may read and write the file."""


@dataclass(frozen=True, slots=True)
class Cann:
    """An installation of CANN."""

    home: str
    version: str | None
    """From version.cfg or ascend_toolkit_install.info, e.g. 8.3.RC1."""
    set_env: str
    """Path of the script that sets CANN's environment variables."""
    sourced: bool
    """True if these environment variables are set."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Size of the file system /dev/shm, in bytes."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about a machine and the Python that runs this command."""

    python: tuple[int, int, int]
    user: str
    groups: frozenset[str]
    """Names of the process's groups."""
    environment: Mapping[str, str]
    """The variables in VARIABLES that are set."""
    packages: Mapping[str, str]
    """Versions of the installed distributions, by normalized name (PEP 503)."""
    imports: Mapping[str, ChildResult]
    """Result of importing each module in `CHECKED_MODULES`."""
    npu_driver: str | None
    """Version of Ascend's driver; "" if version.info does not name it."""
    npu_smi: ChildResult
    device_files: tuple[DeviceFile, ...]
    cann: Cann | None
    atc: str | None
    """Path of Ascend's compiler."""
    acl_folders: tuple[str, ...]
    """Folders in LD_LIBRARY_PATH that contain a library of ACL, in order."""
    memory: tuple[MemoryLimit, ...]
    shared_memory: SharedMemory | None
    service_folder: str
    """Runtime folder of this user's device services."""
    service_fault: str
    """Why no service can start in `service_folder`; empty if a service can."""
    nvidia_driver: str | None
    """Version of NVIDIA's driver; "" if it is not known."""
    nvidia_smi: ChildResult
    """The facts map the number of each GPU to its name and memory."""


VARIABLES: Final = (
    "ASCEND_HOME_PATH",
    "ASCEND_OPP_PATH",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)
_ASCEND: Final = "usr/local/Ascend"
_CANN_HOMES: Final = ("cann", "ascend-toolkit/latest")
_SET_ENV: Final = "set_env.sh"
_ACL_LIBRARIES: Final = ("libascendcl.so", "libacl_rt.so")
_DEVICE_FILE: Final = re.compile(r"v?davinci\d+|davinci_manager|devmm_svm|hisi_hdc", re.ASCII)
_DRIVER_VERSION: Final = re.compile(r"^Version=(\S+)", re.MULTILINE)
_NVIDIA_VERSION: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d[\d.]*)")
_NVIDIA_SMI: Final = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader")


def read_machine(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Machine:
    """Read the machine below `root` and import the modules with this Python.

    Blocks until all imports have ended, up to a minute for each.
    """
    # Two at a time, because each child process imports a large library.
    with ThreadPoolExecutor(max_workers=2) as threads:
        imports = dict(
            zip(CHECKED_MODULES, threads.map(module_facts, CHECKED_MODULES), strict=True)
        )
    service_folder = runtime_folder(environment, os.geteuid())
    return Machine(
        python=sys.version_info[:3],
        user=_user(),
        groups=frozenset(filter(None, map(_group_name, {os.getegid(), *os.getgroups()}))),
        environment={name: environment[name] for name in VARIABLES if name in environment},
        packages={
            re.sub(r"[-_.]+", "-", each.name).lower(): each.version
            for each in distributions()
            if each.name
        },
        imports=imports,
        npu_driver=_version(root / _ASCEND / "driver/version.info", _DRIVER_VERSION),
        npu_smi=run_command(["npu-smi", "info"]),
        device_files=_device_files(root / "dev"),
        cann=_cann(root, environment),
        atc=shutil.which("atc"),
        acl_folders=_acl_folders(environment),
        memory=read_limits(root),
        shared_memory=_shared_memory(root / "dev/shm"),
        service_folder=str(service_folder),
        service_fault=_service_fault(service_folder),
        nvidia_driver=_version(root / "proc/driver/nvidia/version", _NVIDIA_VERSION),
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


def _version(file: Path, pattern: re.Pattern[str]) -> str | None:
    """Return the version in a driver's file: None without the file, "" without a match."""
    text = read_text_or_none(file)
    if text is None:
        return None
    match = pattern.search(text)
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
    configured = environment.get("ASCEND_HOME_PATH")
    homes = [Path(configured)] if configured else [root / _ASCEND / home for home in _CANN_HOMES]
    if not configured and "HOME" in environment:  # the default of an installation without root
        homes += [Path(environment["HOME"]) / "Ascend" / home for home in _CANN_HOMES]
    home = next((each for each in homes if each.is_dir()), None)
    if home is None:
        return None
    folder = next((each for each in (home, home.parent) if (each / _SET_ENV).is_file()), home)
    return Cann(
        home=str(home),
        version=cann_version(home),
        set_env=str(folder / _SET_ENV),
        sourced=bool(configured) and "ASCEND_OPP_PATH" in environment,
    )


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
    """Return why no service can start in the folder, which is not created here; "" if one can."""
    try:
        found = folder.stat(follow_symlinks=False)
    except FileNotFoundError:
        writable = os.access(folder.parent, os.W_OK | os.X_OK)
        return "" if writable else f"{folder.parent} is not writable"
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not mode & 0o077:
        return ""
    return f"{folder} belongs to user {found.st_uid} and has mode {mode:04o}"


def _nvidia_smi() -> ChildResult:
    result = run_command(_NVIDIA_SMI)
    if result.outcome is not Outcome.DONE:
        return result
    gpus = (line.partition(",") for line in result.stdout.splitlines() if line.strip())
    return ChildResult(Outcome.DONE, {number.strip(): rest.strip() for number, _, rest in gpus})


# The code that runs after the import of each module. All values of `facts` are texts.
_FACTS: Final[Mapping[str, str]] = {
    "numpy": "facts = {}",
    "onnxruntime": """
import ctypes, pathlib
facts = {"providers": ", ".join(module.get_available_providers())}
if "CUDAExecutionProvider" in facts["providers"]:
    # Builds with CUDA always list the provider. Its library loads only if CUDA is installed.
    folder = pathlib.Path(module.__file__).parent / "capi"
    getattr(module, "preload_dlls", lambda: None)()  # as the engine does
    try:
        for name in ("shared", "cuda"):
            file = folder / f"libonnxruntime_providers_{name}.so"
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        facts["cuda_error"] = str(error)
""",
    "torch": """
facts = {"cuda": str(module.version.cuda or "")}
if facts["cuda"]:
    facts["cuda_devices"] = str(module.cuda.device_count())
""",
    # init and get_device_count take no device memory. 100002: init was already called.
    "acl": """
facts = {"file": str(getattr(module, "__file__", "")), "soc": ""}
code = module.init()
count = 0
if code in (0, 100002):
    facts["soc"] = module.get_soc_name() or "unknown"
    count, code = module.rt.get_device_count()
    module.finalize()
facts.update(code=str(code), devices=str(count))
""",
    "torch_npu": "facts = {}",
    "ge": """
from ge_runtime.npu.driver.installation import GE_PY_MODULES, missing_names
modules = {name: importlib.import_module(each) for name, each in GE_PY_MODULES.items()}
facts = {"file": str(module.__file__), "lacking": ", ".join(missing_names(modules))}
""",
    "reference_server": """
from reference_server.core.profiles import NEWEST, V2_51
facts = {"default": f"tritonserver {NEWEST.version} ({NEWEST.name})", "proven": V2_51.name}
""",
}
CHECKED_MODULES: Final = tuple(_FACTS)

_MARK: Final = "imported: "
"""Start of the line with the facts; libraries may print other lines."""

_PROGRAM: Final = f"""
import importlib.util, json, os, sys
sys.path[:] = filter(None, sys.path)  # do not import from the current folder
facts = None
try:
    if importlib.util.find_spec(sys.argv[1]) is not None:
        module = importlib.import_module(sys.argv[1])
        exec(sys.argv[2])
except SystemExit as end:  # old torch_npu without CANN exits with code 0
    sys.exit(end.code or 1)
print("\\n{_MARK}" + json.dumps(facts), flush=True)
os._exit(0)  # skip the exit handlers of the libraries
"""


def module_facts(module: str, timeout_s: float = TIMEOUT_S) -> ChildResult:
    """Import one of CHECKED_MODULES in a child process and return its facts."""
    result = run_command([sys.executable, "-c", _PROGRAM, module, _FACTS[module]], timeout_s)
    if result.outcome is not Outcome.DONE:
        return ChildResult(result.outcome, error=result.error)
    marked = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
    if not marked:
        return ChildResult(
            Outcome.FAILED, error="the process ended during the import with exit code 0"
        )
    facts = json.loads(marked[-1].removeprefix(_MARK))
    return ChildResult(Outcome.ABSENT) if facts is None else ChildResult(Outcome.DONE, facts)
