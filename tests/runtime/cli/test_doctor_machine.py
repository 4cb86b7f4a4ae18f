"""Facts that are read from a machine: files below a root, and imports in child processes."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from runtime.support.ascend import ENVIRONMENT
from runtime.support.fakes import FAKES

from ge_runtime.child_process import ChildResult, Outcome
from ge_runtime.cli.doctor.machine import Cann, module_facts, read_machine

pytestmark = pytest.mark.brute_force

# From a machine with CANN 8.0.0.
VERSION_CFG = """# version: 1.0
runtime_running_version=[7.6.0.1.220:8.0.0]
compiler_running_version=[7.6.0.1.220:8.0.0]
toolkit_running_version=[7.6.0.1.220:8.0.0]
runtime_upgrade_version=[7.6.0.1.220:8.0.0]
"""
NVIDIA_VERSION = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)
GCC version:  gcc version 12.3.0
"""


def write(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture(autouse=True)
def no_packages(monkeypatch):
    """Skip installed packages and their imports in tests that only read files."""
    monkeypatch.setattr("ge_runtime.cli.doctor.machine.CHECKED_MODULES", ())
    monkeypatch.setattr("ge_runtime.cli.doctor.machine.distributions", lambda: ())


@pytest.fixture
def root(tmp_path):
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tmp_path


def test_a_bare_machine_has_nothing(root, monkeypatch):
    monkeypatch.setenv("PATH", str(root))
    machine = read_machine(root, {})
    assert (machine.npu_driver, machine.cann, machine.nvidia_driver) == (None, None, None)
    assert (machine.device_files, machine.acl_folders, machine.environment) == ((), (), {})
    assert machine.npu_smi.outcome is Outcome.ABSENT
    assert machine.python == sys.version_info[:3]
    assert machine.shared_memory is not None
    assert 0 < machine.shared_memory.free_bytes <= machine.shared_memory.total_bytes
    (root / "dev/shm").rmdir()
    assert read_machine(root, {}).shared_memory is None


@pytest.mark.parametrize(
    ("ascend", "nvidia", "versions"),
    [
        (
            "Version=25.0.rc1\nascendhal_version=7.35.19\n",
            NVIDIA_VERSION,
            ("25.0.rc1", "570.86.15"),
        ),
        ("25.0.rc1\n", "NVRM version: another format\n", ("", "")),
    ],
)
def test_versions_of_drivers(root, ascend, nvidia, versions):
    write(root / "usr/local/Ascend/driver/version.info", ascend)
    write(root / "proc/driver/nvidia/version", nvidia)
    machine = read_machine(root, {})
    assert (machine.npu_driver, machine.nvidia_driver) == versions


def test_only_ascend_device_files_are_listed(root):
    for name in ("davinci1", "davinci0", "vdavinci100", "davinci_manager", "hisi_hdc", "null"):
        write(root / "dev" / name)
    (root / "dev/davinci0").chmod(0)
    machine = read_machine(root, {})
    assert [each.path for each in machine.device_files] == [
        "/dev/davinci0",
        "/dev/davinci1",
        "/dev/davinci_manager",
        "/dev/hisi_hdc",
        "/dev/vdavinci100",
    ]
    # root may write files of any mode.
    assert machine.device_files[0].usable == (os.geteuid() == 0)
    assert machine.device_files[1].usable
    assert {each.group for each in machine.device_files} <= machine.groups


def test_users_and_groups_without_a_name_are_numbers(root, monkeypatch):
    def unnamed(number):
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unnamed)
    monkeypatch.setattr("grp.getgrgid", unnamed)
    write(root / "dev/davinci0")
    machine = read_machine(root, {})
    assert (machine.user, machine.groups) == (str(os.geteuid()), frozenset())
    assert machine.device_files[0].group == str((root / "dev/davinci0").stat().st_gid)


