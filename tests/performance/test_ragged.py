"""`benchmarks.ragged` runs at its smallest size and compares all ways to batch."""

import json
import subprocess
import sys

import pytest
from support.servers import ROOT


def run(report, *arguments):
    """Run the benchmark with a few requests; return the rows it wrote and its output."""
    pytest.importorskip("torch", reason="the baseline uses torch")
    program = [sys.executable, "-m", "benchmarks.ragged", "--traces", "queries", "--batches", "1"]
    finished = subprocess.run(
        [*program, "--requests", "4", "--json", str(report), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(report.read_text()), finished.stdout


@pytest.mark.slow
def test_all_ways_to_batch_are_compared(tmp_path):
    rows, printed = run(tmp_path / "report.json")
    ways = {row["way"]: row for row in rows}
    assert ways["pad to the maximum"]["padding_share"] > ways["pad to the longest"]["padding_share"]
    assert all(row["useful_per_second"] > 0 for row in ways.values())
    assert all(way in printed for way in ways)
