"""Traces: their elements, order and files."""

import itertools
import json

import numpy as np
import pytest
from server.support.clock import ManualClock
from server.support.requests import a_request, array_tensor, raw_tensor

from reference_server.core.tensor import DataType, Tensor
from reference_server.observability.sampling import TraceLevel
from reference_server.observability.tracing import FileTracer, TraceFile

BOTH = TraceLevel.TIMESTAMPS | TraceLevel.TENSORS


@pytest.fixture
def file(tmp_path):
    return TraceFile(str(tmp_path / "trace.json"))


@pytest.fixture
def tracer(file):
    """A function that makes a tracer of all requests with one file."""

    def build(level=BOTH, **more):
        settings = {"rate": 1, "count": -1, "log_frequency": 0} | more
        clock = ManualClock(now_ns=100)
        return FileTracer(level, file=file, ids=itertools.count(1), clock=clock, **settings)

    return build


def written(tmp_path, name="trace.json"):
    return json.loads((tmp_path / name).read_text(encoding="utf-8"))


def names(elements, id=1):
    """Return the elements of a trace by short names."""
    return [
        element["timestamps"][0]["name"]
        if "timestamps" in element
        else element.get("activity") or element["model_name"]
        for element in elements
        if element["id"] == id
    ]


def test_all_events_of_a_request_are_recorded(tracer, file, tmp_path):
    trace = tracer().sample()
    trace.stamp("HTTP_RECV_START", 7)
    trace.accepted("m", 3, a_request(array_tensor("X", np.float32([1, 2])), id="q"))
    trace.answered([array_tensor("Y", np.int8([-1]))], (10, 20, 30))
    trace.stamp("HTTP_SEND_END")
    trace.close()
    file.close()
    stamp = '{{"id":1,"timestamps":[{{"name":"{}","ns":{}}}]}}'.format
    tensor = '{{"id":1,"activity":"{}","tensor":{}}}'.format
    assert (tmp_path / "trace.json").read_text() == "[" + ",".join(
        [
            stamp("HTTP_RECV_START", 7),
            '{"id":1,"model_name":"m","model_version":3,"request_id":"q"}',
            stamp("REQUEST_START", 100),
            stamp("QUEUE_START", 100),
            tensor("TENSOR_QUEUE_INPUT", '{"name":"X","data":"1,2","shape":"2","dtype":"FP32"}'),
            tensor("TENSOR_BACKEND_OUTPUT", '{"name":"Y","data":"-1","shape":"1","dtype":"INT8"}'),
            stamp("INFER_RESPONSE_COMPLETE", 100),
            stamp("COMPUTE_START", 10),
            stamp("COMPUTE_INPUT_END", 20),
            stamp("COMPUTE_OUTPUT_START", 30),
            stamp("COMPUTE_END", 100),
            stamp("REQUEST_END", 100),
            stamp("HTTP_SEND_END", 100),
        ]
    ) + "]"


@pytest.mark.parametrize(
    ("level", "recorded"),
    [
        (TraceLevel.TIMESTAMPS, ["m", "REQUEST_START", "QUEUE_START"]),
        (TraceLevel.TENSORS, ["TENSOR_QUEUE_INPUT"]),
    ],
)
def test_only_the_elements_of_the_level_are_recorded(tracer, file, tmp_path, level, recorded):
    trace = tracer(level).sample()
    trace.accepted("m", 1, a_request(array_tensor("X", np.float32([1]))))
    trace.close()
    file.close()
    assert names(written(tmp_path)) == recorded


def test_a_step_is_written_before_its_ensemble_and_together_with_it(tracer, file, tmp_path):
    trace = tracer().sample()
    trace.accepted("e", 1, a_request())
    step = trace.child()
    trace.answered(())
    trace.close()
    assert list(tmp_path.iterdir()) == []  # the step is not done
    step.accepted("m", 1, a_request(id="q"))
    step.answered((), (1, 2, 3))
    file.close()
    elements = written(tmp_path)
    assert [element["id"] for element in elements][-1] == 1
    assert elements[0]["parent_id"] == 1
    assert "INFER_RESPONSE_COMPLETE" not in names(elements, 2)
    assert names(elements, 1)[-1] == "REQUEST_END"


