"""Durations in statistics lie between those measured by the model and by the client.

All three read the same clock of the machine, even if the model has a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.support.model_folders import write_model

from reference_server.core.telemetry import Snapshot
from reference_server.testing import ModelRepository, open_repository

pytestmark = pytest.mark.brute_force

CONFIG = """
    max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: [1] }
    output { name: "Y" data_type: TYPE_INT64 dims: [1] }
"""
#: Returns the nanoseconds that it measured in `execute`.
TIMING = """
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            began = time.monotonic_ns()
            while not (took := time.monotonic_ns() - began):
                pass
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([[took]]))])
                for _ in requests
            ]
"""
FAILING = TIMING.replace("return [", "raise ValueError(took); return [")


@pytest.fixture(scope="module", params=["inline", "process"])
def repository(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ModelRepository]:
    folder: Path = tmp_path_factory.mktemp("durations")
    write_model(folder, "alone", CONFIG, TIMING)
    write_model(folder, "failing", CONFIG, FAILING)
    options = [f"--backend-config=python,host={request.param}"]
    with open_repository(folder, options=options) as opened:
        yield opened


def parts(counted: Snapshot) -> list[int]:
    return [
        duration.ns
        for duration in (
            counted.queue,
            counted.compute_input,
            counted.compute_infer,
            counted.compute_output,
        )
    ]


def test_the_parts_of_a_request_add_up_to_less_than_the_whole(repository: ModelRepository):
    model = repository.model("alone")
    began = time.monotonic_ns()
    measured = [model.infer({"X": [[1]]}).outputs["Y"].item() for _ in range(3)]
    took = time.monotonic_ns() - began
    counted = model.statistics()
    assert all(ns > 0 for ns in parts(counted))
    assert sum(parts(counted)) <= counted.success.ns <= took
    assert sum(measured) <= counted.compute_infer.ns
    assert counted.fail.ns == 0


def test_a_failed_request_counts_its_time_but_no_parts(repository: ModelRepository):
    model = repository.model("failing")
    began = time.monotonic_ns()
    with pytest.raises(Exception, match="ValueError") as caught:
        model.infer({"X": [[1]]})
    took = time.monotonic_ns() - began
    counted = model.statistics()
    measured = int(str(caught.value).partition("ValueError: ")[2].split()[0])
    assert measured <= counted.fail.ns <= took
    assert counted.success.ns == 0
    assert parts(counted) == [0, 0, 0, 0]
