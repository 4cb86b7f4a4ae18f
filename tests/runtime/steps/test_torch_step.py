"""Models of the backend `pytorch`: checked and executed by its rules.

Texts and rules are those of its public source: docs/backends.md has them row by row.
"""

from typing import Dict, List  # noqa: UP035 - TorchScript reads these

import numpy as np
import pytest
from runtime.support.steps import parameters, step_config, step_json, tensor

from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.steps.torch_step import TorchStep

torch = pytest.importorskip("torch", reason="the backend pytorch needs torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")


class Difference(torch.nn.Module):
    def forward(self, a, b):
        return a - b, b - a


class ByName(torch.nn.Module):
    def forward(self, given: Dict[str, torch.Tensor]):  # noqa: UP006
        return given["a"] - given["b"]


class Longest(torch.nn.Module):
    def forward(self, texts: List[str]):  # noqa: UP006
        found = ""
        for text in texts:
            if len(text) > len(found):
                found = text
        return [found]


class Scalar(torch.nn.Module):
    def forward(self, a):
        return a.sum()


class Sized(torch.nn.Module):
    def forward(self, a, factor: int):
        return a * factor


@pytest.fixture
def script(tmp_path):
    def save(module):
        torch.jit.script(module).save(str(tmp_path / "model.pt"))
        return tmp_path

    return save


def opened(folder, **fields):
    step = TorchStep.open(step_config(**fields), folder)
    step.check()
    return step


A, B = np.array([[5, 5]], np.float32), np.array([[2, 3]], np.float32)
OUT = [tensor("d"), tensor("e")]


@pytest.mark.parametrize(
    ("inputs", "outputs", "result"),
    [
        pytest.param(["b", "a"], ["d", "e"], [-3, -2], id="names of forward's arguments"),
        pytest.param(["X__1", "Y__0"], ["d", "e"], [-3, -2], id="indices of inputs"),
        pytest.param(["x", "y"], ["d", "e"], [3, 2], id="the order of config.pbtxt"),
        pytest.param(["x__0", "y"], ["d", "e"], [3, 2], id="not all have an index"),
        pytest.param(["a", "b"], ["O__1", "P__0"], [-3, -2], id="indices of outputs"),
    ],
)
def test_names_determine_the_places_of_tensors(script, inputs, outputs, result):
    step = opened(
        script(Difference()),
        input=[tensor(name) for name in inputs],
        output=[tensor(name) for name in outputs],
    )
    first, second = inputs
    answer = step.run({first: A, second: B})
    assert answer[outputs[0]].ravel().tolist() == result


def test_one_dict_gets_all_inputs_by_name(script):
    fields = {"input": [tensor("b"), tensor("a")], "output": [tensor("OUTPUT__0")]}
    assert opened(script(ByName()), **fields).run({"b": B, "a": A})["OUTPUT__0"].tolist() == [
        [3, 2]
    ]


def test_strings_are_lists(script):
    fields = {
        "input": [tensor("TEXT__0", "STRING", [-1])],
        "output": [tensor("LONGEST__0", "STRING", [-1])],
    }
    given = np.array([b"a", "äöü".encode(), b"bc"], object)
    answer = opened(script(Longest()), **fields).run({"TEXT__0": given})
    assert answer["LONGEST__0"].tolist() == ["äöü".encode()]


def test_a_program_of_torch_export_runs_by_the_same_names(tmp_path):
    rows = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(
        Difference(), (torch.ones(2, 2), torch.ones(2, 2)), dynamic_shapes=(rows, rows)
    )
    torch.export.save(program, tmp_path / "model.pt2")
    three = [np.repeat(own, 3, axis=0) for own in (A, B)]
    for names in (["a", "b"], ["INPUT__0", "INPUT__1"], ["x", "y"]):
        step = opened(tmp_path, input=[tensor(name) for name in names], output=OUT)
        answer = step.run(dict(zip(names, three, strict=True)))
        assert answer["e"].tolist() == [[-3, -2]] * 3


def test_nothing_is_completed(script):
    config = step_json()
    TorchStep.open(step_config(), script(Difference())).complete(config, 4)
    assert config == step_json()


