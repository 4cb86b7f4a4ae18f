"""Which CANN it is: told by its files, and part of what tells its compiler from others."""

import pytest

from ge_runtime.ascend.atc import Atc
from ge_runtime.ascend.installation import cann_version

RUNNING = "# version: 1.0\nruntime_running_version=[7.6.0.1.220:8.0.0]\n"
INSTALLED = "package_name=Ascend-cann-toolkit\nversion=9.0.0\narch=aarch64\n"


@pytest.fixture
def home(tmp_path):
    """A function: the folder of a CANN with these files, beside which `atc` lies."""
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
    ("files", "version", "told"),
    [
        ({"version.cfg": RUNNING}, "8.0.0", "# version: 1.0 runtime_running_version=["),
        ({INFO: INSTALLED}, "9.0.0", "9.0.0, atc "),
        ({"version.cfg": RUNNING, INFO: INSTALLED}, "8.0.0", "# version: 1.0 runtime_running_"),
        ({"version.cfg": "toolkit_running_version=[8.3.RC1]\n"}, "8.3.RC1", "toolkit_running_ver"),
        ({"version.cfg": "something else\n"}, None, "something else, atc "),
        ({"set_env.sh": ""}, None, "atc "),
    ],
)
def test_the_version_is_in_the_one_or_the_other_file(home, tmp_path, files, version, told):
    folder = home(files)
    assert cann_version(folder) == version
    environment = {"PATH": str(tmp_path), "ASCEND_HOME_PATH": str(folder)}
    assert Atc.find(environment).identity.startswith(told)


def test_a_newer_toolkit_is_another_compiler_though_its_atc_is_the_same_script(home, tmp_path):
    environment = {"PATH": str(tmp_path), "ASCEND_TOOLKIT_HOME": str(home({INFO: INSTALLED}))}
    before = Atc.find(environment).identity
    home({INFO: INSTALLED.replace("9.0.0", "9.1.0")})
    assert Atc.find(environment).identity != before


def test_without_a_toolkit_in_the_environment_no_file_is_taken_for_its(home, tmp_path, monkeypatch):
    monkeypatch.chdir(home({"version.cfg": RUNNING}))
    assert Atc.find({"PATH": str(tmp_path)}).identity.startswith("atc ")
