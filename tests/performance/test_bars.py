"""`benchmarks.bars` measures each row of each server."""

import json
import subprocess
import sys

import pytest

from benchmarks.instruments import ROOT
from benchmarks.rows import ROWS

pytestmark = pytest.mark.brute_force


def test_each_row_of_each_server_is_measured(tmp_path):
    path, drawing = tmp_path / "turns.json", tmp_path / "bars.png"
    program = [sys.executable, "-m", "benchmarks.bars", "--turns", "1", "--seconds", "0.1"]
    rows = ["http", "grpc", "stream", "strings-json", "602k-grpc", "602k-shm", "602k-shm-grpc"]
    rows += ["ensemble", "asks", "decoupled"]
    files = ["--json", str(path), "--plot", str(drawing)]
    servers = ["--servers", "sketch", f"tree:{ROOT}"]
    subprocess.run([*program, *servers, "--rows", *rows, *files], cwd=ROOT, check=True)
    turns = json.loads(path.read_text())
    points = [(row, count) for row in rows for count in ROWS[row].in_flight]
    assert [(each["row"], each["in_flight"]) for each in turns if each["server"] != "sketch"] == (
        points
    )
    assert {each["row"] for each in turns if each["server"] == "sketch"} == {"http"}
    assert all(0 < each["p50"] <= each["p99"] and each["per_second"] > 0 for each in turns)
    assert drawing.read_bytes().startswith(b"\x89PNG")


def test_each_row_has_a_bar_for_each_number_in_flight():
    assert all(len(row.bars) == len(row.in_flight) for row in ROWS.values())
