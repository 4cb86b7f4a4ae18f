"""What is read of a machine: files below a root, and modules in processes of their own."""

import os
import sys
from pathlib import Path

import pytest
from runtime.support.ascend import ENVIRONMENT
from runtime.support.fakes import FAKES

from ge_runtime.cli.doctor.machine import Cann, read_machine
from ge_runtime.cli.doctor.trials import Outcome, Trial, run_command, try_import

pytestmark = pytest.mark.brute_force

# As `cat` shows it on a machine with CANN 8.0.0.
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
def no_trials(monkeypatch):
    """Reading files does not wait for imports."""
    monkeypatch.setattr("ge_runtime.cli.doctor.machine.TRIED_MODULES", ())


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


def test_no_shared_memory_is_none(root):
    (root / "dev/shm").rmdir()
    assert read_machine(root, {}).shared_memory is None


@pytest.mark.parametrize(
    ("text", "version"),
    [("Version=25.0.rc1\nascendhal_version=7.35.19\n", "25.0.rc1"), ("25.0.rc1\n", "")],
)
def test_the_drivers_version_is_read(root, text, version):
    write(root / "usr/local/Ascend/driver/version.info", text)
    assert read_machine(root, {}).npu_driver == version


@pytest.mark.parametrize(
    ("text", "version"),
    [(NVIDIA_VERSION, "570.86.15"), ("NVRM version: of another kind\n", "")],
)
def test_nvidias_version_is_read(root, text, version):
    write(root / "proc/driver/nvidia/version", text)
    assert read_machine(root, {}).nvidia_driver == version


def test_device_files_are_those_of_ascend(root):
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
    # root may write what nobody may.
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


@pytest.mark.parametrize("place", ["cann", "ascend-toolkit/latest"])
def test_cann_is_found_where_it_is_installed(root, place):
    home = root / "usr/local/Ascend" / place
    write(home / "version.cfg", VERSION_CFG)
    script = write(home.parent / "set_env.sh")
    found = read_machine(root, {}).cann
    assert found == Cann(str(home), "8.0.0", str(script), sourced=False)


def test_cann_is_where_the_environment_says(root):
    write(root / "usr/local/Ascend/cann/version.cfg", VERSION_CFG)
    home = write(root / "opt/cann/version.cfg", "toolkit_running_version=[8.3.RC1]\n").parent
    script = write(home / "set_env.sh")
    sourced = {"ASCEND_HOME_PATH": str(home), "ASCEND_OPP_PATH": str(home / "opp")}
    machine = read_machine(root, sourced)
    assert machine.cann == Cann(str(home), "8.3.RC1", str(script), sourced=True)
    assert machine.environment == sourced
    half = read_machine(root, {"ASCEND_HOME_PATH": str(home)}).cann
    assert half is not None
    assert not half.sourced
    assert read_machine(root, {"ASCEND_HOME_PATH": str(root / "gone")}).cann is None


def test_cann_without_a_version_is_cann(root):
    home = write(root / "opt/cann/set_env.sh").parent
    found = read_machine(root, {"ASCEND_HOME_PATH": str(home)}).cann
    assert found is not None
    assert found.version is None


INSTALL_INFO = """package_name=Ascend-cann-toolkit
version=9.0.0
innerversion=V100R001C25SPC001B218
arch=aarch64
path=/usr/local/Ascend/cann-9.0.0/aarch64-linux
"""


def test_cann_without_a_version_cfg_is_of_the_version_that_its_installer_wrote_down(root):
    home = root / "usr/local/Ascend/cann"
    info = write(home / "aarch64-linux/ascend_toolkit_install.info", INSTALL_INFO)
    found = read_machine(root, {}).cann
    assert found is not None
    assert found.version == "9.0.0"
    write(home / "version.cfg", VERSION_CFG)
    assert read_machine(root, {}).cann.version == "8.0.0"
    write(home / "version.cfg", "something else\n")
    assert read_machine(root, {}).cann.version == "9.0.0"
    info.write_text("")
    assert read_machine(root, {}).cann.version is None


@pytest.mark.parametrize("place", ["cann", "ascend-toolkit/latest"])
def test_cann_of_a_user_is_found_in_the_users_home(root, place):
    home = root / "home/triton/Ascend" / place
    write(home / "version.cfg", VERSION_CFG)
    script = write(home.parent / "set_env.sh")
    environment = {"HOME": str(root / "home/triton")}
    found = read_machine(root, environment).cann
    assert found == Cann(str(home), "8.0.0", str(script), sourced=False)
    assert read_machine(root, {**environment, "ASCEND_HOME_PATH": str(root / "x")}).cann is None
    write(root / "usr/local/Ascend/cann/version.cfg", VERSION_CFG)
    assert read_machine(root, environment).cann.home == str(root / "usr/local/Ascend/cann")


def test_folders_with_acls_library_are_listed_in_order(root):
    folders = [write(root / name / "libascendcl.so").parent for name in ("stub", "lib64")]
    path = f"{root}:{folders[1]}::{root}/gone:{folders[0]}"
    machine = read_machine(root, {"LD_LIBRARY_PATH": path})
    assert machine.acl_folders == (str(folders[1]), str(folders[0]))


def test_the_services_folder_is_this_users_alone(root):
    environment = {"XDG_RUNTIME_DIR": str(root)}
    folder = root / "ge_runtime"
    machine = read_machine(root, environment)
    assert (machine.service_folder, machine.service_fault) == (str(folder), "")
    assert not folder.exists()
    folder.mkdir(0o700)
    assert read_machine(root, environment).service_fault == ""
    folder.chmod(0o755)
    expected = f"{folder} is of user {os.geteuid()} with mode 0755"
    assert read_machine(root, environment).service_fault == expected


