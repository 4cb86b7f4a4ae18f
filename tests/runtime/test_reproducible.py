"""Answers with the same bits alone and beside other requests, by ONNX Runtime."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runtime.support.axis_graphs import ATTENTIVE_IDS, attentive
from runtime.support.configs import encoder_config
from runtime.support.graphs import Graph

from ge_runtime import EngineFault, Runtime

ATTENTIVE = Graph("attentive", attentive, lambda: None, ((), ()))
GEARS = {"gears.tokens": "4, 16, 32", "gears.batch": "4"}
COST = {"cost": "launch_us=100, element_ns=1000, element2_ns=0"}


@pytest.fixture(scope="module")
def opened(version_dir):
    """Return a function: parameters -> the runtime, one for each."""
    runtimes = {}

    def open_runtime(**parameters):
        key = tuple(sorted(parameters.items()))
        if key not in runtimes:
            config = encoder_config({**COST, **GEARS, **parameters}, batch=8)
            runtimes[key] = Runtime.open(
                version_dir(ATTENTIVE), config, instance_name=f"m_{len(runtimes)}"
            )
        return runtimes[key]

    yield open_runtime
    for runtime in runtimes.values():
        runtime.close()


def request(seed, rows, tokens):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, tokens + 1, (rows, 1)).astype(np.int32)
    return {"input_ids": rng.integers(0, ATTENTIVE_IDS, (rows, tokens)), "lengths": lengths}


def bits(answer):
    return answer["embedding"].tobytes()


requests = st.builds(request, st.integers(0, 99), st.integers(1, 4), st.integers(1, 32))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.lists(requests, min_size=2, max_size=12), threads=st.sampled_from("12"))
def test_an_answer_has_the_same_bits_alone_and_with_others(opened, batch, threads):
    runtime = opened(reproducible="true", intra_op_threads=threads)
    alone = [bits(runtime.infer([own])[0]) for own in batch]
    assert [bits(answer) for answer in runtime.infer(batch)] == alone
    backwards = runtime.infer(batch[::-1])
    assert [bits(answer) for answer in backwards][::-1] == alone


def test_without_reproducible_rounding_depends_on_other_requests(opened):
    runtime = opened(reproducible="false", **{"gears.batch": "1, 2, 4, 8"})
    batch = [request(seed, 1, 1 + seed % 32) for seed in range(64)]
    alone = [bits(runtime.infer([own])[0]) for own in batch]
    assert [bits(answer) for answer in runtime.infer(batch)] != alone


def test_every_execution_has_the_rows_of_its_gear(opened):
    runtime = opened(reproducible="true")
    before = runtime.counts()
    runtime.infer([request(1, 1, 3), request(2, 2, 16), request(3, 1, 15), request(4, 3, 2)])
    counts = runtime.counts().since(before)
    assert counts.gear_hits == {"batch 4, tokens 4": 1, "batch 4, tokens 16": 1}
    assert counts.shared_launches == {"reproducible": 2}


def test_requests_beside_one_that_fails_keep_their_bits(opened):
    runtime = opened(reproducible="true")
    sound = [request(seed, 1, 9) for seed in range(3)]
    alone = [bits(runtime.infer([own])[0]) for own in sound]
    poison = {
        "input_ids": np.array([[ATTENTIVE_IDS + 1] * 9]),
        "lengths": np.array([[9]], np.int32),
    }
    before = runtime.counts()
    first, culprit, *others = runtime.infer([sound[0], poison, *sound[1:]])
    assert isinstance(culprit, EngineFault)
    assert [bits(answer) for answer in (first, *others)] == alone
    hits = runtime.counts().since(before).gear_hits
    assert set(hits) == {"batch 4, tokens 16"}
