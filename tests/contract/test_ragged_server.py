"""The benchmarks of unequal lengths in the real server run: each way for half a second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.servers import ROOT

UNHEALTHY = "is not healthy"
"""Said by the real server of a model process that a busy machine made answer too late."""


def measured(report: Path, module: str, *arguments: str) -> dict[str, Any]:
    """The benchmark's report; it is repeated once if the real server gave up a model process."""
    command = [sys.executable, "-m", module, *arguments, "--json", str(report)]
    for _ in range(2):
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        told = finished.stdout + finished.stderr
        if finished.returncode == 0 or UNHEALTHY not in told:
            break
    assert finished.returncode == 0, told
    results: dict[str, Any] = json.loads(report.read_text())
    return results


@pytest.mark.oracle
@pytest.mark.slow
def test_three_ways_to_serve_are_compared(oracle_installed: None, tmp_path: Path):
    brief = ["--trace", "queries", "--seconds", "0.5", "--warm-up", "0.5"]
    results = measured(tmp_path / "report.json", "benchmarks.ragged_server", *brief)
    assert list(results) == ["normal", "client gears 16,48,144,512", "ge_runtime"]
    for (turn,) in results.values():
        assert turn["mean_batch"] >= 1
        assert turn["useful_tokens_per_second"] > 0
