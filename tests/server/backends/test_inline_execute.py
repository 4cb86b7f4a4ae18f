"""Tests of the execution of batches: responses and failures."""

import logging

import numpy as np
import pytest
from server.backends.kit import (
    DROPPED,
    FAILED,
    IDENTITY,
    answer,
    executing,
    execution_error,
    outputs,
    request,
)
from server.support.requests import Answers

from reference_server.core.errors import Code, ServerError
from reference_server.core.tensor import DataType, Tensor


def test_a_batch_is_answered_in_order_each_with_its_own_shape(open_model):
    execution = open_model(IDENTITY).execute(
        [request(id="a", IN=[[1], [2]]), request(id="b", IN=[3.5]), request(id="c", IN=[b"x"])]
    )
    assert [(r.id, outputs(r)) for r in execution.responses] == [
        ("a", {"OUT": [[1], [2]]}),
        ("b", {"OUT": [3.5]}),
        ("c", {"OUT": [b"x"]}),
    ]
    assert all(r.final and r.model_name == "m" for r in execution.responses)


def test_an_execution_has_the_end_of_input_and_start_of_output(open_model):
    execution = open_model(IDENTITY).execute([request(IN=[1])])
    assert (execution.input_end_ns, execution.output_start_ns) == (1, 2)


def test_arrays_pass_through_without_a_copy(open_model):
    given = np.arange(4, dtype=np.float32)
    (output,) = answer(open_model(IDENTITY), request(IN=given)).outputs
    assert np.shares_memory(output.array(), given)


def test_received_bytes_are_viewed_not_copied(open_model):
    wire = bytearray(np.arange(4, dtype=np.float32).tobytes())
    asked = request()
    asked.inputs["IN"] = Tensor("IN", DataType.FP32, (4,), raw=memoryview(wire))
    (output,) = answer(open_model(IDENTITY), asked).outputs
    assert np.shares_memory(output.array(), np.frombuffer(wire, np.uint8))


def test_outputs_that_were_not_requested_are_dropped(open_model):
    opened = open_model(
        executing(
            "def out(name, *values): return pb_utils.Tensor(name, np.array(values))",
            "made = [out('OUT', 1), out('UNDECLARED', 2), out('TEXT', 3), out('OUT', 4)]",
            "return [pb_utils.InferenceResponse(made) for _ in requests]",
        )
    )
    execution = opened.execute([request(), request("TEXT"), request("OUT")])
    assert [[t.name for t in r.outputs] for r in execution.responses] == [
        ["OUT", "TEXT", "OUT"],
        ["TEXT"],
        ["OUT", "OUT"],
    ]


def test_state_outputs_are_returned_without_a_request_for_them(open_model):
    opened = open_model(
        executing(
            "made = [pb_utils.Tensor(name, np.array(1)) for name in ('OUT', 'KEPT', 'TEXT')]",
            "return [pb_utils.InferenceResponse(made) for _ in requests]",
        ),
        state_names=frozenset({"KEPT"}),
    )
    execution = opened.execute([request(), request("TEXT")])
    assert [[t.name for t in r.outputs] for r in execution.responses] == [
        ["OUT", "KEPT", "TEXT"],
        ["KEPT", "TEXT"],
    ]


def test_a_missing_output_is_left_out(open_model):
    opened = open_model(executing("return [pb_utils.InferenceResponse([])]"))
    assert outputs(answer(opened, request("OUT"))) == {}


@pytest.mark.parametrize("code", list(Code))
def test_an_error_response_fails_only_its_request(open_model, code):
    opened = open_model(
        executing(
            f"error = pb_utils.TritonError('broken é', pb_utils.TritonError.{code.name})",
            "good = [pb_utils.Tensor('OUT', np.array([1]))]",
            "return [pb_utils.InferenceResponse(good, error), pb_utils.InferenceResponse(good)]",
        )
    )
    failed, good = opened.execute([request(id="a"), request(id="b")]).responses
    assert (failed.id, failed.error.code, failed.error.message) == ("a", code, "broken é")
    assert failed.outputs == ()
    assert outputs(good) == {"OUT": [1]}


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("return {}", "Expected a list in the execute return, found type '<class 'dict'>'."),
        (
            "return (x for x in [])",
            "Expected a list in the execute return, found type '<class 'generator'>'.",
        ),
        (
            "return [5]",
            "Expected an 'InferenceResponse' object in the execute function return list, "
            "found type '<class 'int'>'.",
        ),
        (
            "return [pb_utils.TritonError('x')]",
            "Expected an 'InferenceResponse' object in the execute function return list, "
            "found type '<class 'c_python_backend_utils.TritonError'>'.",
        ),
        (
            "raise pb_utils.TritonModelException('x')",
            "TritonModelException: x\n\nAt:\n  {file}(7): execute\n",
        ),
    ],
)
def test_an_exception_in_execute_fails_the_batch(tmp_path, open_model, statement, text, caplog):
    expected = FAILED + text.format(file=tmp_path / "m/1/model.py")
    assert execution_error(open_model(executing(statement))) == expected
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [expected]


def test_none_in_the_list_fails_only_its_request(open_model):
    opened = open_model(executing("return [None, pb_utils.InferenceResponse([])]"))
    answers = Answers()
    forgotten = request()
    forgotten.sink = answers
    none, good = opened.execute([forgotten, request()]).responses
    assert none is None
    assert good.error is None
    error = answers.wait().error
    assert (error.code, error.message) == (Code.INTERNAL, FAILED + DROPPED)


def test_a_model_without_execute_loads_and_fails_each_request(tmp_path, open_model):
    opened = open_model("class TritonPythonModel: pass")
    assert execution_error(opened) == (
        f"{FAILED}Python model {tmp_path}/m/1/model.py does not implement `execute` method."
    )


def test_the_models_exception_is_the_cause(open_model):
    opened = open_model(executing("raise LookupError('here')"))
    with pytest.raises(ServerError) as caught:
        opened.execute([request()])
    assert isinstance(caught.value.__cause__, LookupError)
