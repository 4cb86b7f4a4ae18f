"""The benchmark of unequal lengths runs: every part once, as small as it goes."""

import json
import subprocess
import sys

import pytest
from support.servers import ROOT


def run(report, *arguments):
    """The benchmark with a few requests: what it wrote and what it printed."""
    pytest.importorskip("torch", reason="the plain approach is written with torch")
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
    results, printed = run(tmp_path / "report.json")
    assert results.keys() == {"tokens", "python", "images", "bump"}
    ways = {row["way"]: row for row in results["tokens"]}
    assert ways["pad to the maximum"]["padding_share"] > ways["pad to the longest"]["padding_share"]
    assert all(row["useful_per_second"] > 0 for row in ways.values())
    assert all(way in printed for way in ways)
    assert results["bump"]["1"] is None
    assert results["bump"]["2"] > 0


@pytest.mark.slow
def test_padding_to_the_maximum_may_be_left_out(tmp_path):
    results, _ = run(tmp_path / "report.json", "--parts", "tokens", "--max-batches", "0")
    ways = [row["way"] for row in results["tokens"]]
    assert ways == ["pad to the longest", "ge_runtime", "ge_runtime, 4 gears"]
