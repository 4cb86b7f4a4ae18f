"""The command as a whole: its exit codes, and what goes where."""

import subprocess
import sys

import pytest

from ge_runtime import cli


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as exited:
        cli.main(["--help"])
    assert exited.value.code == 0
    printed = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert f"\n    {command.__name__.rpartition('.')[2]}" in printed


@pytest.mark.parametrize("arguments", [[], ["gearz"], ["gears"], ["gears", "x", "--cuont", "3"]])
def test_arguments_that_cannot_be_used_are_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as exited:
        cli.main(arguments)
    assert exited.value.code == 2
    assert "usage: ge-runtime" in capsys.readouterr().err


def test_a_missing_file_is_one_line_and_code_2(tmp_path, capsys):
    path = tmp_path / "lengths.csv"
    assert cli.main(["gears", str(path)]) == 2
    assert capsys.readouterr() == ("", f"ge-runtime: {path}: No such file or directory\n")


def test_a_faulty_file_is_one_line_and_code_2(tmp_path, capsys):
    path = tmp_path / "lengths.csv"
    path.write_text("tokens\ntwelve\n")
    assert cli.main(["gears", str(path)]) == 2
    assert capsys.readouterr() == (
        "",
        f"ge-runtime: {path}: line 2, column 'tokens': found 'twelve', expected a whole number of "
        "at least 1\n",
    )


def test_the_module_runs_and_a_closed_pipe_is_no_error(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("tokens\n12\n")
    command = [sys.executable, "-m", "ge_runtime.cli", "gears", str(path), "--count", "1-100"]
    process = subprocess.Popen(
        [*command, "--format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (0, b"")
