"""`benchmarks.attack.restarts` counts the outcome of every request."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.brute_force


def test_a_killed_process_fails_only_its_own_requests():
    program = [
        sys.executable,
        "-m",
        "benchmarks.attack.restarts",
        "--of",
        "process",
        "--kills",
        "1",
    ]
    run = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    row = next(line for line in run.stdout.splitlines() if line.startswith("process host"))
    kills, answered, refused, lost = row.removeprefix("process host").split()[:4]
    assert (kills, lost) == ("1", "0")
    assert int(answered.replace(",", "")) > 0
    assert int(refused.replace(",", "")) <= 8
