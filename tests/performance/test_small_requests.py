"""The benchmark of small requests measures every server that it names."""

import json
import subprocess
import sys

from benchmarks.instruments import ROOT


def test_each_load_of_each_server_is_measured(tmp_path):
    path = tmp_path / "turns.json"
    program = [sys.executable, "-m", "benchmarks.small_requests", "--servers", "sketch"]
    few = ["--turns", "1", "--seconds", "0.2", "--in-flight", "2", "--json", str(path)]
    loads = ["--loads", "http", "grpc"]
    subprocess.run([*program, f"tree:{ROOT}", *loads, *few], cwd=ROOT, check=True)
    turns = json.loads(path.read_text())
    assert [(each["server"], each["load"]) for each in turns] == [
        ("sketch", "http"),
        (f"tree:{ROOT}", "http"),
        (f"tree:{ROOT}", "grpc"),
    ]
    assert all(0 < each["p50"] <= each["p99"] and each["per_second"] > 0 for each in turns)