@pytest.mark.parametrize("parent", ["usr/local/Ascend", "home/triton/Ascend"])
@pytest.mark.parametrize("place", ["cann", "ascend-toolkit/latest"])
def test_cann_is_found_in_its_default_folders(root, parent, place):
    home = root / parent / place
    write(home / "version.cfg", VERSION_CFG)
    script = write(home.parent / "set_env.sh")
    environment = {"HOME": str(root / "home/triton")}
    found = read_machine(root, environment).cann
    assert found == Cann(str(home), "8.0.0", str(script), sourced=False)
    assert read_machine(root, {**environment, "ASCEND_HOME_PATH": str(root / "x")}).cann is None
    write(root / "usr/local/Ascend/cann/version.cfg", VERSION_CFG)
    assert read_machine(root, environment).cann.home == str(root / "usr/local/Ascend/cann")


def test_the_environment_overrides_the_default_folders_of_cann(root):
    write(root / "usr/local/Ascend/cann/version.cfg", VERSION_CFG)
    home = write(root / "opt/cann/version.cfg", "toolkit_running_version=[8.3.RC1]\n").parent
    script = write(home / "set_env.sh")
    sourced = {"ASCEND_HOME_PATH": str(home), "ASCEND_OPP_PATH": str(home / "opp")}
    machine = read_machine(root, sourced)
    assert machine.cann == Cann(str(home), "8.3.RC1", str(script), sourced=True)
    assert machine.environment == sourced
    (home / "version.cfg").unlink()
    half = read_machine(root, {"ASCEND_HOME_PATH": str(home)}).cann
    assert half == Cann(str(home), None, str(script), sourced=False)


INSTALL_INFO = """package_name=Ascend-cann-toolkit
version=9.0.0
innerversion=V100R001C25SPC001B218
arch=aarch64
path=/usr/local/Ascend/cann-9.0.0/aarch64-linux
"""


def test_the_version_of_cann_without_version_cfg_comes_from_its_install_info(root):
    home = root / "usr/local/Ascend/cann"
    info = write(home / "aarch64-linux/ascend_toolkit_install.info", INSTALL_INFO)
    assert read_machine(root, {}).cann.version == "9.0.0"
    write(home / "version.cfg", VERSION_CFG)
    assert read_machine(root, {}).cann.version == "8.0.0"
    write(home / "version.cfg", "something else\n")
    assert read_machine(root, {}).cann.version == "9.0.0"
    info.write_text("")
    assert read_machine(root, {}).cann.version is None


def test_folders_with_acls_library_are_listed_in_order(root):
    folders = [write(root / name / "libascendcl.so").parent for name in ("stub", "lib64")]
    path = f"{root}:{folders[1]}::{root}/gone:{folders[0]}"
    machine = read_machine(root, {"LD_LIBRARY_PATH": path})
    assert machine.acl_folders == (str(folders[1]), str(folders[0]))


def test_the_service_folder_must_belong_to_this_user_only(root):
    environment = {"XDG_RUNTIME_DIR": str(root)}
    folder = root / "ge_runtime"
    machine = read_machine(root, environment)
    assert (machine.service_folder, machine.service_fault) == (str(folder), "")
    assert not folder.exists()
    folder.mkdir(0o700)
    assert read_machine(root, environment).service_fault == ""
    folder.chmod(0o755)
    expected = f"{folder} belongs to user {os.geteuid()} and has mode 0755"
    assert read_machine(root, environment).service_fault == expected


def test_package_names_are_normalized(root, monkeypatch):
    found = [SimpleNamespace(name=name, version="1.0") for name in ("numpy", "GE_Py.x", None)]
    monkeypatch.setattr("ge_runtime.cli.doctor.machine.distributions", lambda: found)
    assert read_machine(root, {}).packages == {"numpy": "1.0", "ge-py-x": "1.0"}


@pytest.fixture
def acl(tmp_path, monkeypatch):
    """Return a function that installs a module `acl` with the given source."""

    def make(text):
        write(tmp_path / "modules/acl.py", text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))

    return make


ACL = """
class rt:
    @staticmethod
    def get_device_count():
        return {count}, {ret}
def init():
    return {init}
def get_soc_name():
    return "Ascend910B3"
def finalize():
    return 0
print("a line from the module")
"""


