"""The benchmark runs: both servers, one short point of the smallest model."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.servers import ROOT


@pytest.mark.oracle
@pytest.mark.slow
def test_the_benchmark_compares_both_servers(oracle_installed: None):
    program = [sys.executable, "-m", "benchmarks.perf", "--models", "identity", "--quick"]
    finished = subprocess.run(
        [*program, "--concurrency", "2", "--window", "200"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("Request concurrency: 2") == 2
    assert re.search(
        r"^identity +2( +[\d.]+/s +[\d.]+ +[\d.]+){2} +[\d.]+x$", finished.stdout, re.M
    )
