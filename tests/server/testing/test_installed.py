"""The installed package in other projects: an importable module, fixtures, an example."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from server.support.model_folders import write_model

from reference_server.testing import open_model

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "test_your_model"

#: Like a model process of Triton: half of the module is built in, the rest is last in the path.
AS_IN_TRITON = """
    import sys

    sys.builtin_module_names += ("c_python_backend_utils",)
    sys.path.append(sys.argv[1])
    import triton_python_backend_utils as pb_utils

    assert sys.modules["triton_python_backend_utils"] is pb_utils
    print(pb_utils.whose, "reference_server" in sys.modules)
"""
FAILING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return missing
"""
STOPPING = FAILING.replace("return missing", "breakpoint(); return missing")
TEST_OF_IT = """
    def test_it(triton_model):
        triton_model("failing").infer({"X": [1, 2]})
"""


def run(*command, folder, typed=""):
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        input=typed,
        capture_output=True,
        text=True,
        check=False,
    )


def pytest_in(folder, *options, typed=""):
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *options)
    return run(*command, folder=folder, typed=typed)


@pytest.mark.brute_force
def test_a_model_can_be_imported_like_any_module(folder):
    command = "import model; print(model.TritonPythonModel.__module__)"
    ran = run("-c", command, folder=folder / "identity" / "1")
    assert ran.stdout == "model\n", ran.stderr


def test_models_under_test_get_the_module_of_their_instance(tmp_path):
    source = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                y = pb_utils.Tensor("Y", np.array([pb_utils.get_model_dir()], object))
                return [pb_utils.InferenceResponse([y]) for _ in requests]
    """
    config = 'output { name: "Y" data_type: TYPE_STRING dims: [1] }'
    config += 'input { name: "X" data_type: TYPE_FP32 dims: [1] optional: true }'
    folder = write_model(tmp_path, "where", config, source)
    with open_model(folder) as model:
        report = model.infer({}).outputs["Y"].item()
    assert report.decode() == str(folder / "1")


def test_in_a_model_process_of_triton_the_package_is_not_used(tmp_path):
    (tmp_path / "triton_python_backend_utils.py").write_text("whose = 'Triton'")
    ran = run("-c", textwrap.dedent(AS_IN_TRITON), str(tmp_path), folder="/")
    assert ran.stdout == "Triton False\n", ran.stderr


@pytest.mark.slow
def test_the_example_passes_as_a_separate_project(tmp_path):
    project = shutil.copytree(
        EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")
    )
    config = project / "model_repository" / "word_count" / "config.pbtxt"
    text = config.read_text()
    assert "_delay_microseconds: 100000 " in text
    # So that three requests form a batch on a busy machine, too.
    config.write_text(text.replace("_delay_microseconds: 100000 ", "_delay_microseconds: 1000000 "))
    ran = pytest_in(project)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout


@pytest.mark.slow
def test_a_failure_shows_the_lines_of_the_test_and_of_the_model(tmp_path):
    write_model(tmp_path, "failing", source=FAILING)
    (tmp_path / "test_it.py").write_text(textwrap.dedent(TEST_OF_IT))
    shown = pytest_in(tmp_path).stdout
    assert "NameError: name 'missing' is not defined" in shown
    assert "failing/1/model.py(6): execute" in shown
    assert "test_it.py:3: ServerError" in shown
    assert "reference_server/testing" not in shown


@pytest.mark.slow
def test_a_breakpoint_stops_in_the_model(tmp_path):
    write_model(tmp_path, "failing", source=STOPPING)
    (tmp_path / "test_it.py").write_text(textwrap.dedent(TEST_OF_IT))
    shown = pytest_in(tmp_path, "-s", typed="p len(requests)\nmissing = []\nc\n").stdout
    assert "PDB set_trace" in shown
    assert "failing/1/model.py(6)execute()" in shown
    assert "(Pdb) 1\n" in shown
