"""Models of the backend `openvino`: completed, checked and executed by its rules.

Texts and rules are those of its public source: docs/backends.md has them row by row.
"""

from pathlib import Path

import numpy as np
import pytest
from runtime.support.steps import parameters, step_config, step_json, tensor

from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.steps.openvino_step import OpenVinoStep

openvino = pytest.importorskip("openvino", reason="the backend openvino needs openvino")

A, B = np.array([[5, 5]], np.float32), np.array([[2, 3]], np.float32)
IO = {"input": [tensor("a"), tensor("b")], "output": [tensor("d")]}


def difference(folder: Path, shape: object = (-1, 2), layout: str = "", kind: object = np.float32):
    """model.xml: d = a - b."""
    op = openvino.opset13
    given = [op.parameter(shape, kind, name=name) for name in ("a", "b")]
    graph = openvino.Model([op.result(op.subtract(*given))], given, "m")
    for port, name in zip((*graph.inputs, *graph.outputs), "abd", strict=True):
        port.set_names({name})
        if layout:
            openvino.layout_helpers.set_layout(port, openvino.Layout(layout))
    openvino.save_model(graph, folder / "model.xml", compress_to_fp16=False)
    return folder


def opened(folder: Path, **fields: object) -> OpenVinoStep:
    step = OpenVinoStep.open(step_config(**{**IO, **fields}), folder)
    step.check()
    return step


def test_a_graph_runs_at_any_batch(tmp_path):
    step = opened(difference(tmp_path, (1, 2)), max_batch_size=4)
    for rows in (1, 3):
        found = step.run({"a": A.repeat(rows, 0), "b": B.repeat(rows, 0)})
        assert found["d"].tolist() == [[3, 2]] * rows


def test_answers_are_kept_when_the_next_request_runs(tmp_path):
    step = opened(difference(tmp_path), max_batch_size=4)
    first = step.run({"a": A, "b": B})["d"]
    step.run({"a": B, "b": A})
    assert first.tolist() == [[3, 2]]


@pytest.mark.parametrize(
    ("layout", "given", "completed"),
    [
        ("NC", {}, {"max_batch_size": 4, "dynamic_batching": {}, "dims": [2]}),
        ("NC", {"max_batch_size": 1}, {"max_batch_size": 1, "dims": [2]}),
        ("", {}, {"max_batch_size": 0, "dims": [-1, 2]}),
    ],
)
def test_completion(tmp_path, layout, given, completed):
    config = step_json(**given)
    step = OpenVinoStep.open(step_config(**given), difference(tmp_path, layout=layout))
    step.complete(config, 4)
    dims = completed.pop("dims")
    assert config["input"] == [tensor("a", dims=dims), tensor("b", dims=dims)]
    assert config["output"] == [tensor("d", dims=dims)]
    assert {name: config[name] for name in completed} == completed
    assert ("dynamic_batching" in config) is ("dynamic_batching" in completed)


