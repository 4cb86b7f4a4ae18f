"""CANN: packages are found through set_env.sh, broken ones are reported, the version is read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runtime.support.ascend import ENVIRONMENT, SITE
from runtime.support.fakes import forget

import ge_runtime
from ge_runtime.errors import NoDevice
from ge_runtime.npu.driver.atc import Atc
from ge_runtime.npu.driver.installation import (
    cann_version,
    import_cann_module,
    last_log_errors,
    open_ge,
)
from ge_runtime.npu.driver.pyacl import open_driver

pytestmark = pytest.mark.brute_force

PROGRAM = f"""
import importlib.util, sys
sys.path += {[str(Path(ge_runtime.__file__).parents[1]), str(SITE.parents[1])]!r}
from ge_runtime.npu.driver.installation import apply_pythonpath
before = list(sys.path)
apply_pythonpath()
apply_pythonpath()
assert sys.path[:len(before)] == before
print(importlib.util.find_spec("acl") is not None, len(sys.path) - len(before))
"""


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        # As Triton's model processes from Python 3.11 on.
        (["-I"], "True 1"),
        ([], "True 0"),
    ],
)
def test_folders_of_pythonpath_are_searched_last_and_once(options, printed):
    command = [sys.executable, *options, "-c", PROGRAM]
    done = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == printed


BROKEN = {
    "raise ImportError('libascendcl.so: cannot open')": "libascendcl.so: cannot open",
    "import ctypes; ctypes.CDLL('libgraph_no.so')": "OSError: libgraph_no.so: cannot open shared",
    # GE-PY's Python files of one release with the libraries of another.
    "import ctypes; ctypes.CDLL(None).GeApiWrapper_Tensor_ToHost": "AttributeError: .*undefined",
    "raise SystemError('initialization failed')": "SystemError: initialization failed",
    "import sys; sys.exit()": "SystemExit: ",
}
"""Code of a module that is imported: the error."""


@pytest.fixture(params=BROKEN)
def broken(request, tmp_path, monkeypatch):
    """Incomplete modules `acl` and `ge`; returns the expected error."""
    for name in ("acl", "ge"):
        (tmp_path / f"{name}.py").write_text(request.param)
        monkeypatch.delitem(sys.modules, name, raising=False)
    forget("ge")
    monkeypatch.syspath_prepend(tmp_path)
    for opener in (open_driver, open_ge):
        opener.cache_clear()
    yield BROKEN[request.param]
    for opener in (open_driver, open_ge):
        opener.cache_clear()


def test_half_an_installation_is_an_import_error_that_says_what_is_missing(broken):
    with pytest.raises(ImportError, match=broken):
        import_cann_module("acl")


@pytest.mark.parametrize(("opener", "module"), [(open_driver, "acl"), (open_ge, "ge")])
def test_half_an_installation_is_no_device_and_has_its_cure(broken, opener, module):
    with pytest.raises(NoDevice, match=rf"found no module `{module}.*\({broken}.*set_env.sh"):
        opener()


RUNNING = "# version: 1.0\nruntime_running_version=[7.6.0.1.220:8.0.0]\n"
INSTALLED = "package_name=Ascend-cann-toolkit\nversion=9.0.0\narch=aarch64\n"


@pytest.fixture
def home(tmp_path):
    """A function that creates a CANN installation with these files and `atc`."""
    (tmp_path / "atc").write_text("#!/bin/sh\n")
    (tmp_path / "atc").chmod(0o755)

    def write(files):
        for name, text in files.items():
            file = tmp_path / "cann" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path / "cann"

    return write


INFO = "aarch64-linux/ascend_toolkit_install.info"


@pytest.mark.parametrize(
    ("files", "version", "reported"),
    [
        ({"version.cfg": RUNNING}, "8.0.0", "# version: 1.0 runtime_running_version=["),
        ({INFO: INSTALLED}, "9.0.0", "9.0.0, atc "),
        ({"version.cfg": RUNNING, INFO: INSTALLED}, "8.0.0", "# version: 1.0 runtime_running_"),
        ({"version.cfg": "toolkit_running_version=[8.3.RC1]\n"}, "8.3.RC1", "toolkit_running_ver"),
        ({"version.cfg": "something else\n"}, None, "something else, atc "),
        ({"set_env.sh": ""}, None, "atc "),
    ],
)
def test_the_version_is_in_the_one_or_the_other_file(home, tmp_path, files, version, reported):
    folder = home(files)
    assert cann_version(folder) == version
    environment = {"PATH": str(tmp_path), "ASCEND_HOME_PATH": str(folder)}
    assert Atc.find(environment).identity.startswith(reported)


def test_a_newer_toolkit_is_another_compiler_though_its_atc_is_the_same_script(home, tmp_path):
    environment = {"PATH": str(tmp_path), "ASCEND_TOOLKIT_HOME": str(home({INFO: INSTALLED}))}
    before = Atc.find(environment).identity
    home({INFO: INSTALLED.replace("9.0.0", "9.1.0")})
    assert Atc.find(environment).identity != before


def test_without_a_toolkit_in_the_environment_no_file_is_taken_for_its(home, tmp_path, monkeypatch):
    monkeypatch.chdir(home({"version.cfg": RUNNING}))
    assert Atc.find({"PATH": str(tmp_path)}).identity.startswith("atc ")


def test_the_last_errors_of_this_process_are_read_from_canns_log(tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_PROCESS_LOG_PATH", str(tmp_path))
    assert last_log_errors() == ""
    folder = tmp_path / "debug" / "plog"
    folder.mkdir(parents=True)
    (folder / f"plog-{os.getpid() + 1}_1.log").write_text("[ERROR] of another process\n")
    assert last_log_errors() == ""
    log = folder / f"plog-{os.getpid()}_1.log"
    lines = [*(f"[ERROR] RUNTIME: {number}" for number in range(5000)), "[INFO] the end"]
    log.write_text("\n".join(lines))
    expected = [f"last errors in {log}:", *lines[-4:-1]]
    assert last_log_errors() == "\n".join(expected)
