"""Models of the backend `onnxruntime`: completed, checked and executed by its rules.

Texts and rules are those of its public source: docs/backends.md has them row by row.
"""

import re

import numpy as np
import pytest
from onnx import TensorProto as Type
from onnx import helper
from runtime.support.steps import parameters, save, step_config, step_json, tensor

from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.steps.onnx_step import OnnxStep

IDENTITY = [helper.make_node("Identity", ["x"], ["y"])]


@pytest.fixture
def identity(tmp_path):
    """Return a folder with a graph that copies x to y, of these dims and this type."""

    def write(dims, kind=Type.FLOAT, outputs=None):
        shown = dims if outputs is None else outputs
        return save(tmp_path, IDENTITY, [("x", kind, dims)], [("y", kind, shown)])

    return write


@pytest.fixture
def opened():
    """Open a step, to be closed after the test."""
    steps = []

    def open_step(folder, **fields):
        steps.append(OnnxStep.open(step_config(**fields), folder))
        return steps[-1]

    yield open_step
    for step in steps:
        step.close()


def completed(opened, folder, default=4, **fields):
    config = step_json(**fields)
    opened(folder, **fields).complete(config, default)
    return config


@pytest.mark.parametrize(
    ("dims", "given", "size", "batcher", "own"),
    [
        pytest.param(["n", 3], {}, 4, True, [3], id="a batch dimension"),
        pytest.param(["n", 3], {"max_batch_size": 1}, 1, False, [3], id="batches of one"),
        pytest.param(["n", 3], {"max_batch_size": 8}, 8, True, [3], id="a size that is given"),
        pytest.param(
            ["n", 3], {"sequence_batching": {}}, 4, False, [3], id="a scheduler that is given"
        ),
        pytest.param([2, 3], {}, 0, False, [2, 3], id="a fixed first dimension"),
        pytest.param([], {}, 0, False, [1], id="a scalar"),
        pytest.param([None, "w"], {}, 4, True, [-1], id="sizes that vary"),
    ],
)
def test_completion(identity, opened, dims, given, size, batcher, own):
    config = completed(opened, identity(dims), **given)
    assert config["max_batch_size"] == size
    assert ("dynamic_batching" in config) is batcher
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": own}]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": own}]


@pytest.mark.parametrize(("default", "size"), [(0, 0), (-3, 0), (1, 1), (16, 16)])
def test_the_default_batch_size_is_the_servers(identity, opened, default, size):
    config = completed(opened, identity(["n", 3]), default)
    assert config["max_batch_size"] == size
    assert ("dynamic_batching" in config) is (size > 1)


def test_a_row_without_dims_is_reshaped(identity, opened):
    config = completed(opened, identity(["n"]))
    assert config["input"] == [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}
    ]


def test_a_batch_size_that_the_graph_cannot_have_is_refused(identity, opened):
    with pytest.raises(ArtifactFault, match="autofill failed for model 'm': model does not"):
        completed(opened, identity([2, 3]), max_batch_size=4)


def test_given_fields_are_kept(identity, opened):
    given = {"input": [tensor("x", dims=[7])]}
    config = completed(opened, identity(["n", 3]), **given)
    assert config["input"] == given["input"]
    assert [own["name"] for own in config["output"]] == ["y"]
    both = {**given, "output": [tensor("y")]}
    assert completed(opened, identity(["n", 3]), **both) == step_json(**both)


SAME = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "STRING"]
OTHERS = {"FLOAT16": "FP16", "FLOAT": "FP32", "DOUBLE": "FP64", "BFLOAT16": "INVALID"}


@pytest.mark.parametrize(("kind", "name"), [*zip(SAME, SAME, strict=True), *OTHERS.items()])
def test_types(identity, opened, kind, name):
    config = completed(opened, identity(["n", 3], getattr(Type, kind)))
    assert config["input"][0]["data_type"] == f"TYPE_{name}"


def test_a_folder_in_place_of_the_file(identity, tmp_path):
    (tmp_path / "net").mkdir()
    identity(["n", 3])
    (tmp_path / "model.onnx").rename(tmp_path / "net" / "model.onnx")
    OnnxStep.open(step_config(default_model_filename="net"), tmp_path).close()


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ArtifactFault, match=r"unable to find '.*/net.onnx' for model instance 'm'"):
        OnnxStep.open(step_config(default_model_filename="net.onnx"), tmp_path)