@pytest.mark.parametrize(
    ("init", "ret", "facts"),
    [
        (0, 0, {"soc": "Ascend910B3", "code": "0", "devices": "2"}),
        (100002, 0, {"soc": "Ascend910B3", "code": "0", "devices": "2"}),
        (0, 207006, {"soc": "Ascend910B3", "code": "207006", "devices": "2"}),
        (100039, 0, {"soc": "", "code": "100039", "devices": "0"}),
    ],
)
def test_facts_of_acl(acl, tmp_path, init, ret, facts):
    acl(ACL.format(count=2, ret=ret, init=init))
    file = str(tmp_path / "modules/acl.py")
    assert module_facts("acl") == ChildResult(Outcome.DONE, {"file": file, **facts})


# torch_npu up to 2.1 exits like this without CANN.
OLD_TORCH_NPU = """
import sys, traceback
try:
    raise ImportError("libhccl.so: no such file")
except ImportError:
    traceback.print_exc()
    sys.exit()
"""


def test_output_and_exit_handlers_of_a_module_are_ignored(acl):
    """CANN prints logs with ASCEND_SLOG_PRINT_TO_STDOUT=1."""
    ending = "import atexit, os\natexit.register(os.abort)\natexit.register(print, 'bye')\n"
    acl(ending + ACL.format(count=2, ret=0, init=0) + "print('imported: {}')\n")
    trial = module_facts("acl")
    assert (trial.outcome, trial.facts["devices"]) == (Outcome.DONE, "2")


def test_modules_in_the_current_folder_are_not_imported(tmp_path, monkeypatch):
    write(tmp_path / "acl.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert module_facts("acl") == ChildResult(Outcome.ABSENT)


@pytest.mark.parametrize(
    ("text", "trial"),
    [
        (
            "raise ImportError('libascend_hal.so: cannot open shared object file')",
            ChildResult(
                Outcome.FAILED,
                error="ImportError: libascend_hal.so: cannot open shared object file",
            ),
        ),
        ("import os; os.abort()", ChildResult(Outcome.CRASHED, error="signal 6")),
        ("import os; os._exit(3)", ChildResult(Outcome.FAILED, error="exit code 3")),
        (
            "import os; os._exit(0)",
            ChildResult(
                Outcome.FAILED, error="the process ended during the import with exit code 0"
            ),
        ),
        (OLD_TORCH_NPU, ChildResult(Outcome.FAILED, error="ImportError: libhccl.so: no such file")),
        (
            "raise ImportError('libhccl.so: no such file\\n[ERROR] 2026-01-01 ERR00008 PTA')",
            ChildResult(Outcome.FAILED, error="ImportError: libhccl.so: no such file"),
        ),
    ],
)
def test_outcomes_of_failing_imports(acl, text, trial):
    acl(text)
    assert module_facts("acl") == trial


def test_facts_of_ge_py(monkeypatch, tmp_path):
    folders = [FAKES, *ENVIRONMENT["PYTHONPATH"].split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    trial = module_facts("ge")
    assert trial.outcome is Outcome.DONE, trial
    assert trial.facts == {"file": str(FAKES / "ge" / "__init__.py"), "lacking": ""}
    write(tmp_path / "ge/__init__.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert module_facts("ge") == ChildResult(
        Outcome.FAILED, error="ModuleNotFoundError: No module named 'ge.ge_global'"
    )


def test_an_import_that_hangs_times_out(acl):
    acl("import threading; threading.Event().wait()")
    assert module_facts("acl", timeout_s=0.2) == ChildResult(
        Outcome.TIMED_OUT, error="no end after 0.2 s"
    )


def test_facts_of_onnxruntime():
    onnxruntime = module_facts("onnxruntime")
    assert onnxruntime.outcome is Outcome.DONE
    assert "CPUExecutionProvider" in onnxruntime.facts["providers"]


def test_gpus_come_from_nvidia_smi(root, tmp_path, monkeypatch):
    line = "0, NVIDIA H100 80GB HBM3, 81559 MiB"
    script = write(tmp_path / "bin/nvidia-smi", f"#!/bin/sh\necho '{line}'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    machine = read_machine(root, {})
    assert machine.nvidia_smi == ChildResult(
        Outcome.DONE, {"0": "NVIDIA H100 80GB HBM3, 81559 MiB"}
    )