def test_given_fields_are_kept(tmp_path):
    config = step_json(**IO)
    OpenVinoStep.open(step_config(**IO), difference(tmp_path, layout="NC")).complete(config, 4)
    assert config == step_json(**IO)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": [tensor("a", dims=(1, 2))]}, "configuration expects 1 inputs, model provides 2"),
        (
            {"input": [tensor("a", dims=(1, 2)), tensor("c")]},
            "unexpected inference input 'c', allowed inputs are: a, b",
        ),
        (
            {"input": [tensor("a", "FP64", (1, 2)), tensor("b", dims=(1, 2))]},
            "unsupported datatype TYPE_FP64 for input 'a' for model 'm'",
        ),
        (
            {"input": [tensor("a", dims=(1, 3)), tensor("b", dims=(1, 2))]},
            "tensor 'a': the model expects 2 dimensions (shape [1,2]) but the model configuration "
            "specifies 2 dimensions (shape [1,3])",
        ),
        (
            {"max_batch_size": 4, "output": [tensor("d", dims=(3,))]},
            "making complete shape [-1,3])",
        ),
        ({"parameters": parameters(NUM_STREAMS="some")}, "a non-negative number or AUTO/NUMA, got"),
        ({"parameters": parameters(INFERENCE_NUM_THREADS="-1")}, "a non-negative number, got -1"),
        ({"parameters": parameters(NUM_STREAMS="1025")}, "'NUM_STREAMS': found '1025', expected"),
        ({"parameters": parameters(COMPILATION_NUM_THREADS="1025")}, "at most 1024 threads"),
        ({"parameters": parameters(CPU_EXTENSION_PATH="x.so")}, "loading custom CPU extensions"),
        ({"default_model_filename": "other.xml"}, "/other.xml' for model 'm'"),
    ],
)
def test_a_mismatch_is_refused(tmp_path, fields, message):
    shapes = {
        "input": [tensor(own, dims=(1, 2)) for own in "ab"],
        "output": [tensor("d", dims=(1, 2))],
    }
    if fields.get("max_batch_size"):
        shapes = IO
    with pytest.raises(ArtifactFault) as raised:
        opened(difference(tmp_path, (1, 2)), **{**shapes, **fields})
    assert message in str(raised.value)


def test_an_invalid_file_is_refused(tmp_path):
    (tmp_path / "model.xml").write_text("<net/>")
    with pytest.raises(ArtifactFault, match="openvino error in reading network : "):
        opened(tmp_path)


def test_threads_streams_and_hints_are_openvinos(tmp_path):
    given = parameters(NUM_STREAMS="1", INFERENCE_NUM_THREADS="1", PERFORMANCE_HINT="latency")
    step = opened(difference(tmp_path), max_batch_size=4, parameters=given)
    compiled = step._request.get_compiled_model()
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert compiled.get_property("NUM_STREAMS") == 1


def test_a_graph_that_keeps_its_batch_refuses_another_or_pads(tmp_path):
    fixed = {"max_batch_size": 2, "parameters": parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES")}
    folder = difference(tmp_path, (2, 2))
    with pytest.raises(EngineFault, match="expected requests with batch size '2', got '1'"):
        opened(folder, **fixed).run({"a": A, "b": B})
    fixed["parameters"] |= parameters(ENABLE_BATCH_PADDING="yes")
    step = opened(folder, **fixed)
    assert step.run({"a": A, "b": B})["d"].tolist() == [[3, 2]]
    assert step.run({"a": A.repeat(2, 0), "b": B.repeat(2, 0)})["d"].tolist() == [[3, 2]] * 2


def test_inputs_are_reshaped_if_requested(tmp_path):
    fields = {"input": [tensor(own, dims=(-1, 3)) for own in "ab"]}
    step = opened(
        difference(tmp_path, (1, 2)),
        **fields,
        output=[tensor("d", dims=(-1, 3))],
        parameters=parameters(RESHAPE_IO_LAYERS="yes"),
    )
    wide = np.ones((2, 3), np.float32)
    assert step.run({"a": wide, "b": wide})["d"].tolist() == [[0] * 3] * 2


def test_a_failed_execution_is_an_engine_fault(tmp_path):
    step = opened(difference(tmp_path), max_batch_size=4)
    with pytest.raises(EngineFault, match="openvino error in running inference : "):
        step.run({"a": A.repeat(3, 0), "b": B.repeat(2, 0)})


def test_instances_share_a_compiled_graph(tmp_path):
    folder = difference(tmp_path)
    first, second = (opened(folder, max_batch_size=4) for _ in range(2))
    assert first._model is second._model
    first.close()
    assert second.run({"a": A, "b": B})["d"].tolist() == [[3, 2]]


def test_old_parameters_are_reported(tmp_path):
    step = opened(
        difference(tmp_path), max_batch_size=4, parameters=parameters(CPU_THREADS_NUM="4")
    )
    assert [line.partition(": parameter ")[2] for line in step.notes] == [
        "'CPU_THREADS_NUM' has no effect here: a name of OpenVINO before 2022, which the backend "
        "no longer supports; use INFERENCE_NUM_THREADS"
    ]