def test_a_corrupt_file_is_refused(tmp_path):
    (tmp_path / "model.onnx").write_text("nothing")
    with pytest.raises(ArtifactFault, match="onnxruntime cannot open it"):
        OnnxStep.open(step_config(), tmp_path)


CHECKS = {
    "more inputs": (
        {"input": [tensor("x"), tensor("z")], "output": [tensor("y")]},
        "unable to load model 'm', configuration expects 2 inputs, model provides 1",
    ),
    "another input": (
        {"input": [tensor("z")], "output": [tensor("y")]},
        "unexpected inference input 'z', allowed inputs are: x",
    ),
    "another output": (
        {"input": [tensor("x", dims=[5, 3])], "output": [tensor("z")]},
        "unexpected inference output 'z', allowed outputs are: y",
    ),
    "another type": (
        {"input": [tensor("x", "INT32")], "output": [tensor("y")]},
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'x', model "
        "provides TYPE_FP32",
    ),
    "a type that the backend has not": (
        {"input": [tensor("x", "BF16")], "output": [tensor("y")]},
        "unsupported datatype TYPE_BF16 for input 'x' for model 'm'",
    ),
    "other dims": (
        {"max_batch_size": 4, "input": [tensor("x", dims=[2])], "output": [tensor("y", dims=[3])]},
        "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model "
        "configuration specifies 2 dimensions (an initial batch dimension because max_batch_size "
        "> 0 followed by the explicit tensor shape, making complete shape [-1,2])",
    ),
    "an output's dims are exact": (
        {"input": [tensor("x", dims=[5, 3])], "output": [tensor("y", dims=[5, 3])]},
        "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,3]) but the model "
        "configuration specifies 2 dimensions (shape [5,3])",
    ),
    "an optional input in a batch": (
        {
            "max_batch_size": 4,
            "input": [tensor("x", dims=[3]), tensor("z", optional=True)],
            "output": [tensor("y", dims=[3])],
        },
        "unable to load model 'm', optional input 'z' is not supported for models that support "
        "batching",
    ),
    "a ragged input": (
        {"max_batch_size": 4, "input": [tensor("x", allow_ragged_batch=True)]},
        "unable to load model 'm', configuration expects model provides input with shape [-1]  for "
        "ragged input 'x', model provides [-1,3]",
    ),
    "a control": (
        {
            "sequence_batching": {
                "control_input": [
                    {
                        "name": "START",
                        "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}],
                    }
                ]
            }
        },
        "configuration specified sequence control 'START', but model does not provide that input",
    ),
}


@pytest.mark.parametrize(("fields", "text"), CHECKS.values(), ids=CHECKS)
def test_a_mismatch_is_refused(identity, opened, fields, text):
    step = opened(identity(["n", 3]), **fields)
    with pytest.raises(ArtifactFault) as caught:
        step.check()
    assert str(caught.value) == text


def test_a_batch_size_needs_a_first_dimension_that_varies(identity, opened):
    fields = {"input": [tensor("x", dims=[3])], "output": [tensor("y", dims=[3])]}
    step = opened(identity([2, 3]), max_batch_size=4, **fields)
    with pytest.raises(ArtifactFault, match="for the model to support batching the shape should"):
        step.check()


def test_an_input_may_be_narrower_than_the_graph(identity, opened):
    fields = {"input": [tensor("x", dims=[5])], "output": [tensor("y", dims=[-1])]}
    opened(identity(["n", "w"]), max_batch_size=4, **fields).check()


def answered(opened, folder, inputs, **fields):
    step = opened(folder, **fields)
    step.check()
    return step.run(inputs)


