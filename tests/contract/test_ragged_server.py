"""The benchmarks of unequal lengths in the real server run: each way for half a second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import ROOT


@pytest.mark.oracle
@pytest.mark.slow
def test_three_ways_to_serve_are_compared(oracle_installed: None, tmp_path: Path):
    report = tmp_path / "report.json"
    program = [sys.executable, "-m", "benchmarks.ragged_server", "--trace", "queries"]
    finished = subprocess.run(
        [*program, "--seconds", "0.5", "--warm-up", "0.5", "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    results = json.loads(report.read_text())
    assert list(results) == ["normal", "client gears 16,48,144,512", "ge_runtime"]
    for (turn,) in results.values():
        assert turn["mean_batch"] >= 1
        assert turn["useful_tokens_per_second"] > 0


@pytest.mark.oracle
@pytest.mark.slow
def test_early_answers_are_compared_with_all_at_once(oracle_installed: None, tmp_path: Path):
    report = tmp_path / "report.json"
    program = [sys.executable, "-m", "benchmarks.early_answers", "--traces", "queries"]
    few = ["--batches", "2", "--rounds", "1", "--seconds", "0.5", "--warm-up", "0.2"]
    finished = subprocess.run(
        [*program, *few, "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    results = json.loads(report.read_text())
    window = results["windows"]["queries"]
    assert all(
        0 < wait < whole for wait, whole in zip(window["early wait"], window["early"], strict=True)
    )
    (early,), (late,) = results["server"]["queries"].values()
    assert 0 < early["wait_in_window"] < late["wait_in_window"] == 1.0
    assert early["early_answers"] > late["early_answers"] == 0
