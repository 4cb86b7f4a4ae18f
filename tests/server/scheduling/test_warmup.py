"""Warm-up: the samples that an instance executes before it is ready, and failures."""

import struct
from pathlib import Path

import numpy as np
import pytest
from server.support.clock import ManualClock
from server.support.configs import model_config
from server.support.instances import NotedOutcomes

from reference_server.core.errors import ServerError, internal, not_found
from reference_server.core.request import Execution, InferResponse
from reference_server.scheduling.execution import BatchExecutor
from reference_server.scheduling.warmup import WarmedInstance, Warmup

ROWS = """
    max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: [2] }
    output { name: "Y" data_type: TYPE_FP32 dims: [2] }
"""
LABEL = "[request id: <id_unknown>]"


def sample(name="s", batch_size=1, count=0, of="TYPE_FP32", dims="[2]", data="zero_data: true"):
    return (
        f'model_warmup {{ name: "{name}" batch_size: {batch_size} count: {count} inputs {{ '
        f'key: "X" value {{ data_type: {of} dims: {dims} {data} }} }} }}\n'
    )


class Keen:
    """An instance that answers immediately and records its inputs."""

    name = "m_0"

    def __init__(self):
        self.batches = []
        self.life = []
        self.outcome = None
        self.again = False

    def open(self):
        self.life.append("open")

    def execute(self, requests):
        self.batches.append([{**request.inputs} for request in requests])
        if isinstance(self.outcome, Exception) and not self.outcome.args[0].startswith("answer"):
            raise self.outcome
        answers = [InferResponse("m", 1, "", error=self.outcome) for _ in requests]
        again = frozenset([0]) if self.again else frozenset()
        self.again = False
        if again:
            answers[0] = None
        return Execution(answers, 0, 0, again)

    def close(self):
        self.life.append("close")


class Bench:
    """A warmed instance of the model in `text`."""

    def __init__(self, text, folder=Path("/nowhere")):
        config, clock = model_config(text), ManualClock()
        self.instance, self.outcomes = Keen(), NotedOutcomes()
        executor = BatchExecutor("m", 1, self.outcomes, clock)
        warm_up = Warmup(config.warmup, config.signature, folder, executor, clock)
        self.warmed = WarmedInstance(self.instance, warm_up)

    def given(self):
        """Open the instance, and return the arrays of X, by batch."""
        self.warmed.open()
        return [
            [inputs["X"].array().tolist() for inputs in batch] for batch in self.instance.batches
        ]

    def instance_data(self):
        """Open the instance, and return the bytes of X, by batch."""
        self.warmed.open()
        return [bytes(batch[0]["X"].raw()) for batch in self.instance.batches]

    def refusal(self):
        """Open the instance, which must fail, and return the error text."""
        with pytest.raises(ServerError) as raised:
            self.warmed.open()
        assert self.instance.life == ["open", "close"]
        return raised.value.described()


ZEROS = [[0, 0]]


def test_samples_run_in_order_and_count_times():
    text = ROWS + sample(batch_size=2, count=2) + sample()
    assert Bench(text).given() == [[ZEROS] * 2, [ZEROS] * 2, [ZEROS]]


def test_sample_of_batch_size_zero_is_skipped():
    assert Bench(ROWS + sample(batch_size=0, count=5)).given() == []


def test_rescheduled_sample_runs_again():
    bench = Bench(ROWS + sample())
    bench.instance.again = True
    assert bench.given() == [[ZEROS], [ZEROS]]


def test_random_data_is_reproducible():
    text = ROWS + sample(data="random_data: true")
    (first,), (second,) = (Bench(text).instance_data() for _ in range(2))
    assert first == second != bytes(8)


def test_random_bool_values_are_valid():
    text = ROWS.replace("FP32", "BOOL").replace("[2]", "[64]")
    (data,) = Bench(
        text + sample(of="TYPE_BOOL", dims="[64]", data="random_data: true")
    ).instance_data()
    assert set(data) == {0, 1}


