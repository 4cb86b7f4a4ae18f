"""`triton-replay load` and perf_analyzer on the real server: the same columns, the same fields."""

import csv
import json
import shutil

import pytest
from contract.probes import write_probes
from support.perf_analyzer import measured
from support.servers import COMPLETE, ROOT, start_tritonserver

from triton_replay.__main__ import main

pytestmark = pytest.mark.oracle

SHORT = ("-p", "100", "-s", "999", "-r", "50")
MODES = {
    "HTTP": ("http", "-m", "batched", "-b", "2", "--concurrency-range", "1:4:3"),
    "strings in shared memory": (
        *("http", "-m", "text", "--shared-memory", "system", "--concurrency-range", "2"),
        *("--output-shared-memory-size", "1024"),
    ),
    "an ensemble at a rate": ("grpc", "-m", "chain", "--request-rate-range", "50:100:50"),
    "many responses": ("grpc", "-m", "many", "--streaming", "--concurrency-range", "2"),
    "metrics and a percentile": (
        *("http", "-m", "batched", "--verbose-csv", "--percentile", "42"),
        *("--concurrency-range", "2"),
    ),
}


@pytest.fixture(scope="module")
def server(oracle_installed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaded")
    write_probes(folder, "batched", "text", "chain")
    shutil.copytree(ROOT / "benchmarks" / "micro_repository" / "many", folder / "many")
    with start_tritonserver(folder, **COMPLETE) as started:
        yield started


@pytest.mark.parametrize("mode", MODES)
def test_scripts_that_read_what_perf_analyzer_writes_go_on_working(server, mode, tmp_path):
    protocol, *words = MODES[mode]
    if "--verbose-csv" in words:
        words += ["--collect-metrics", "--metrics-url", f"{server.metrics}/metrics"]
    written = {name: [tmp_path / f"{name}.{kind}" for kind in ("csv", "json")] for name in "ab"}
    files = {
        name: ("-f", str(table), "--profile-export-file", str(times))
        for name, (table, times) in written.items()
    }
    measured(server, protocol, *words, *files["a"])
    address = server.http if protocol == "http" else server.grpc
    assert main(["load", "-u", address, "-i", protocol, *SHORT, *words, *files["b"]]) == 0
    tables, exports = zip(*written.values(), strict=True)
    theirs, ours = (list(csv.DictReader(path.read_text().splitlines())) for path in tables)
    assert [list(row) for row in ours] == [list(row) for row in theirs]
    first = next(iter(ours[0]))
    # perf_analyzer sorts its rows by what came out.
    assert sorted(row[first] for row in ours) == sorted(row[first] for row in theirs)
    assert all(value for row in ours for name, value in row.items() if "GPU" not in name)
    theirs, ours = (json.loads(path.read_text())["experiments"] for path in exports)
    assert all(one["experiment"] in [other["experiment"] for other in theirs] for one in ours)
    assert [list(one) for one in ours] == [list(one) for one in theirs]
    tensors = {"request_inputs", "response_outputs"}
    assert set(ours[0]["requests"][0]) == set(theirs[0]["requests"][0]) - tensors
