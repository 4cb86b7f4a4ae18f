"""Added inputs: controls, and states that are carried from request to request."""

import numpy as np
import pytest
from server.support.clock import ManualClock
from server.support.requests import array_tensor
from server.support.sequences import Stage, seen
from server.support.traces import NotedTrace

from reference_server.core.errors import internal
from reference_server.core.request import InferResponse
from reference_server.core.tensor import DataType
from reference_server.scheduling.execution import TracedSink
from reference_server.scheduling.sequence_inputs import correlation_value

CONTROLS = """
    control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [-5, 7] } }
    control_input { name: "E" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 0.5] } }
    control_input { name: "R"
                    control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } }
    control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""


def controls(request):
    return {name: request.inputs[name].array().item() for name in "SERC"}


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { }"])
def test_controls_have_start_end_ready_and_id(strategy):
    stage = Stage(CONTROLS + strategy)
    values = []
    for flags in ("start", "", "end", "both"):
        stage.ask("a", 2**63, flags)
        values.append(controls(*stage.finish()))
    assert [(t["S"], t["E"]) for t in values] == [(7, 0), (-5, 0), (-5, 0.5), (7, 0.5)]
    assert all(t["R"] is True and t["C"] == 2**63 for t in values)


def test_null_request_is_not_ready():
    stage = Stage(CONTROLS)
    for key in (1, 2):
        stage.ask(f"{key}", key, "start")
    stage.drain()
    stage.ask("b", 2, "end")
    assert controls(stage.finish()[0]) == {"S": -5, "E": 0, "R": False, "C": 0}


@pytest.mark.parametrize(("max_batch_size", "shape"), [(0, (1,)), (4, (1, 1))])
def test_controls_have_the_batch_dimension_of_the_model(max_batch_size, shape):
    stage = Stage(CONTROLS, max_batch_size=max_batch_size)
    stage.ask("a", 1, "start")
    (request,) = stage.finish()
    assert {request.inputs[name].shape for name in "SERC"} == {shape}


@pytest.mark.parametrize(
    ("correlation_id", "datatype", "value"),
    [
        (2**40 + 5, DataType.UINT64, 2**40 + 5),
        (2**63 + 7, DataType.INT64, -(2**63) + 7),
        (2**40 + 5, DataType.UINT32, 5),
        (2**32 - 1, DataType.INT32, -1),
        ("\udcff", DataType.BYTES, b"\xff"),  # not UTF-8: passed on unchanged
        ("\udcff", DataType.UINT64, 1 + (0xFF << 32)),
        ("str1", DataType.UINT64, 3563038292473544708),
        ("hello world", DataType.INT64, 7812730950931972107),
        ("1", DataType.UINT64, 210453397505),
        ("é", DataType.INT64, 186654983716866),
        ("hello world", DataType.UINT32, 11),
        ("str1", DataType.BYTES, b"str1"),
        (12, DataType.BYTES, b"12"),
        (0, DataType.BYTES, b""),
    ],
)
def test_correlation_value(correlation_id, datatype, value):
    assert correlation_value(correlation_id, datatype) == value


def test_string_control_has_the_whole_id():
    stage = Stage(CONTROLS.replace("UINT64", "STRING"))
    stage.ask("a", "w" * 128, "start")
    (request,) = stage.finish()
    assert seen(request, "C") == {"type": "BYTES", "value": [[b"w" * 128]]}
    assert request.inputs["C"].string_count() == 1


STATE = 'state { input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: [2] %s }'
STARTED = 'initial_state { name: "i" data_type: TYPE_INT32 dims: [2] data_file: "f" }'


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { }"])
def test_state_starts_from_its_file_and_is_carried_over(strategy):
    stage = Stage(STATE % STARTED + strategy, I=np.array([3, 4], np.int32).tobytes())
    values = []
    for flags in ("start", "", "end", "start"):
        stage.ask("a", 1, flags)
        (request,) = stage.busy[0]
        values.append(request.inputs["I"].array().tolist())
        stage.answer(O=request.inputs["I"].array() + 1, Y=np.zeros((1, 1), np.float32))
    assert values == [[[3, 4]], [[4, 5]], [[5, 6]], [[3, 4]]]


def test_state_without_initial_value_is_zeros():
    stage = Stage(STATE.replace("[2]", "[-1, 2]") % "")
    stage.ask("a", 1, "start")
    assert seen(*stage.finish(), "I") == {"type": "INT32", "value": [[[0, 0]]]}


def test_string_state_starts_with_empty_strings():
    stage = Stage(STATE.replace("INT32", "STRING") % "")
    stage.ask("a", 1, "start")
    assert seen(*stage.finish(), "I") == {"type": "BYTES", "value": [[b"", b""]]}


def test_second_start_resets_the_state():
    stage = Stage(STATE % "")
    for flags in ("start", "start"):
        stage.ask("a", 1, flags)
        (request,) = stage.busy[0]
        assert request.inputs["I"].array().tolist() == [[0, 0]]
        stage.answer(O=np.ones((1, 2), np.int32))


def test_each_sequence_has_its_own_state():
    stage = Stage(STATE % "")
    for key in (1, 2):
        stage.ask("a", key, "start")
        stage.answer(O=np.full((1, 2), key, np.int32))
    for key in (1, 2):
        stage.ask("b", key)
        assert stage.finish()[-1].inputs["I"].array().tolist() == [[key, key]]


def test_state_is_sent_only_if_it_is_an_output():
    response = []
    for output in ("", 'output { name: "O" data_type: TYPE_INT32 dims: [2] }'):
        stage = Stage(STATE % "", more=output)
        request = stage.ask("a", 1, "start")
        answers = request.sink
        stage.answer(O=np.ones((1, 2), np.int32), Y=np.zeros((1, 1), np.float32))
        response.append(answers._sink.wait())
    assert [[t.name for t in r.outputs] for r in response] == [["Y"], ["O", "Y"]]


def test_writing_to_a_state_does_not_change_the_response():
    stage = Stage(STATE % "", more='output { name: "O" data_type: TYPE_INT32 dims: [2] }')
    first = stage.ask("a", 1, "start")
    stage.answer(O=np.ones((1, 2), np.int32))
    stage.ask("b", 1)
    (second,) = stage.busy[0]
    second.inputs["I"].array()[:] = 5
    assert first.sink._sink.wait().outputs[0].array().tolist() == [[1, 1]]


def test_failed_request_keeps_the_state():
    stage = Stage(STATE % "")
    stage.ask("a", 1, "start")
    stage.answer(O=np.ones((1, 2), np.int32))
    failing = stage.ask("b", 1)
    failing.sink.send(
        InferResponse("m", 1, "b", [array_tensor("O", [[5, 5]])], error=internal("x"))
    )
    stage.finish()
    stage.ask("c", 1)
    assert stage.finish()[0].inputs["I"].array().tolist() == [[1, 1]]


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { }"])
def test_trace_sink_stays_outermost_after_rescheduling(strategy):
    stage = Stage(STATE % "" + "iterative_sequence: true " + strategy)
    request = stage.ask("a", 0)
    first = request.sink = TracedSink(request, NotedTrace(), ManualClock())
    stage.finish(again=["a"])
    assert request.sink is first
