"""The steps of `make serve`: a line each, the rest in a file."""

import subprocess
import sys
from pathlib import Path

from support.servers import ROOT


def step(log: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "step.py"), str(log), "Models"]
    return subprocess.run(
        [*command, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )


def test_a_step_is_a_line_and_its_output_is_in_the_file(tmp_path):
    log = tmp_path / "new" / "serve.log"
    done = step(log, "print('built')")
    assert done.returncode == 0
    assert done.stdout.startswith("Models ... ")
    assert done.stdout.count("\n") == 1
    step(log, "print('built again')")
    assert [line for line in log.read_text().splitlines() if line and line[0] != "#"] == [
        *("built", "built again")
    ]


def test_of_a_step_that_fails_the_end_is_shown_with_its_exit_code(tmp_path):
    done = step(tmp_path / "log", "print(*range(99), sep=chr(10)); raise SystemExit(3)")
    assert done.returncode == 3
    title, *end, told = done.stdout.splitlines()
    assert title.startswith("Models ... failed after ")
    assert end == [str(number) for number in range(69, 99)]
    assert told.endswith(f"exit code 3; full output: {tmp_path / 'log'}")
