"""The benchmark of unequal lengths runs: every part once, as small as it goes."""

import json
import subprocess
import sys

import pytest
from support.servers import ROOT


@pytest.mark.slow
def test_all_ways_to_batch_are_compared(tmp_path):
    pytest.importorskip("torch", reason="the plain approach is written with torch")
    report = tmp_path / "report.json"
    program = [sys.executable, "-m", "benchmarks.ragged", "--traces", "queries", "--batches", "1"]
    finished = subprocess.run(
        [*program, "--requests", "4", "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    results = json.loads(report.read_text())
    assert results.keys() == {"tokens", "python", "images", "bump"}
    ways = {row["way"]: row for row in results["tokens"]}
    assert ways["pad to the maximum"]["padding_share"] > ways["pad to the longest"]["padding_share"]
    assert all(row["useful_per_second"] > 0 for row in ways.values())
    assert all(way in finished.stdout for way in ways)
    assert results["bump"]["1"] is None
    assert results["bump"]["2"] > 0
