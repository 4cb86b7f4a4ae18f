"""Sizes that the graph cannot execute are tried three times, and never again."""

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from runtime.support.graphs import onnx_model

from ge_runtime import EngineFault, Runtime
from ge_runtime.batching.gears import Gear
from ge_runtime.counts import SharedCounts
from ge_runtime.errors import OutOfMemory, SizeDisabled
from ge_runtime.scheduling.failing_shapes import MOST_SIZES, FailingShapes

COST = "launch_us=1000, element_ns=1, element2_ns=0"


@pytest.fixture
def opened(tmp_path):
    """Open a model that adds the rows of a table; its Reshape allows one row."""
    runtimes = []

    def open_runtime(**parameters):
        nodes = [
            helper.make_node("Reshape", ["ids", "shape"], ["one"]),
            helper.make_node("Gather", ["table", "one"], ["values"]),
            helper.make_node("Cast", ["ids"], ["any"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["any", "zero"], ["zeros"]),
            helper.make_node("Add", ["values", "zeros"], ["y"]),
        ]
        model = onnx_model(
            nodes,
            [("ids", TensorProto.INT64, ["n", 4])],
            [("y", TensorProto.FLOAT, ["n", 4])],
            {
                "shape": np.array([1, 4]),
                "table": np.arange(8, dtype=np.float32),
                "zero": np.float32(0),
            },
        )
        onnx.save(model, tmp_path / "model.onnx")
        given = {"cost": COST, "load_check": "off", **parameters}
        config = {
            "name": "one_row",
            "max_batch_size": 4,
            "input": [{"name": "ids", "data_type": "TYPE_INT64", "dims": [4]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
            "parameters": {
                key.replace("__", "."): {"string_value": value} for key, value in given.items()
            },
        }
        runtimes.append(Runtime.open(tmp_path, config, instance_name="one_row_0"))
        return runtimes[-1]

    yield open_runtime
    for runtime in runtimes:
        runtime.close()


def request(*ids):
    return {"ids": np.array([ids])}


def test_requests_are_executed_alone_if_they_always_fail_together(opened, caplog):
    runtime = opened()
    four = [request(i, 1, 2, 3) for i in range(4)]
    for _ in range(3):
        answers = runtime.infer(four)
        assert [answer["y"][0, 0] for answer in answers] == [0, 1, 2, 3]
    before = runtime.counts()
    assert before.failed_launches == 3 + 3  # of 4 rows, of 2 rows
    assert [answer["y"][0, 0] for answer in runtime.infer(four)] == [0, 1, 2, 3]
    after = runtime.counts().since(before)
    assert (after.launches, after.failed_launches, after.culprits) == (4, 0, 0)
    assert before.disabled_sizes == 2 * 2  # the size, and the number of rows
    lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == 2
    assert lines[0].startswith(
        "one_row_0: execution of 2 row(s): found 3 failures, and one with generated values, "
        "expected a size that the graph executes: it is not tried again until the model is loaded "
        "again. The last failure was: onnxruntime: "
    )


def test_a_request_whose_size_always_fails_is_refused(opened):
    runtime = opened(gears__batch="2", warmup="none")
    answers = [runtime.infer([request(0, 1, 2, 3)])[0] for _ in range(5)]
    assert [type(answer) for answer in answers] == [EngineFault] * 3 + [SizeDisabled] * 2
    assert "execution of 2 row(s): found 3 failures" in str(answers[-1])
    counts = runtime.counts()
    assert (counts.failed_launches, counts.culprits, counts.disabled_sizes) == (3, 3, 2)


def test_requests_with_bad_values_disable_no_size(opened):
    runtime = opened()
    for _ in range(6):
        (answer,) = runtime.infer([request(0, 1, 2, 8)])
        assert isinstance(answer, EngineFault)
        assert not isinstance(answer, SizeDisabled)
    assert runtime.infer([request(7, 1, 2, 3)])[0]["y"][0, 0] == 7
    assert runtime.counts().disabled_sizes == 0


def sizes(blank=lambda gear: None):
    counts = SharedCounts()
    tried = []

    def try_blank(executor, gear):
        tried.append(gear)
        blank(gear)

    return FailingShapes("m_0", try_blank, counts), tried


def fail(gear):
    raise EngineFault("at this size")


GEAR = Gear(2, {"n": 7})


def test_a_number_of_rows_that_was_executed_is_not_disabled():
    failing, _ = sizes(fail)
    failing.note_success(Gear(2, {"n": 3}))
    for n in range(5, 10):
        failing.note_failure(Gear(2, {"n": n}), EngineFault("x"), None)
    assert not failing.any
    for _ in range(2):
        failing.note_failure(GEAR, EngineFault("x"), None)
    assert failing.find(GEAR, 1) is not None
    assert failing.find(Gear(2, {"n": 8}), 2) is None


def test_a_number_of_rows_is_disabled_only_for_several_requests():
    failing, tried = sizes(fail)
    for n in (5, 6, 7):
        failing.note_failure(Gear(2, {"n": n}), EngineFault("x"), None)
    assert tried == [Gear(2, {"n": 7})]
    assert failing.find(Gear(2, {"n": 9}), 2) is not None
    assert failing.find(Gear(2, {"n": 9}), 1) is None
    assert failing.find(Gear(3, {"n": 9}), 2) is None


def test_a_success_resets_the_count():
    failing, tried = sizes(fail)
    for _ in range(4):
        failing.note_failure(GEAR, EngineFault("x"), None)
        failing.note_failure(GEAR, EngineFault("x"), None)
        failing.note_success(GEAR)
    assert not failing.any
    assert not tried


def test_lack_of_memory_disables_no_size():
    def no_memory(gear):
        raise OutOfMemory("full")

    failing, tried = sizes(no_memory)
    for _ in range(3):
        failing.note_failure(GEAR, EngineFault("x"), None)
    assert tried == [GEAR]
    assert not failing.any


def test_memory_for_sizes_is_bounded():
    failing, _ = sizes(fail)
    for n in range(2 * MOST_SIZES):
        for _ in range(3):
            failing.note_failure(Gear(1, {"n": n}), EngineFault("x"), None)
    assert len(failing._disabled) == MOST_SIZES
    assert failing.find(Gear(1, {"n": 0}), 1) is None
    assert failing.find(Gear(1, {"n": 2 * MOST_SIZES - 1}), 1) is not None
    for n in range(2 * MOST_SIZES):
        failing.note_failure(Gear(1, {"m": n}), EngineFault("x"), None)
    assert len(failing._failures) == MOST_SIZES
