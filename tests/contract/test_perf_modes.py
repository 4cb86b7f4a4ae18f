"""perf_analyzer, NVIDIA's load generator, in its modes, against the reference server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from contract.probes import write_probes
from support.perf_analyzer import measured
from support.servers import Server, start_reference_server

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

ROWS = ("-m", "batched", "-b", "2")
FREE = ("-m", "vector", "--shape", "X:16")

MODES = {
    "binary over HTTP": ("http", *ROWS, "--concurrency-range", "1:4:3"),
    "JSON over HTTP": (
        *("http", "-m", "batched", "--concurrency-range", "2"),
        *("--input-tensor-format", "json", "--output-tensor-format", "json"),
    ),
    "shared memory over HTTP": (
        *("http", *ROWS, "--shared-memory", "system", "--concurrency-range", "2"),
        *("--output-shared-memory-size", "1024"),
    ),
    "a rate of Poisson": (
        *("http", *ROWS, "--request-rate-range", "50"),
        *("--request-distribution", "poisson"),
    ),
    "a search": (
        *("http", *ROWS, "--concurrency-range", "1:4", "--binary-search"),
        *("--latency-threshold", "1000"),
    ),
    "counted windows": (
        *("http", *ROWS, "--measurement-mode", "count_windows", "--concurrency-range", "2"),
        *("--measurement-request-count", "50"),
    ),
    "gRPC": ("grpc", *ROWS, "--concurrency-range", "1:4:3"),
    "asynchronous gRPC": ("grpc", *FREE, "--async", "--concurrency-range", "4"),
    "gRPC, gzip": (
        *("grpc", *ROWS, "--grpc-compression-algorithm", "gzip", "--concurrency-range", "2"),
    ),
    "a stream": ("grpc", *ROWS, "--streaming", "--async", "--concurrency-range", "4"),
    "parameters": (
        *("grpc", *ROWS, "--request-parameter", "level:7:int", "--concurrency-range", "1"),
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_perf_analyzer(oracle_installed: None, probed_reference: Server, mode: str):
    protocol, *arguments = MODES[mode]
    measured(probed_reference, protocol, *arguments)


def test_perf_analyzer_traces(oracle_installed: None, tmp_path: Path):
    write_probes(tmp_path, "batched")
    levels = ("--trace-level", "TIMESTAMPS", "--trace-rate", "1000")
    with start_reference_server(tmp_path, trace_config="triton,file=trace.json") as server:
        measured(server, "http", *ROWS, *levels, "--concurrency-range", "1")


def test_perf_analyzer_sends_the_data_of_a_file(
    oracle_installed: None, probed_reference: Server, tmp_path: Path
):
    data = tmp_path / "data.json"
    rows = [{"X": {"content": [row + 0.5, 1.5, 2.5, 3.5], "shape": [4]}} for row in range(5)]
    data.write_text(json.dumps({"data": rows}))
    for protocol in ("http", "grpc"):
        measured(probed_reference, protocol, "-m", "batched", "--input-data", str(data))
