"""What a scheduler's decisions cost, by how many requests wait: its queues, without their threads.

    python -m benchmarks.queues                        a minute
    python -m benchmarks.queues --depths 1 1000 --json queues.json

Each queue that a configuration can ask for is filled, and kept at that depth: one instance takes a
batch, as many requests come as it has taken, it ends. The clock is the benchmark's own, so that
nobody waits. The figures are the time of one request: that it comes, is decided about and goes. A
line that rises with the depth would be a server that gets slower the more it is behind.
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
from reference_server.core.dtypes import DataType
from reference_server.core.request import InferRequest, InferResponse, SequenceFlag
from reference_server.core.tensor import Tensor
from reference_server.repository.schedulers import work_queue
from reference_server.scheduling.work_queue import WorkQueue

TURNS = 3
STEP_NS = 1_000_000  # between two batches

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
#: A queue, and how many sequences its requests are of: 0 if each is one.
QUEUES = {name: (name, 0) for name in BATCHING} | {
    "direct, 32 long": ("direct", 32),
    "oldest, 32 long": ("oldest", 32),
}


class NullSink:
    """A sink that drops what it is sent."""

    def send(self, response: InferResponse) -> None:
        """Drop it."""


def configured(name: str) -> WorkQueue:
    """The queue of that name, of a model with one instance."""
    text = MODEL + BATCHING[QUEUES[name][0]]
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    complete(config, Path("m"))
    return work_queue(ModelConfig.from_proto(config), Path("m"))


def requests(name: str, count: int) -> Iterator[InferRequest]:
    """Requests of one row for the queue of that name, of three levels in turn."""
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
        self._coming = iter(list(requests(name, depth + count)))
        self._come(depth)

    def _come(self, count: int) -> None:
        for request in itertools.islice(self._coming, count):
            request.queued_ns = self._now
            self._work.offer(request, self._now)

    def play(self, count: int) -> int:
        """Have so many requests taken, or some more, and as many come; tells how many."""
        gone = 0
        work = self._work
        while gone < count:
            self._now += STEP_NS  # which is longer than any delay
            batch = work.take(0, self._now)
            if batch is None or work.refused(self._now):
                raise SystemExit(f"{work}: nothing to take, or a request was refused")
            taken = sum(request.batch_size > 0 for request in batch)
            self._come(taken)
            for request in batch:
                request.sink.send(InferResponse("m", 1, request.id))
            work.finished(0, batch, [], self._now)
            work.next_deadline_ns()
            gone += taken
        return gone


def measure(name: str, depth: int, count: int) -> float:
    """Microseconds for each of `count` requests, while `depth` others wait."""
    stage = Stage(name, depth, count)
    with _load_out_of_sight():
        began = time.perf_counter()
        gone = stage.play(count)
        return (time.perf_counter() - began) * 1e6 / gone


@contextlib.contextmanager
def _load_out_of_sight() -> Iterator[None]:
    """Have the garbage collector look at nothing that is there already, but at what comes.

    A look at all of 100,000 waiting requests fell into some turns, and not into others: they are
    made at once here, before the clock starts, and a full collection follows on such growth.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def main() -> None:
    """Measure every queue at every depth, in turns, and print the medians."""
    options = parse_arguments()
    print_machine_facts()
    points = list(itertools.product(options.queues, options.depths))
    turns: dict[tuple[str, int], list[float]] = {point: [] for point in points}
    for _ in range(TURNS):
        for point in points:
            turns[point].append(measure(*point, options.requests))
    medians = {point: statistics.median(each) for point, each in turns.items()}
    print(f"microseconds for a request, by how many wait; medians of {TURNS} turns")
    rows = []
    for name in options.queues:
        found = [medians[name, depth] for depth in options.depths]
        rows.append([name, *(f"{us:.2f}" for us in found), f"{1e6 / found[-1]:,.0f}"])
    print_table(["queue", *(f"{depth:,}" for depth in options.depths), "per second"], rows)
    if options.json:
        said = [{"queue": name, "depth": depth, "us": us} for (name, depth), us in medians.items()]
        options.json.write_text(json.dumps(said, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.queues",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    depths = [1, 10, 100, 1_000, 10_000, 100_000]
    parser.add_argument("--queues", nargs="+", choices=QUEUES, default=list(QUEUES))
    parser.add_argument("--depths", nargs="+", type=int, default=depths, metavar="REQUESTS")
    parser.add_argument("--requests", type=int, default=20_000, help="of each turn (20,000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