@pytest.mark.parametrize("data", ["zero_data: true", "random_data: true"])
def test_generated_strings_are_empty(data):
    text = ROWS.replace("FP32", "STRING")
    assert Bench(text + sample(of="TYPE_STRING", data=data)).given() == [[[[b"", b""]]]]


def test_data_from_a_file(tmp_path):
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "data").write_bytes(struct.pack("<3f", 3, 4, 5))
    text = ROWS + sample(data='input_data_file: "data"')
    assert Bench(text, tmp_path).given() == [[[[3, 4]]]]


def test_strings_from_a_file(tmp_path):
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "data").write_bytes(b"\2\0\0\0ab\1\0\0\0c")
    text = ROWS.replace("FP32", "STRING")
    text += sample(of="TYPE_STRING", data='input_data_file: "data"')
    assert Bench(text, tmp_path).given() == [[[[b"ab", b"c"]]]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            sample(dims="[-1]"),
            "Invalid argument: warmup setting expects all variable-size dimensions are specified "
            "for input 'X'",
        ),
        (
            sample(data=""),
            f"Invalid argument: {LABEL} warmup setting expects input 'X' to have input_data_type "
            "set",
        ),
        (
            sample(of="TYPE_INT32"),
            f"Invalid argument: {LABEL} inference input 'X' data-type is 'INT32', but model 'm' "
            "expects 'FP32'",
        ),
        (
            'model_warmup { name: "s" batch_size: 1 }',
            f"Invalid argument: {LABEL} expected 1 inputs but got 0 inputs for model 'm'. Got "
            "input(s) [], but missing required input(s) ['X']. Please provide all required "
            "input(s).",
        ),
        (
            sample(data='input_data_file: "data"'),
            "Internal: failed to open text file for read /nowhere/warmup/data: No such file or "
            "directory",
        ),
        (
            sample(batch_size=5),
            "Invalid argument: failed to run warmup sample 's': "
            + "batch size 5 for 'm_0', max allowed is 4; " * 5,
        ),
    ],
)
def test_invalid_sample_is_refused_with_tritons_text(given, said):
    assert Bench(ROWS + given).refusal() == said


def test_sample_without_batching_has_one_row():
    text = ROWS.replace("max_batch_size: 4", "")
    assert (
        "batch size 2 for 'm_0', max allowed is 0; " in Bench(text + sample(batch_size=2)).refusal()
    )


def test_short_file_is_an_error(tmp_path):
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "data").write_bytes(b"abc")
    text = ROWS + sample(data='input_data_file: "data"')
    assert Bench(text, tmp_path).refusal() == (
        f"Invalid argument: {LABEL} warmup setting expects 8 bytes, but the data provided from "
        "dataonly has 3 bytes"
    )


@pytest.mark.parametrize("outcome", [internal("it raised"), not_found("answer: nothing")])
def test_failed_sample_fails_open(outcome):
    bench = Bench(ROWS + sample(batch_size=2) + sample(name="never"))
    bench.instance.outcome = outcome
    assert bench.refusal() == (
        "Invalid argument: failed to run warmup sample 's': " + f"{outcome.message}; " * 2
    )
    assert len(bench.instance.batches) == 1


def test_no_sample_runs_if_one_is_invalid():
    bench = Bench(ROWS + sample() + sample(dims="[-1]"))
    bench.refusal()
    assert bench.instance.batches == []


def test_model_may_modify_its_inputs():
    bench = Bench(ROWS + sample(count=2))
    bench.warmed.open()
    first, second = (batch[0]["X"] for batch in bench.instance.batches)
    first.array()[:] = 7
    assert np.count_nonzero(second.array()) == 0


def test_warmed_instance_forwards_calls():
    bench = Bench(ROWS + sample())
    bench.warmed.open()
    assert bench.warmed.name == "m_0"
    bench.warmed.execute([])
    bench.warmed.close()
    assert (bench.instance.batches[1:], bench.instance.life) == ([[]], ["open", "close"])