def test_it_runs_any_shape(identity, opened):
    fields = {"input": [tensor("x", dims=[-1])], "output": [tensor("y", dims=[-1])]}
    step = opened(identity(["n", "w"]), max_batch_size=4, **fields)
    step.check()
    for shape in ((1, 1), (4, 9), (2, 0), (3, 2)):
        array = np.random.default_rng(1).random(shape, np.float32)
        np.testing.assert_array_equal(step.run({"x": array})["y"], array)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([b"a", b"bcd"], [b"a", b"bcd"]),
        ([b"", b""], [b"", b""]),
        (["ä".encode(), b"x"], ["ä".encode(), b"x"]),
        ([b"cut\0here", b"x"], [b"cut", b"x"]),
        ([], []),
    ],
)
def test_strings_are_c_strings(identity, opened, given, expected):
    fields = {
        "input": [tensor("x", "STRING", [-1])],
        "output": [tensor("y", "STRING", [-1])],
    }
    answer = answered(
        opened, identity(["n"], Type.STRING), {"x": np.array(given, dtype=object)}, **fields
    )
    assert answer["y"].tolist() == expected


def test_a_scalar_is_configured_as_one_element(identity, opened):
    fields = {"input": [tensor("x", dims=[1])], "output": [tensor("y", dims=[1])]}
    answer = answered(opened, identity([]), {"x": np.array([7], np.float32)}, **fields)
    assert answer["y"].tolist() == [7]


def test_an_initializer_that_may_be_replaced_is_an_optional_input(tmp_path, opened):
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    inputs = [("x", Type.FLOAT, [2]), ("w", Type.FLOAT, [2])]
    weights = {"w": np.array([1, 2], np.float32)}
    folder = save(tmp_path, nodes, inputs, [("y", Type.FLOAT, [2])], weights)
    fields = {"input": [tensor("x"), tensor("w", optional=True)], "output": [tensor("y")]}
    x = np.zeros(2, np.float32)
    assert answered(opened, folder, {"x": x}, **fields)["y"].tolist() == [1, 2]
    given = {"x": x, "w": np.array([5, 5], np.float32)}
    assert answered(opened, folder, given, **fields)["y"].tolist() == [5, 5]


def test_a_failed_execution_has_the_text_of_triton(identity, opened):
    step = opened(identity([2, 3]), input=[tensor("x", dims=[2, 3])], output=[])
    step.check()
    with pytest.raises(EngineFault, match=r"^onnx runtime error 2: Got invalid dimensions"):
        step.run({"x": np.zeros((3, 3), np.float32)})


def test_parameters_that_sessions_have(identity):
    folder = identity(["n", 3])
    given = parameters(
        intra_op_thread_count="1", inter_op_thread_count="2", execution_mode="1", unknown="x"
    )
    step = OnnxStep.open(
        step_config(parameters=given, optimization={"graph": {"level": "2"}}), folder
    )
    options = step._shared.session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 2)
    assert str(options.execution_mode) == "ExecutionMode.ORT_PARALLEL"
    assert str(options.graph_optimization_level) == "GraphOptimizationLevel.ORT_DISABLE_ALL"
    assert step.notes == []
    step.close()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"execution_mode": "2"}, "Expected values for  execution_mode are 0 or 1 but got 2 ."),
        ({"intra_op_thread_count": "two"}, "'intra_op_thread_count': found 'two', expected a"),
        ({"intra_op_thread_count": "1025"}, "found '1025', expected at most 1024 threads"),
        ({"inter_op_thread_count": "1025"}, "found '1025', expected at most 1024 threads"),
    ],
)
def test_parameters_that_are_wrong(identity, given, text):
    with pytest.raises(ArtifactFault, match=text):
        OnnxStep.open(step_config(parameters=parameters(**given)), identity(["n", 3]))


def test_parameters_without_effect_are_named(identity, opened):
    given = parameters(enable_mem_arena="0", gpu_mem_limit="1")
    accelerators = {"cpu_execution_accelerator": [{"name": "openvino"}]}
    step = opened(
        identity(["n", 3]),
        parameters=given,
        optimization={"execution_accelerators": accelerators},
    )
    assert [re.search(": (.*) has no effect here: ", line)[1] for line in step.notes] == [
        "parameter 'enable_mem_arena'",
        "parameter 'gpu_mem_limit'",
        "execution accelerator 'openvino'",
    ]


def test_models_of_equal_content_share_a_session(identity, opened, tmp_path):
    folder = identity(["n", 3])
    first, second = opened(folder), opened(folder)
    other = opened(folder, parameters=parameters(intra_op_thread_count="1"))
    assert first._shared.session is second._shared.session
    assert other._shared.session is not first._shared.session
