"""Requests of unequal lengths in NVIDIA's tritonserver: three ways to serve them, one load.

    python -m benchmarks.ragged_server                     about a minute and a half
    python -m benchmarks.ragged_server --seconds 30 --rounds 3

1. normal: a model as it is usually written; the server batches requests of equal shape.
2. client gears: the same model; clients pad their rows to one of a few lengths.
3. ge_runtime: model_repository/text_encoder, with `allow_ragged_batch` and everything in its
   config.pbtxt; clients send rows as they are.

The clients are closed loops in one process on the same machine: each sends its next request when
it has the answer to the one before. All ways get the same rows in the same order.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from tests.support.servers import Server, start_tritonserver
from tools import oracle
from triton_replay.comparing.latencies import percentile_of

PLAIN = ROOT / "benchmarks" / "ragged_repository" / "plain_encoder"
RAGGED = ROOT / "model_repository" / "text_encoder"
ROWS_SENT = 2000  # then from the first one again
OPEN_CLIENTS = 400  # where requests arrive by themselves: as many may wait at once


@dataclass(frozen=True)
class Sent:
    """One request, ready to be sent, and the tokens in it that are no padding."""

    content: bytes
    tokens: int


@dataclass
class Load:
    """What clients saw while it counted."""

    counting: bool = False
    tokens: int = 0
    seconds: list[float] = field(default_factory=list)


def main() -> None:
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
    parser.add_argument("--trace", choices=traces.TOKEN_TRACES, default="mix", help="(mix)")
    parser.add_argument("--clients", type=int, default=32, help="requests in flight (32)")
    parser.add_argument("--seconds", type=float, default=10, help="measured, of each way (10)")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds before (3)")
    parser.add_argument("--rounds", type=int, default=1, help="turns; the median counts (1)")
    parser.add_argument("--seed", type=int, default=11, help="of lengths and contents (11)")
    parser.add_argument(
        "--gears",
        type=lambda text: sorted(map(int, text.split(","))),
        default=[16, 48, 144, 512],
        metavar="N,N,...",
        help="the lengths that clients pad to (16,48,144,512)",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="more parameters for the config.pbtxt of ge_runtime's model",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    return parser.parse_args()


@contextmanager
def repository(parameters: list[str]) -> Iterator[Path]:
    """Both models in one folder of their own: the real server writes into what it serves."""
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


# ------------------------------------------------------------------------------------- clients


def gear_of(row: np.ndarray, gears: list[int]) -> int:
    return next(gear for gear in gears if gear >= row.shape[1])


def as_sent(model: str, row: np.ndarray, padded: int) -> Sent:
    """The row as a binary request. padded: the length it is padded to, if that is more."""
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
    load, before, after, seconds = asyncio.run(run_load(server.http, model, requests, options))
    executions = after["execution_count"] - before["execution_count"]
    return {
        "mean_batch": (after["inference_count"] - before["inference_count"]) / executions,
        "useful_tokens_per_second": load.tokens / seconds,
        "requests_per_second": len(load.seconds) / seconds,
        "p50_ms": percentile_of(load.seconds, 50) * 1e3,
        "p99_ms": percentile_of(load.seconds, 99) * 1e3,
    }


async def run_load(
    address: str,
    model: str,
    requests: list[Sent],
    options: argparse.Namespace,
    arrivals: Iterator[float] | None = None,
) -> tuple[Load, dict, dict, float]:
    """Load the server; returns what the clients saw, and the statistics around that time.

    arrivals: see `client`; there are as many clients then as could ever wait at once.
    """
    load, sent = Load(), itertools.cycle(requests)
    count = options.clients if arrivals is None else OPEN_CLIENTS
    clients = [asyncio.create_task(client(address, sent, load, arrivals)) for _ in range(count)]
    try:
        await over(clients, options.warm_up)
        before = await asyncio.to_thread(statistics_of, address, model)
        started, after = time.perf_counter(), before
        # A slow machine may need the time more than once for a first answer.
        while not load.seconds or after["execution_count"] == before["execution_count"]:
            load.counting = True
            await over(clients, options.seconds)
            load.counting, seconds = False, time.perf_counter() - started
            after = await asyncio.to_thread(statistics_of, address, model)
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return load, before, after, seconds


async def over(clients: list[asyncio.Task], seconds: float) -> None:
    """Let the clients run for a time. Raises what one of them raised."""
    ended, _ = await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in ended:
        task.result()


async def client(
    address: str, requests: Iterator[Sent], load: Load, arrivals: Iterator[float] | None = None
) -> None:
    """One connection: a request, its answer, the next request, until cancelled.

    arrivals: the moments at which requests arrive, of all clients together, on the clock of
    `time.perf_counter`. A request waits from then on, whether a client is free or not.
    """
    reader, writer = await asyncio.open_connection(*address.split(":"))
    try:
        for request in requests:
            started = time.perf_counter() if arrivals is None else next(arrivals)
            await asyncio.sleep(started - time.perf_counter())
            writer.write(request.content)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            body = await reader.readexactly(int(length))
            if not head.startswith(b"http/1.1 200 "):
                raise RuntimeError(f"{head!r} {body!r}")
            if load.counting:
                load.seconds.append(time.perf_counter() - started)
                load.tokens += request.tokens
    finally:
        writer.close()


def statistics_of(address: str, model: str) -> dict:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", f"/v2/models/{model}/stats")
        return json.loads(connection.getresponse().read())["model_stats"][0]
    finally:
        connection.close()


# -------------------------------------------------------------------------------------- output


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
    print("mean batch: requests that the server hands to the model at a time, by its statistics")


if __name__ == "__main__":
    main()
