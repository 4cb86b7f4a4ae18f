"""The benchmark of costs runs: both parts once, as small as they go."""

import json
import subprocess
import sys

import pytest
from support.servers import ROOT


@pytest.mark.slow
def test_batches_are_held_against_single_requests_and_plans_against_the_best(tmp_path):
    report = tmp_path / "report.json"
    program = [sys.executable, "-m", "benchmarks.costs", "--traces", "queries"]
    options = {"requests": 3, "turns": 1, "batches": 1, "loads": 1, "others": 1, "rounds": 1}
    least = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    finished = subprocess.run(
        [*program, *least, "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    results = json.loads(report.read_text())
    assert results.keys() == {"alone", "plans"}
    (alone,) = results["alone"]
    (pair,) = alone["pairs"]
    assert all(value > 0 for value in pair.values())
    (plans,) = results["plans"]
    # No plan is better than the best, which one by one is one of.
    ways = {"alone", "alone, then served", "beside 1", "beside 1, then served"}
    assert plans["plans"].keys() == ways
    ratios = [ratio for own in plans["plans"].values() for ratio in own]
    assert all(ratio > 0.999 for ratio in [*ratios, plans["one_by_one"]])
