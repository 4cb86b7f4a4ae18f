"""The fixture `ascend_card` in the tests of a program that imports `acl`, run by pytest."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ascend_simulator

PROGRAM = """\
def begin(size):
    import acl
    assert acl.init() == 0
    assert acl.rt.set_device(0) == 0
    ptr, ret = acl.rt.malloc(size, 0)
    return ptr, ret

def release(ptr):
    import acl
    try:
        acl.rt.free(ptr)
    except Exception:
        pass

def end():
    import acl
    assert acl.rt.reset_device(0) == 0
    assert acl.finalize() == 0
"""
TESTS = """\
import shutil, subprocess
import program, pytest

@pytest.mark.parametrize("n", range(2))
def test_right(ascend_card, n):
    ptr, ret = program.begin(64)
    program.release(ptr)
    program.end()

@pytest.mark.ascend_card(hbm_mib=1)
def test_settings(ascend_card):
    assert program.begin(2 << 20) == (0, 207001)
    program.end()

def test_atc(ascend_card):
    assert subprocess.run(["atc", "--help"], capture_output=True).returncode == 0

def test_swallowed(ascend_card):
    ptr, ret = program.begin(64)
    program.release(ptr)
    program.release(ptr)
    program.end()

def test_leaves(ascend_card):
    program.begin(64)

def test_raised(ascend_card):
    program.begin(64)
    ascend_card.rt.free(1 << 40)

def test_own_failure(ascend_card):
    program.begin(64)
    assert False

def test_without():
    import sys
    assert "acl" not in sys.modules
"""


@pytest.fixture
def outcome(tmp_path):
    """Run pytest on files; return its code and its output."""

    def run(files, *arguments):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "ascend_simulator.pytest_plugin", *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            },
            capture_output=True,
            text=True,
            timeout=100,
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.brute_force
def test_each_test_has_its_own_card_and_fails_on_violations_and_leftovers(outcome):
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    (shown,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    files = {"program.py": PROGRAM, "test_it.py": TESTS, "test_page.py": shown}
    code, output = outcome(files, "-q", "-rA", "--strict-markers", "-W", "error")
    assert code == 1, output
    results = {line for line in output.splitlines() if line[:6] in ("PASSED", "FAILED", "ERROR ")}
    assert {line.partition(" - ")[0].replace("test_it.py::test_", "") for line in results} == {
        "PASSED test_page.py::test_of_the_page",
        *("PASSED right[0]", "PASSED right[1]", "PASSED settings", "PASSED atc", "PASSED without"),
        *("PASSED swallowed", "ERROR swallowed", "PASSED leaves", "ERROR leaves"),
        *("FAILED raised", "FAILED own_failure"),
    }
    assert "Ascend simulator, mode strict: 1 violation" in output
    assert "[memory.bad-free] acl.rt.free, program.py:11 in release\n" in output
    left = "<device 0xde000000000040, 64 bytes, device 0>, device 0 set"
    assert f"Ascend simulator: left on the card: {left}" in output


@pytest.mark.brute_force
def test_pytest_ini_enables_module_level_imports_of_acl(outcome):
    files = {
        "pytest.ini": "[pytest]\nascend_simulator = true\n",
        "test_it.py": "import acl\n\ndef test_it(ascend_card):\n    assert acl is ascend_card\n",
    }
    code, output = outcome(files, "-q")
    assert code == 0, output


@pytest.mark.brute_force
def test_another_acl_is_not_taken_for_the_simulators(outcome):
    files = {"acl.py": "", "test_it.py": "import acl\n\ndef test_it(ascend_card):\n    pass\n"}
    code, output = outcome(files, "-q")
    assert code == 1
    assert "ascend_card: acl was imported from" in output


@pytest.mark.brute_force
def test_the_plugin_loads_nothing_but_itself():
    script = "import sys, ascend_simulator.pytest_plugin; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE)
    loaded = set(done.stdout.decode().split())
    assert not loaded & {"acl", "numpy", "onnxruntime", "ascend_simulator.process"}
    assert "ascend_simulator.pytest_plugin" in loaded


def test_the_package_has_its_names_and_no_others():
    assert set(ascend_simulator.__all__) == set(ascend_simulator._HOMES)
    for name in ascend_simulator.__all__:
        assert getattr(ascend_simulator, name).__doc__ or name == "RULES"
    with pytest.raises(AttributeError, match="'ascend_simulator' has no attribute 'nothing'"):
        ascend_simulator.nothing  # noqa: B018
