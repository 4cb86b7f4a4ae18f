"""Tests that a type checker accepts models that use `triton_python_backend_utils`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WRONG = """
import triton_python_backend_utils as pb_utils

pb_utils.Tensor("x", [1, 2])
pb_utils.Logger.log_info(5)
pb_utils.TritonError("x", 3)
pb_utils.no_such_name()
pb_utils.is_model_ready("m", 1)
"""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The findings of mypy in strict mode for `WRONG` and all examples, in one run.

    The files of models have one name, so mypy reads copies. Its cache is that of `make types`.
    """
    folder = tmp_path_factory.mktemp("typed")
    (folder / "wrong.py").write_text(WRONG)
    examples = ROOT / "examples"
    shutil.copy(examples / "test_your_model" / "test_word_count.py", folder)
    for model in examples.glob("**/1/model.py"):
        shutil.copy(model, folder / f"{model.parents[1].name}_model.py")
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file=pyproject.toml"]
        + [str(file) for file in sorted(folder.iterdir())],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert not found.stderr
    return [line.rpartition("/")[2] for line in found.stdout.splitlines()]


@pytest.mark.slow
def test_the_examples_are_well_typed(findings: list[str]):
    assert [line for line in findings if not line.startswith("wrong.py")] == []


@pytest.mark.slow
def test_wrong_arguments_and_names_are_found(findings: list[str]):
    found = [line.split(":") for line in findings if line.startswith("wrong.py:")]
    assert {line for _, line, kind, *_ in found if kind == " error"} == {"4", "5", "6", "7", "8"}