@pytest.mark.parametrize(
    ("tensor", "data"),
    [
        (array_tensor("X", [True, False]), "1,0"),
        (array_tensor("X", np.uint8([1, 255])), "1,255"),
        (array_tensor("X", np.uint64([2**64 - 1])), "18446744073709551615"),
        (array_tensor("X", np.float32([0.1, 1e20, 1234567.5])), "0.1,1e+20,1.23457e+06"),
        (array_tensor("X", [float("nan"), float("-inf"), -0.0]), "nan,-inf,-0"),
        (array_tensor("X", np.float16([1])), ""),
        (raw_tensor("X", DataType.BF16, [1], b"\0\0"), ""),
        (array_tensor("X", np.array([b"a", 'é"\n'], object)), '"a","é\\"\\n"'),
        (raw_tensor("X", DataType.BYTES, [1], b"\1\0\0\0\xff"), r'"\\xff"'),
        (raw_tensor("X", DataType.BYTES, [1], b"\7\0\0\0"), ""),
        (Tensor("X", DataType.INT32, (2, 1), array=np.int32([[1], [2]])), "1,2"),
    ],
    ids=str,
)
def test_elements_are_recorded_as_text(tracer, file, tmp_path, tensor, data):
    trace = tracer(TraceLevel.TENSORS).sample()
    trace.accepted("m", 1, a_request(tensor))
    trace.close()
    file.close()
    (element,) = written(tmp_path)
    assert element["tensor"]["data"] == data
    assert element["tensor"]["shape"] == ",".join(map(str, tensor.shape))


def test_an_input_without_elements_is_not_recorded(tracer, file, tmp_path):
    trace = tracer(TraceLevel.TENSORS).sample()
    empty = array_tensor("X", np.float32([]))
    trace.accepted("m", 1, a_request(empty))
    trace.answered([empty])
    trace.close()
    file.close()
    assert names(written(tmp_path)) == ["TENSOR_BACKEND_OUTPUT"]


def traced(tracer, count):
    for _ in range(count):
        trace = tracer.sample()
        trace.stamp("HTTP_RECV_START")
        trace.close()


def test_numbered_files_are_written_when_full_and_when_a_setting_is_replaced(tracer, tmp_path):
    one = tracer(log_frequency=2)
    traced(one, 3)
    assert [element["id"] for element in written(tmp_path, "trace.json.0")] == [1, 2]
    assert not (tmp_path / "trace.json.1").exists()
    one.retire()
    assert [element["id"] for element in written(tmp_path, "trace.json.1")] == [3]


def test_a_trace_that_ends_after_its_setting_is_written(tracer, tmp_path):
    one = tracer(log_frequency=5)
    trace = one.sample()
    one.retire()
    trace.stamp("HTTP_RECV_START")
    trace.close()
    assert names(written(tmp_path, "trace.json.0")) == ["HTTP_RECV_START"]


def test_a_file_that_cannot_be_written_is_logged(tmp_path, caplog):
    file = TraceFile(str(tmp_path / "nowhere" / "trace.json"))
    file.append(["{}"])
    file.write_part(["{}"])
    file.close()
    assert caplog.text.count("cannot write traces to") == 2


def test_an_empty_trace_leaves_no_gap(tracer, file, tmp_path):
    one = tracer(TraceLevel.TENSORS)
    one.sample().close()
    trace = one.sample()
    trace.answered([array_tensor("Y", np.int8([1]))])
    trace.close()
    file.close()
    assert names(written(tmp_path), 2) == ["TENSOR_BACKEND_OUTPUT"]
