"""The command `ge-runtime`: exit codes, stdout and stderr."""

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ge_runtime import cli
from ge_runtime.cli.command import EXIT_UNUSABLE

pytestmark = pytest.mark.brute_force


def test_version_of_the_installed_package(capsys):
    with pytest.raises(SystemExit) as exited:
        cli.main(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr() == (f"ge-runtime {version('ge-runtime')}\n", "")


def test_version_without_an_installation(capsys, monkeypatch):
    """PYTHONPATH contains a checkout."""
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    folder = Path(cli.__file__).parents[1]
    printed = "".join(capsys.readouterr().out.split())  # argparse wraps it, within words as well
    assert printed == "".join(f"ge-runtime unknown: {folder} is not installed".split())


@pytest.mark.parametrize("arguments", [[], ["gearz"], ["gears", "x", "--cuont", "3"]])
def test_invalid_arguments_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exited:
        cli.main(arguments)
    assert exited.value.code == 2
    assert "usage: ge-runtime" in capsys.readouterr().err


def test_a_missing_file_exits_with_2(tmp_path, capsys):
    path = tmp_path / "lengths.csv"
    assert cli.main(["gears", str(path)]) == 2
    assert capsys.readouterr() == ("", f"ge-runtime: {path}: No such file or directory\n")


def test_ctrl_c_prints_no_traceback(tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("ge_runtime.cli.gears.read_histogram", interrupt)
    assert cli.main(["gears", str(tmp_path)]) == 130
    assert capsys.readouterr() == ("", "")


def test_other_folders_are_refused_with_a_hint(tmp_path, capsys):
    repository = tmp_path / "repository"
    version = repository / "encoder" / "1"
    version.mkdir(parents=True)
    config = repository / "encoder" / "config.pbtxt"
    config.write_text("")
    expected = "expected the folder of a model"
    for folder, complaint in (
        (tmp_path / "nowhere", f"found nothing, {expected}"),
        (tmp_path, f"found no config.pbtxt, {expected}"),
        (repository, f"found no config.pbtxt, {expected}; it holds models: encoder"),
        (version, f"found no config.pbtxt, {expected}; that is {version.parent}"),
        (config, f"found a file, {expected}; that is {version.parent}"),
    ):
        assert cli.main(["build", str(folder)]) == EXIT_UNUSABLE
        assert capsys.readouterr() == ("", f"ge-runtime: {folder}: {complaint}\n")


def test_the_backend_is_a_folder_with_a_model(tmp_path, capsys):
    file = tmp_path / "ge" / "model.py"
    for _ in range(2):
        assert cli.main(["backend", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"{file}\n"
        (model,) = [
            own for own in ast.parse(file.read_text()).body if isinstance(own, ast.ClassDef)
        ]
        assert model.name == "TritonPythonModel"
    assert cli.main(["backend", str(tmp_path / "nowhere")]) == 2
    expected = "nowhere: found no such folder, expected Triton's --backend-directory, by default "
    assert expected in capsys.readouterr().err


def test_a_closed_pipe_is_no_error(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("tokens\n12\n")
    command = [sys.executable, "-m", "ge_runtime.cli", "gears", str(path), "--count", "1-100"]
    process = subprocess.Popen(
        [*command, "--format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (0, b"")