def test_packages_are_named_in_one_way(root):
    packages = read_machine(root, {}).packages
    assert packages["numpy"]
    assert all(name == name.lower() and "_" not in name for name in packages)


@pytest.fixture
def acl(tmp_path, monkeypatch):
    """A function that makes `acl` a module of this text."""

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
print("a module that talks")
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
def test_acl_is_asked_for_its_devices(acl, tmp_path, init, ret, facts):
    acl(ACL.format(count=2, ret=ret, init=init))
    file = str(tmp_path / "modules/acl.py")
    assert try_import("acl") == Trial(Outcome.DONE, {"file": file, **facts})


# As torch_npu up to 2.1 ends where CANN is missing.
TORCH_NPU_OF_OLD = """
import sys, traceback
try:
    raise ImportError("libhccl.so: no such file")
except ImportError:
    traceback.print_exc()
    sys.exit()
"""


def test_what_a_module_prints_and_does_as_it_ends_does_not_matter(acl):
    """As CANN's logs do with ASCEND_SLOG_PRINT_TO_STDOUT=1."""
    ending = "import atexit, os\natexit.register(os.abort)\natexit.register(print, 'bye')\n"
    acl(ending + ACL.format(count=2, ret=0, init=0) + "print('imported: {}')\n")
    trial = try_import("acl")
    assert (trial.outcome, trial.facts["devices"]) == (Outcome.DONE, "2")


def test_a_module_that_is_not_there_is_absent(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert try_import("acl") == Trial(Outcome.ABSENT)


def test_a_module_in_the_current_folder_does_not_count(tmp_path, monkeypatch):
    write(tmp_path / "acl.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert try_import("acl") == Trial(Outcome.ABSENT)


@pytest.mark.parametrize(
    ("text", "trial"),
    [
        (
            "raise ImportError('libascend_hal.so: cannot open shared object file')",
            Trial(
                Outcome.FAILED,
                error="ImportError: libascend_hal.so: cannot open shared object file",
            ),
        ),
        ("import os; os.abort()", Trial(Outcome.DIED, error="signal 6")),
        ("import os; os._exit(3)", Trial(Outcome.FAILED, error="exit code 3")),
        (
            "import os; os._exit(0)",
            Trial(Outcome.FAILED, error="the process ended within the import, with code 0"),
        ),
        (TORCH_NPU_OF_OLD, Trial(Outcome.FAILED, error="ImportError: libhccl.so: no such file")),
        (
            "raise ImportError('libhccl.so: no such file\\n[ERROR] 2026-01-01 ERR00008 PTA')",
            Trial(Outcome.FAILED, error="ImportError: libhccl.so: no such file"),
        ),
    ],
)
def test_a_module_that_breaks_breaks_its_own_process(acl, text, trial):
    acl(text)
    assert try_import("acl") == trial


def test_ge_py_is_asked_for_all_that_is_used_of_it(monkeypatch, tmp_path):
    folders = [FAKES, *ENVIRONMENT["PYTHONPATH"].split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    trial = try_import("ge")
    assert trial.outcome is Outcome.DONE, trial
    assert trial.facts == {"file": str(FAKES / "ge" / "__init__.py"), "lacking": ""}
    write(tmp_path / "ge/__init__.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert try_import("ge") == Trial(
        Outcome.FAILED, error="ModuleNotFoundError: No module named 'ge.ge_global'"
    )


def test_a_module_that_hangs_is_ended(acl):
    acl("import threading; threading.Event().wait()")
    assert try_import("acl", timeout_s=0.2) == Trial(Outcome.HUNG, error="no end after 0.2 s")


def test_what_a_hanging_command_started_is_ended_with_it(tmp_path):
    """Its child has the pipes open, and would be waited for."""
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    script = f"exec 3> {held}; (sleep 30; echo late >&3) & wait"
    assert run_command(["sh", "-c", script], timeout_s=0.5)[0].outcome is Outcome.HUNG
    os.set_blocking(reader, True)
    assert os.read(reader, 9) == b""  # nobody is left who could write
    os.close(reader)


def test_the_engines_here_say_what_they_are():
    onnxruntime = try_import("onnxruntime")
    assert onnxruntime.outcome is Outcome.DONE
    assert "CPUExecutionProvider" in onnxruntime.facts["providers"]


def test_a_command_that_cannot_be_run_failed(tmp_path):
    file = write(tmp_path / "npu-smi")
    trial, printed = run_command([str(file)])
    assert (trial.outcome, printed) == (Outcome.FAILED, "")
    assert "Permission denied" in trial.error


def test_a_commands_last_line_is_its_error(tmp_path):
    script = write(tmp_path / "npu-smi", "#!/bin/sh\necho first\necho it is broken\nexit 1\n")
    script.chmod(0o755)
    assert run_command([str(script)])[0] == Trial(Outcome.FAILED, error="it is broken")


def test_gpus_are_those_of_nvidia_smi(root, tmp_path, monkeypatch):
    line = "0, NVIDIA H100 80GB HBM3, 81559 MiB"
    script = write(tmp_path / "bin/nvidia-smi", f"#!/bin/sh\necho '{line}'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    machine = read_machine(root, {})
    assert machine.nvidia_smi == Trial(Outcome.DONE, {"0": "NVIDIA H100 80GB HBM3, 81559 MiB"})
