"""The cost of a decision about a request does not depend on the number of waiting requests."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from reference_server.config.complete import complete
from reference_server.config.schema import ModelConfig
from reference_server.core.request import InferRequest, InferResponse, SequenceFlag
from reference_server.core.tensor import DataType, Tensor
from reference_server.repository.schedulers import work_queue

COUNT = 640
"""Number of requests, a multiple of all batch sizes."""
STEP_NS = 1_000_000
"""Simulated time between two batches, longer than any queue delay."""
MODEL = """
    backend: "python" max_batch_size: 32
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
HOUR_US = 3_600_000_000
OLDEST = f"""sequence_batching {{ max_sequence_idle_microseconds: {HOUR_US}
    oldest {{ max_candidate_sequences: 64 }} }}"""
DIRECT = f"sequence_batching {{ max_sequence_idle_microseconds: {HOUR_US} direct {{ }} }}"
QUEUES = {
    "fifo": ("", 0),
    "dynamic": ("dynamic_batching { }", 0),
    "delay": (
        "dynamic_batching { preferred_batch_size: [16] max_queue_delay_microseconds: 500 }",
        0,
    ),
    "ordered": ("dynamic_batching { preserve_ordering: true }", 0),
    "levels": ("dynamic_batching { priority_levels: 3 default_priority_level: 2 }", 0),
    "timeouts": (
        f"""dynamic_batching {{ default_queue_policy {{
            default_timeout_microseconds: {HOUR_US} allow_timeout_override: true }} }}""",
        0,
    ),
    "direct": (DIRECT, 0),
    "direct, 32 long": (DIRECT, 32),
    "oldest": (OLDEST, 0),
    "oldest, 32 long": (OLDEST, 32),
}
"""Queues, and the number of sequences of their requests; 0: one sequence per request."""


class NullSink:
    def send(self, response):
        pass


def requests(sequences, count):
    """Yield requests of one row, with priorities 1 to 3 in turn."""
    array = np.zeros((1, 1), np.float32)
    for number in range(count):
        flags = SequenceFlag.START if number < sequences else SequenceFlag.NONE
        yield InferRequest(
            "m",
            {"X": Tensor("X", DataType.FP32, array.shape, array=array)},
            NullSink(),
            id=f"{number}",
            correlation_id=number % sequences + 1 if sequences else number + 1,
            flags=flags if sequences else SequenceFlag.START | SequenceFlag.END,
            priority=number % 3 + 1,
        )


def calls(name, depth):
    """Return the calls of Python and C functions per request while `depth` others wait.

    One instance takes a batch, the same number of requests arrives, and the batch ends.
    """
    batching, sequences = QUEUES[name]
    config = text_format.Parse(MODEL + batching, model_config_pb2.ModelConfig())
    complete(config, Path("m"))
    work = work_queue(ModelConfig.from_proto(config), Path("m"))
    waiting = iter(list(requests(sequences, depth + 2 * COUNT)))
    made = done = now = 0

    def offer(count):
        for request in itertools.islice(waiting, count):
            request.queued_ns = now
            work.offer(request, now)

    def count(frame, event, argument):
        nonlocal made
        made += event in ("call", "c_call")

    offer(depth)
    sys.setprofile(count)
    try:
        while done < COUNT:
            now += STEP_NS
            batch = work.take(0, now)
            assert batch
            assert not work.refused(now)
            taken = sum(request.batch_size > 0 for request in batch)
            offer(taken)
            for request in batch:
                request.sink.send(InferResponse("m", 1, request.id))
            work.finished(0, batch, [], now)
            work.next_deadline_ns()
            done += taken
    finally:
        sys.setprofile(None)
    return made / done


@pytest.mark.brute_force
@pytest.mark.parametrize("name", QUEUES)
def test_a_deeper_queue_needs_no_more_calls_per_request(name):
    assert calls(name, 6_400) < 1.2 * calls(name, 128)