CHECKS = {
    "no inputs": ({"output": OUT}, "model configuration must contain at least one input, none"),
    "no outputs": (
        {"input": [tensor("a"), tensor("b")]},
        "model configuration must contain at least one output, none",
    ),
    "fewer inputs": (
        {"input": [tensor("a")], "output": OUT},
        "unable to load model 'm', configuration expects 1 inputs, model provides 2",
    ),
    "a type that the backend has not": (
        {"input": [tensor("a", "UINT32"), tensor("b")], "output": OUT},
        "unsupported datatype TYPE_UINT32 for input 'a' for model 'm'",
    ),
    "strings of two dimensions": (
        {
            "max_batch_size": 2,
            "input": [tensor("a", "STRING", [1]), tensor("b")],
            "output": OUT,
        },
        "Triton only supports 1 dimensional List of String as input for 'a' for model 'm'",
    ),
    "states without indices": (
        {
            "input": [tensor("a")],
            "output": OUT,
            "sequence_batching": {
                "state": [{"input_name": "s__1", "output_name": "t__1", **tensor("")}]
            },
        },
        "PyTorch model 'm' is using sequence batching with state but not all inputs and outputs",
    ),
    "a flag": (
        {"input": [tensor("a"), tensor("b")], "parameters": parameters(INFERENCE_MODE="maybe")},
        "parameter 'INFERENCE_MODE': found 'maybe', expected true or false",
    ),
    "threads": (
        {
            "input": [tensor("a"), tensor("b")],
            "parameters": parameters(INTRA_OP_THREAD_COUNT="1025"),
        },
        "parameter 'INTRA_OP_THREAD_COUNT': found '1025', expected at most 1024 threads",
    ),
}


@pytest.mark.parametrize(("fields", "text"), CHECKS.values(), ids=CHECKS)
def test_a_mismatch_is_refused(script, fields, text):
    with pytest.raises(ArtifactFault) as caught:
        opened(script(Difference()), **fields)
    assert text in str(caught.value)


def test_an_argument_that_is_not_a_tensor_is_refused(script):
    with pytest.raises(ArtifactFault, match="An input of type 'int' was detected in the model"):
        opened(script(Sized()), input=[tensor("a"), tensor("factor")], output=[tensor("y")])


@pytest.mark.parametrize(
    ("module", "outputs", "text"),
    [
        (Scalar(), [tensor("y")], "output 'y' is a scalar which is not supported."),
        (
            torch.nn.Identity(),
            [tensor("y", "INT64")],
            "configuration expects datatype TYPE_INT64 for output 'y', model provides TYPE_FP32",
        ),
        (
            torch.nn.Identity(),
            [tensor("Y__1")],
            "The output Y__1 in the model configuration refers to an output index which doesn't "
            "exist. This model has 1 outputs",
        ),
    ],
    ids=["a scalar", "another type", "no such result"],
)
def test_results_that_are_not_as_configured(script, module, outputs, text):
    step = opened(script(module), input=[tensor("X__0")], output=outputs)
    with pytest.raises(EngineFault) as caught:
        step.run({"X__0": A})
    assert str(caught.value) == text


def test_a_failed_execution_has_the_text_of_triton(script):
    fields = {"input": [tensor("a"), tensor("b")], "output": OUT}
    with pytest.raises(EngineFault, match="PyTorch execute failure: "):
        opened(script(Difference()), **fields).run({"a": A, "b": np.ones((1, 3), np.float32)})


@pytest.mark.parametrize(("files", "found"), [(["net.pt"], "net.pt"), ([], "model.pt")])
def test_a_missing_file_is_refused(tmp_path, files, found):
    name = {"default_model_filename": files[0]} if files else {}
    with pytest.raises(ArtifactFault, match=f"unable to find '.*/{found}' for model instance 'm'"):
        opened(tmp_path, **name)


def test_a_corrupt_file_is_refused(tmp_path):
    (tmp_path / "model.pt").write_text("nothing")
    with pytest.raises(ArtifactFault, match="failed to load model 'm': "):
        opened(tmp_path)


def test_parameters_without_effect_are_named(script):
    given = parameters(ENABLE_NVFUSER="true", DISABLE_OPTIMIZED_EXECUTION="true")
    step = TorchStep.open(step_config(parameters=given), script(Difference()))
    (line,) = step.notes
    assert "parameter 'ENABLE_NVFUSER'" in line
