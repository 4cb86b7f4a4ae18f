"""Cost of a scheduler's decisions for a growing number of waiting requests.

    python -m benchmarks.queues                        a minute
    python -m benchmarks.queues --depths 1 1000 --json queues.json

Each queue that a configuration can select is filled to a depth and kept there: one instance takes a
batch, the same number of requests arrives, and the batch ends. Time is simulated, and no threads
run. The figures are the time per request, from its arrival to its end. They should not grow with
the depth: otherwise a server with a backlog would become slower.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from benchmarks.instruments import print_machine_facts, print_table
from reference_server.config.complete import complete
from reference_server.config.schema import ModelConfig
from reference_server.core.request import InferRequest, InferResponse, SequenceFlag
from reference_server.core.tensor import DataType, Tensor
from reference_server.repository.schedulers import work_queue
from reference_server.scheduling.work_queue import WorkQueue

TURNS = 3
STEP_NS = 1_000_000
"""Simulated time between two batches."""

MODEL = """
    backend: "python" max_batch_size: 32
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
BATCHING = {
    "fifo": "",
    "dynamic": "dynamic_batching { }",
    "delay": "dynamic_batching { preferred_batch_size: [16] max_queue_delay_microseconds: 500 }",
    "ordered": "dynamic_batching { preserve_ordering: true }",
    "levels": "dynamic_batching { priority_levels: 3 default_priority_level: 2 }",
    "timeouts": """dynamic_batching { default_queue_policy {
        default_timeout_microseconds: 3600000000 allow_timeout_override: true } }""",
    "direct": "sequence_batching { max_sequence_idle_microseconds: 3600000000 direct { } }",
    "oldest": """sequence_batching { max_sequence_idle_microseconds: 3600000000
        oldest { max_candidate_sequences: 64 } }""",
}
QUEUES = {name: (name, 0) for name in BATCHING} | {
    "direct, 32 long": ("direct", 32),
    "oldest, 32 long": ("oldest", 32),
}
"""Queues, and the number of sequences of their requests; 0: one sequence per request."""


class NullSink:
    """A sink that discards responses."""

    def send(self, response: InferResponse) -> None:
        """Discard a response."""


def configured(name: str) -> WorkQueue:
    """Create the queue of this name, for a model with one instance."""
    text = MODEL + BATCHING[QUEUES[name][0]]
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    complete(config, Path("m"))
    return work_queue(ModelConfig.from_proto(config), Path("m"))


def requests(name: str, count: int) -> Iterator[InferRequest]:
    """Yield requests of one row for the queue of this name, with priorities 1 to 3 in turn."""
    array = np.zeros((1, 1), np.float32)
    sequences = QUEUES[name][1]
    whole = SequenceFlag.START | SequenceFlag.END
    for number in range(count):
        flags = SequenceFlag.START if number < sequences else SequenceFlag.NONE
        yield InferRequest(
            "m",
            {"X": Tensor("X", DataType.FP32, array.shape, array=array)},
            NullSink(),
            id=f"{number}",
            correlation_id=number % sequences + 1 if sequences else number + 1,
            flags=flags if sequences else whole,
            priority=number % 3 + 1,
        )


class Stage:
    """A queue at a depth, and one instance."""

    def __init__(self, name: str, depth: int, count: int) -> None:
        self._work = configured(name)
        self._now = 0
        self._requests = iter(list(requests(name, depth + count)))
        self._offer(depth)

    def _offer(self, count: int) -> None:
        for request in itertools.islice(self._requests, count):
            request.queued_ns = self._now
            self._work.offer(request, self._now)

    def play(self, count: int) -> int:
        """Execute at least `count` requests while the same number arrives; return the number."""
        done = 0
        work = self._work
        while done < count:
            self._now += STEP_NS  # longer than any queue delay
            batch = work.take(0, self._now)
            if batch is None or work.refused(self._now):
                raise SystemExit(f"{work}: no batch, or a rejected request")
            taken = sum(request.batch_size > 0 for request in batch)
            self._offer(taken)
            for request in batch:
                request.sink.send(InferResponse("m", 1, request.id))
            work.finished(0, batch, [], self._now)
            work.next_deadline_ns()
            done += taken
        return done


def measure(name: str, depth: int, count: int) -> float:
    """Return the microseconds per request for `count` requests while `depth` others wait."""
    stage = Stage(name, depth, count)
    with _frozen_collector():
        began = time.perf_counter()
        done = stage.play(count)
        return (time.perf_counter() - began) * 1e6 / done


@contextlib.contextmanager
def _frozen_collector() -> Iterator[None]:
    """Exclude all existing objects from garbage collection until the block ends.

    Otherwise some turns would include a full collection of the 100,000 waiting requests, which the
    benchmark creates at once.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    print_machine_facts()
    points = list(itertools.product(options.queues, options.depths))
    turns: dict[tuple[str, int], list[float]] = {point: [] for point in points}
    for _ in range(TURNS):
        for point in points:
            turns[point].append(measure(*point, options.requests))
    medians = {point: statistics.median(each) for point, each in turns.items()}
    print(f"microseconds per request, by waiting requests; medians of {TURNS} turns")
    rows = []
    for name in options.queues:
        found = [medians[name, depth] for depth in options.depths]
        rows.append([name, *(f"{us:.2f}" for us in found), f"{1e6 / found[-1]:,.0f}"])
    print_table(["queue", *(f"{depth:,}" for depth in options.depths), "per second"], rows)
    if options.json:
        points_us = [
            {"queue": name, "depth": depth, "us": us} for (name, depth), us in medians.items()
        ]
        options.json.write_text(json.dumps(points_us, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.queues",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    depths = [1, 10, 100, 1_000, 10_000, 100_000]
    add = parser.add_argument
    add("--queues", nargs="+", choices=QUEUES, default=list(QUEUES), help="queues (all)")
    add("--depths", nargs="+", type=int, default=depths, metavar="N", help="waiting requests")
    add("--requests", type=int, default=20_000, help="requests per turn (20,000)")
    add("--json", type=Path, metavar="FILE", help="write the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
