"""Requests of different lengths in NVIDIA's tritonserver: three ways to serve them.

    python -m benchmarks.ragged_server                     about a minute and a half
    python -m benchmarks.ragged_server --seconds 30 --rounds 3

1. normal: an ordinary model; the server batches requests of equal shape only.
2. client gears: the same model; clients pad their rows to one of a few lengths.
3. ge_runtime: model_repository/text_encoder, with `allow_ragged_batch`; clients do not pad.

The load is a closed loop on the same machine, with the same rows in the same order for all ways.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf import text_format

from benchmarks import traces
from benchmarks.instruments import (
    ROOT,
    print_machine_facts,
    print_table,
    read_config,
)
from benchmarks.load import HTTP, closed_loop
from tests.support.servers import Server, start_tritonserver
from tools import oracle
from triton_replay.comparing.latencies import percentile_of

PLAIN = ROOT / "benchmarks" / "ragged_repository" / "plain_encoder"
RAGGED = ROOT / "model_repository" / "text_encoder"
ROWS_SENT = 2000
"""Number of different rows; they are sent repeatedly."""


@dataclass(frozen=True)
class Sent:
    """A request as bytes, and the number of its tokens without padding."""

    content: bytes
    tokens: int


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    if not oracle.is_installed():
        raise SystemExit("tritonserver is not installed; run `make oracle`")
    print_machine_facts()
    lengths = traces.token_lengths(options.trace, ROWS_SENT, options.seed)
    rows = traces.token_rows(lengths, options.seed)
    largest = max(options.gears)
    if lengths.max() > largest:
        raise SystemExit(f"--gears: found {largest} as the largest, expected {lengths.max()}")
    ways = {
        "normal": ("plain_encoder", [as_sent("plain_encoder", row, 0) for row in rows]),
        f"client gears {','.join(map(str, options.gears))}": (
            "plain_encoder",
            [as_sent("plain_encoder", row, gear_of(row, options.gears)) for row in rows],
        ),
        "ge_runtime": ("text_encoder", [as_sent("text_encoder", row, 0) for row in rows]),
    }
    results: dict[str, list[dict]] = {way: [] for way in ways}
    with repository(options.set) as folder:
        for _ in range(options.rounds):
            for way, (model, requests) in ways.items():
                with start_tritonserver(folder, allow_grpc=False, allow_metrics=False) as server:
                    results[way].append(measure(server, model, requests, options))
    print_results(results, options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ragged_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace_help = "distribution of row lengths (mix)"
    parser.add_argument("--trace", choices=traces.TOKEN_TRACES, default="mix", help=trace_help)
    parser.add_argument("--clients", type=int, default=32, help="requests in flight (32)")
    parser.add_argument("--seconds", type=float, default=10, help="duration of each way (10)")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds of warm-up (3)")
    parser.add_argument("--rounds", type=int, default=1, help="turns, for medians (1)")
    parser.add_argument("--seed", type=int, default=11, help="seed of lengths and tokens (11)")
    parser.add_argument(
        "--gears",
        type=lambda text: sorted(map(int, text.split(","))),
        default=[16, 48, 144, 512],
        metavar="N,N,...",
        help="lengths that clients pad to (16,48,144,512)",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="more parameters for the config.pbtxt of ge_runtime's model",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return parser.parse_args()


@contextmanager
def repository(parameters: list[str]) -> Iterator[Path]:
    """Copy both models to a temporary folder: the real server writes to its repository."""
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.onnx", "*.pt2")
    with tempfile.TemporaryDirectory(prefix="ragged-") as directory:
        for source in (PLAIN, RAGGED):
            target = Path(directory) / source.name
            shutil.copytree(source, target, ignore=ignored)
            (target / "1" / "model.onnx").symlink_to(RAGGED / "1" / "model.onnx")
        config = read_config(RAGGED)
        for key, value in (pair.split("=", 1) for pair in parameters):
            config.parameters[key].string_value = value
        path = Path(directory) / RAGGED.name / "config.pbtxt"
        path.write_text(text_format.MessageToString(config))
        yield Path(directory)


# -- clients


def gear_of(row: np.ndarray, gears: list[int]) -> int:
    return next(gear for gear in gears if gear >= row.shape[1])


def as_sent(model: str, row: np.ndarray, padded: int) -> Sent:
    """Return a binary request with a row, padded to the length `padded` if that is larger."""
    tokens = row.shape[1]
    ids = np.zeros((1, max(tokens, padded)), np.int64)
    ids[:, :tokens] = row
    lengths = np.array([[tokens]], np.int32)
    inputs = [
        {
            "name": name,
            "datatype": datatype,
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, datatype, array in (("input_ids", "INT64", ids), ("lengths", "INT32", lengths))
    ]
    outputs = [{"name": "embedding", "parameters": {"binary_data": True}}]
    header = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    body = header + ids.tobytes() + lengths.tobytes()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return Sent(head.encode() + body, tokens)


def measure(server: Server, model: str, requests: list[Sent], options: argparse.Namespace) -> dict:
    """Load the server; return the clients' figures and the mean batch by its statistics."""
    load = (server.http, HTTP, [request.content for request in requests], options.clients)
    closed_loop(*load, options.warm_up)
    before = statistics_of(server.http, model)
    latencies = closed_loop(*load, options.seconds)
    after = statistics_of(server.http, model)
    executions = after["execution_count"] - before["execution_count"]
    sizes = itertools.islice(itertools.cycle(requests), len(latencies))
    return {
        "mean_batch": (after["inference_count"] - before["inference_count"]) / executions,
        "useful_tokens_per_second": sum(request.tokens for request in sizes) / options.seconds,
        "requests_per_second": len(latencies) / options.seconds,
        "p50_ms": percentile_of(latencies, 50) / 1e3,
        "p99_ms": percentile_of(latencies, 99) / 1e3,
    }


def statistics_of(address: str, model: str) -> dict:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", f"/v2/models/{model}/stats")
        return json.loads(connection.getresponse().read())["model_stats"][0]
    finally:
        connection.close()


# -- output


def print_results(results: dict[str, list[dict]], options: argparse.Namespace) -> None:
    turns = "one turn" if options.rounds == 1 else f"the median of {options.rounds} turns"
    print(
        f"\n=== {options.trace}: {options.clients} clients, {options.seconds:g} s of each, {turns}"
    )
    medians = {
        way: {key: statistics.median(turn[key] for turn in runs) for key in runs[0]}
        for way, runs in results.items()
    }
    normal = medians["normal"]["useful_tokens_per_second"]
    print_table(
        ["way", "mean batch", "useful tokens/s", "of normal", "requests/s", "p50 ms", "p99 ms"],
        [
            [
                way,
                f"{row['mean_batch']:.1f}",
                f"{row['useful_tokens_per_second']:,.0f}",
                f"{row['useful_tokens_per_second'] / normal:.2f}x",
                f"{row['requests_per_second']:.1f}",
                f"{row['p50_ms']:.0f}",
                f"{row['p99_ms']:.0f}",
            ]
            for way, row in medians.items()
        ],
    )
    print("mean batch: requests per call of the model, by the server's statistics")


if __name__ == "__main__":
    main()
