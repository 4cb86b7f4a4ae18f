"""State kept from one request of a sequence to the next."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from runtime.support.axis_graphs import OLDEST, recurrent, recurrent_config, saved
from runtime.support.graphs import onnx_model

from ge_runtime.errors import ConfigFault, EngineFault, RequestFault
from ge_runtime.scheduling.request_batch import Caller
from ge_runtime.scheduling.sequences import SequenceStates, SequenceStep
from ge_runtime.specs import DType, TensorSpec

COST = {"cost": "launch_us=1000000, element_ns=1, element2_ns=0"}


def x(value):
    return {"x": np.full((1, 3), value, np.float32)}


def step(sequence, *, starts=False, ends=False):
    return Caller(sequence=SequenceStep(sequence, starts, ends))


def ask(runtime, value, sequence, **flags):
    """Return the first number of the answer."""
    (answer,) = runtime.infer([x(value)], [step(sequence, **flags)])
    return answer if isinstance(answer, Exception) else float(answer["y"][0, 0])


def expected(values):
    state, answers = 0.0, []
    for value in values:
        state = state * 0.5 + value
        answers.append(2 * state)
    return answers


@pytest.mark.parametrize("batch", ["batch", 1, 4])
def test_each_sequence_keeps_its_own_state_in_shared_executions(opened, batch):
    runtime = opened(recurrent(batch), recurrent_config(COST))
    values = {7: [1, 2, 3, 4], "nine": [50, 60, 70, 80], 8: [9, 8, 7, 6]}
    found = {sequence: [] for sequence in values}
    for at in range(4):
        callers = [step(sequence, starts=at == 0, ends=at == 3) for sequence in values]
        answers = runtime.infer([x(own[at]) for own in values.values()], callers)
        for sequence, answer in zip(values, answers, strict=True):
            assert sorted(answer) == ["y"]
            found[sequence].append(float(answer["y"][0, 0]))
    assert found == {sequence: expected(own) for sequence, own in values.items()}


def test_a_start_resets_the_state_and_requests_without_sequence_have_none(opened):
    runtime = opened(recurrent(), recurrent_config(COST))
    assert ask(runtime, 4, 1, starts=True) == 8
    (alone,) = runtime.infer([x(10)])
    assert alone["y"][0, 0] == 20
    assert ask(runtime, 4, 1) == 12
    assert ask(runtime, 4, 1, starts=True) == 8


def test_a_sequence_without_a_start_or_after_its_end_is_refused(opened):
    runtime = opened(recurrent(), recurrent_config(COST))
    refused = ask(runtime, 1, 5)
    assert isinstance(refused, RequestFault)
    assert str(refused) == (
        "sequence 5: found no state, expected a request with the START flag before; the states "
        "of at most 8 sequences are kept"
    )
    assert ask(runtime, 1, 5, starts=True, ends=True) == 2
    assert isinstance(ask(runtime, 1, 5), RequestFault)
    assert runtime.counts().refused == 2


def test_two_requests_of_a_sequence_in_one_batch_are_not_executed_together(opened):
    runtime = opened(recurrent(), recurrent_config(COST))
    first, second = runtime.infer([x(1), x(2)], [step(5, starts=True), step(5)])
    assert first["y"][0, 0] == 2
    assert str(second) == (
        "sequence 5: found two requests in a batch, expected one after the other"
    )


def test_a_request_of_several_rows_is_refused_and_keeps_the_state(opened):
    runtime = opened(recurrent(), recurrent_config(COST))
    assert ask(runtime, 4, 1, starts=True) == 8
    (refused,) = runtime.infer([{"x": np.ones((2, 3), np.float32)}], [step(1)])
    assert str(refused) == "found 2 rows in a request of a sequence, expected 1"
    assert ask(runtime, 4, 1) == 12
    # Without its first request a sequence does not continue, neither from 0 nor from before.
    runtime.infer([{"x": np.ones((2, 3), np.float32)}], [step(1, starts=True)])
    assert isinstance(ask(runtime, 4, 1), RequestFault)


def test_a_failed_execution_does_not_change_the_state(opened, monkeypatch):
    runtime = opened(recurrent(), recurrent_config(COST))
    assert ask(runtime, 4, 1, starts=True) == 8
    (executor,) = runtime._parts.executors
    engine, run = executor.engine, executor.engine.run

    def fail(inputs, outputs):
        run(inputs, outputs)
        raise EngineFault("broken")

    monkeypatch.setattr(engine, "run", fail)
    assert isinstance(ask(runtime, 4, 1), EngineFault)
    monkeypatch.undo()
    assert ask(runtime, 4, 1) == 12


def test_a_state_declared_as_an_output_is_answered(opened):
    config = recurrent_config(COST)
    config["output"].append({"name": "next", "data_type": "TYPE_FP32", "dims": [2, 3]})
    runtime = opened(recurrent(), config)
    answers = runtime.infer([x(1), x(2)], [step(1, starts=True), step(2, starts=True)])
    for value, answer in zip((1, 2), answers, strict=True):
        np.testing.assert_array_equal(answer["next"], np.full((1, 2, 3), value))
    assert ask(runtime, 1, 2) == 4


def test_a_state_of_one_row_has_requests_executed_one_by_one(opened):
    graph = recurrent()
    del graph.graph.input[1].type.tensor_type.shape.dim[1:]
    for size in (1, 3):
        graph.graph.input[1].type.tensor_type.shape.dim.add().dim_value = size
    runtime = opened(graph, recurrent_config(COST))
    for place, value in enumerate(expected([1, 2])):
        callers = [step(sequence, starts=place == 0) for sequence in (1, 2)]
        answers = runtime.infer([x(place + 1)] * 2, callers)
        assert [answer["y"][0, 0] for answer in answers] == [value, value]
    assert runtime.counts().launches == 4


def test_a_declared_state_has_the_dims_of_the_input(opened):
    config = recurrent_config(COST)
    config["output"].append({"name": "next", "data_type": "TYPE_FP32", "dims": [6]})
    with pytest.raises(ConfigFault) as raised:
        opened(recurrent(), config)
    assert (
        "parameter 'state.state': found output FP32[6], expected FP32[2,3], as the input has it"
    ) in str(raised.value)


def test_a_model_without_a_batch_dimension_keeps_states_too(opened):
    graph = recurrent(batch=1)
    config = recurrent_config(batch=0, sequence_batching={"direct": {}})
    for tensor in (*config["input"], *config["output"]):
        tensor["dims"] = [1, 3]
    config["parameters"] = {"state.state": {"string_value": "next"}}
    runtime = opened(graph, config)
    found = [ask(runtime, value, 3, starts=at == 0) for at, value in enumerate([1, 2, 3])]
    assert found == expected([1, 2, 3])


def test_a_state_may_come_from_any_stage(opened, tmp_path):
    scale = onnx_model(
        [helper.make_node("Mul", ["y", "half"], ["z"])],
        [("y", TensorProto.FLOAT, ["rows", 3])],
        [("z", TensorProto.FLOAT, ["rows", 3])],
        {"half": np.array(0.5, np.float32)},
    )
    onnx.save(scale, saved(recurrent(), tmp_path) / "scale.onnx")
    config = recurrent_config({"stages": "model, scale", **COST})
    config["output"][0]["name"] = "z"
    runtime = opened(recurrent(), config)
    for place, value in enumerate(expected([1, 2, 3])):
        (answer,) = runtime.infer([x(place + 1)], [step(1, starts=place == 0)])
        assert answer["z"][0, 0] == value / 2


@pytest.mark.parametrize(
    ("graph", "config", "expected"),
    [
        (recurrent(), recurrent_config(sequence_batching=None), "parameter 'state.state': found"),
        (
            recurrent(),
            recurrent_config(sequence_batching={**OLDEST, "state": [{"input_name": "state"}]}),
            "sequence_batching.state: found entries, expected none",
        ),
        (
            recurrent(),
            recurrent_config(sequence_batching={**OLDEST, "control_input": [{"name": "START"}]}),
            "sequence_batching.control_input: found entries, expected none",
        ),
        (recurrent(), recurrent_config({"state.other": "next"}), "found 'next', the state of"),
        (recurrent(), recurrent_config({"state.x": "y"}), "parameter 'state.x': found 'x' among"),
        (recurrent(), recurrent_config({"state.state": "nest"}), "parameter 'state.state': found"),
        (recurrent(layers="layers"), recurrent_config(), "parameter 'state.state': found"),
        (recurrent(), recurrent_config({"batch_axis.state": "none"}), "parameter 'state.state':"),
    ],
)
def test_invalid_states_are_refused_at_load(opened, graph, config, expected):
    with pytest.raises(ConfigFault) as raised:
        opened(graph, config)
    assert expected in str(raised.value)


SPEC = TensorSpec("state", DType.FP32, (2,))


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), max_size=60))
def test_a_state_belongs_to_its_sequence_or_is_missing(steps):
    """Compares the states with a dictionary that keeps all; 3 of up to 6 sequences fit."""
    states, model = SequenceStates([SPEC], 3), {}
    for sequence, starts, ends in steps:
        (found,) = states.find([SequenceStep(sequence, starts, ends)])
        if isinstance(found, RequestFault):
            assert not starts
            model.pop(sequence, None)
        else:
            count = 0 if starts else model[sequence]
            assert found["state"].tolist() == [[count, count]]
            found["state"][...] = model[sequence] = count + 1
        states.end([SequenceStep(sequence, ends=ends)])
        if ends:
            model.pop(sequence, None)
        assert len(states) <= 3


def test_the_least_recently_used_state_is_dropped_but_none_of_the_batch():
    states = SequenceStates([SPEC], 2)
    start = [SequenceStep(sequence, starts=True) for sequence in (1, 2, 3)]
    first, second, third = states.find(start)
    assert not isinstance(first, RequestFault)
    assert not isinstance(second, RequestFault)
    assert "found a batch of more than 2 sequences" in str(third)
    states.find([SequenceStep(1)])
    states.find([SequenceStep(4, starts=True)])
    assert isinstance(states.find([SequenceStep(2)])[0], RequestFault)
    assert not isinstance(states.find([SequenceStep(1)])[0], RequestFault)
    assert states.nbytes == 2 * 2 * 4


def mixing_states():
    """Return a graph that outputs its input, and sets each state to the mean of all states."""
    node = helper.make_node
    return onnx_model(
        [
            node("ReduceMean", ["state"], ["mean"], axes=[0], keepdims=1),
            node("Mul", ["state", "none"], ["nothing"]),
            node("Add", ["nothing", "mean"], ["faded"]),
            node("Add", ["faded", "x"], ["next"]),
            node("Identity", ["x"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["b", 3]), ("state", TensorProto.FLOAT, ["b", 3])],
        [("y", TensorProto.FLOAT, ["b", 3]), ("next", TensorProto.FLOAT, ["b", 3])],
        {"none": np.zeros(1, np.float32)},
    )


def test_the_load_check_finds_leakage_between_states_of_sequences(opened):
    config = recurrent_config({**COST, "batch_axis.state": "0", "batch_axis.next": "0"})
    with pytest.raises(
        ConfigFault, match=r"output 'state\.state': .* expected rows that are indep"
    ):
        opened(mixing_states(), config)
