"""The commands that people and CI type: those that are offered exist, others are refused."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def commands_listed() -> set[str]:
    return set(re.findall(r"^  make (\S+) +\S", run("make").stdout, re.MULTILINE))


def test_make_alone_lists_every_command():
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    (phony,) = re.findall(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    steps = {"help", "torch-models", "collected", "mlserver", "quick-server", "quick-others"}
    assert commands_listed() == set(phony.split()) - steps


def test_ci_refuses_an_unknown_step_and_names_the_known_ones():
    refused = run(".ci/run", "everything")
    assert refused.returncode == 2
    (steps,) = re.findall(r"^usage: .ci/run \[(.*)\]$", refused.stderr, re.MULTILINE)
    assert set(steps.split("|")) - {"all"} < commands_listed()
