"""An ensemble as public repositories have it: a tokenizer in Python, a model in ONNX, one in
TorchScript; and the same with a TensorRT plan, which a function stands in for."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from contract.test_steps import write_onnx
from onnx import TensorProto, helper

from reference_server.testing import ModelRepository, ServerError, open_repository

torch = pytest.importorskip("torch", reason="the backend pytorch needs torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

TOKENIZER = """
    import json

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            self.model_config = model_config = json.loads(args["model_config"])
            output = pb_utils.get_output_config_by_name(model_config, "input_ids")
            self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])

        def execute(self, requests):
            responses = []
            for request in requests:
                texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
                ids = np.zeros((len(texts), 8), self.dtype)
                for row, (text,) in zip(ids, texts):
                    known = [len(word) for word in text.decode("utf-8").split()][:8]
                    row[: len(known)] = known
                mask = (ids > 0).astype(self.dtype)
                responses.append(
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", mask)]
                    )
                )
            return responses
"""
TOKENIZER_CONFIG = """
    name: "tokenizer"
    backend: "python"
    max_batch_size: 8
    input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [
      { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
      { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
    ]
    instance_group [ { count: 2 kind: KIND_CPU } ]
"""
ENCODER_CONFIG = """
    platform: "onnxruntime_onnx"
    max_batch_size: 8
    input [
      { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
      { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
    ]
    output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 2 ] } ]
    dynamic_batching { max_queue_delay_microseconds: 100 }
    parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
    optimization { execution_accelerators {
      cpu_execution_accelerator : [ { name : "openvino" } ]
    }}
"""
CLASSIFIER_CONFIG = """
    platform: "%s"
    max_batch_size: 8
    input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" } ]
    instance_group [ { %s } ]
"""
ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 8
    input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 2 ] } ]
    ensemble_scheduling {
      step [
        {
          model_name: "tokenizer" model_version: -1
          input_map { key: "TEXT" value: "TEXT" }
          output_map { key: "input_ids" value: "ids" }
          output_map { key: "attention_mask" value: "mask" }
        },
        {
          model_name: "encoder" model_version: -1
          input_map { key: "input_ids" value: "ids" }
          input_map { key: "attention_mask" value: "mask" }
          output_map { key: "embedding" value: "embedding" }
        },
        {
          model_name: "CLASSIFIER" model_version: -1
          input_map { key: "INPUT__0" value: "embedding" }
          output_map { key: "OUTPUT__0" value: "SCORES" }
        }
      ]
    }
"""
STUBS = """
    import numpy as np

    def classify(inputs):
        if (inputs["INPUT__0"] < 0).any():
            raise ValueError("negative")
        return {"OUTPUT__0": inputs["INPUT__0"] * 10}

    def count(inputs):
        for number in range(inputs["N"].item()):
            if number == 3:
                raise ValueError("that is enough")
            yield {"TEXT": [str(number)]}
"""


SUM_CONFIG = """
    backend: "pytorch"
    max_batch_size: 4
    input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 1 ] } ]
    output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1 ] } ]
    sequence_batching {
      direct { }
      control_input [
        {
          name: "START__1"
          control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ]
        }
      ]
      state [
        { input_name: "TOTAL__2" output_name: "TOTAL__1" data_type: TYPE_FP32 dims: [ 1 ] }
      ]
    }
"""
STREAM_CONFIG = """
    backend: "dali"
    input [ { name: "N" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
    model_transaction_policy { decoupled: true }
"""


class Sum(torch.nn.Module):
    """A model that returns the current total, plus 100 for the first request."""

    def forward(self, given, start, total):
        together = total + given + 100 * start
        return together, together


class Classifier(torch.nn.Module):
    def forward(self, embedding):
        return torch.softmax(embedding, dim=1)


def write_encoder(folder: Path) -> None:
    """[words, letters] of the tokens that the mask leaves."""
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axes"], ["letters"], keepdims=1),
        helper.make_node("ReduceSum", ["attention_mask", "axes"], ["words"], keepdims=1),
        helper.make_node("Concat", ["words", "letters"], ["both"], axis=1),
        helper.make_node("Cast", ["both"], ["embedding"], to=TensorProto.FLOAT),
    ]
    ids = ("batch", "tokens")
    write_onnx(
        folder,
        nodes,
        [("input_ids", TensorProto.INT64, ids), ("attention_mask", TensorProto.INT64, ids)],
        [("embedding", TensorProto.FLOAT, ("batch", 2))],
        {"axes": np.array([1], np.int64)},
        ENCODER_CONFIG,
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixed")
    (root / "tokenizer" / "1").mkdir(parents=True)
    (root / "tokenizer" / "1" / "model.py").write_text(textwrap.dedent(TOKENIZER))
    (root / "tokenizer" / "config.pbtxt").write_text(TOKENIZER_CONFIG)
    write_encoder(root / "encoder")
    for name, platform, group, file in (
        ("classifier", "pytorch_libtorch", "count: 1", "model.pt"),
        ("plan", "tensorrt_plan", "kind: KIND_GPU gpus: [ 0 ]", "model.plan"),
    ):
        folder = root / name
        (folder / "1").mkdir(parents=True)
        (folder / "1" / file).touch()
        (folder / "config.pbtxt").write_text(CLASSIFIER_CONFIG % (platform, group))
        (folder / "labels.txt").write_text("short\nlong")
        (root / f"{name}_pipeline" / "1").mkdir(parents=True)
        text = ENSEMBLE.replace("CLASSIFIER", name)
        (root / f"{name}_pipeline" / "config.pbtxt").write_text(text)
    for name, text in (("sum", SUM_CONFIG), ("stream", STREAM_CONFIG)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    torch.jit.script(Sum()).save(str(root / "sum" / "1" / "model.pt"))
    torch.jit.script(Classifier()).save(str(root / "classifier" / "1" / "model.pt"))
    return root


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module `plan_stubs` in the current folder."""
    folder = tmp_path_factory.mktemp("stubs")
    (folder / "plan_stubs.py").write_text(textwrap.dedent(STUBS))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


TEXTS = np.array([[b"to be or not"], [b"encyclopedia"]], object)
EMBEDDINGS = np.array([[4, 9], [1, 12]], np.float32)


@pytest.fixture(scope="module")
def pipelines(models: Path, stubs: None) -> Iterator[ModelRepository]:
    """Open both pipelines with models in processes; other tests execute models in this process."""
    options = ["--stub-model=plan=plan_stubs:classify", "--backend-config=python,host=process"]
    names = ["classifier_pipeline", "plan_pipeline"]
    with open_repository(models, models=names, options=options) as opened:
        yield opened


def counts(repository: ModelRepository) -> list[int]:
    """Return the number of inferences of each step."""
    page = repository.metrics()
    steps = ("tokenizer", "encoder", "classifier")
    series = (f'nv_inference_count{{model="{step}",version="1"}} ' for step in steps)
    return [int(page.partition(name)[2].partition("\n")[0]) for name in series]


def test_the_three_steps_answer(pipelines: ModelRepository) -> None:
    before = counts(pipelines)
    scores = pipelines.model("classifier_pipeline").infer({"TEXT": TEXTS}).outputs["SCORES"]
    exact = np.exp(EMBEDDINGS) / np.exp(EMBEDDINGS).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(scores, exact, rtol=1e-5)
    assert counts(pipelines) == [count + 2 for count in before]


def test_a_function_stands_in_for_a_step_whose_backend_is_not_here(
    pipelines: ModelRepository,
) -> None:
    scores = pipelines.model("plan_pipeline").infer({"TEXT": TEXTS}).outputs["SCORES"]
    np.testing.assert_array_equal(scores, EMBEDDINGS * 10)
    page = pipelines.http("GET", "/v2/models/plan/config").body.decode()
    assert '"STUB_MODEL":{"string_value":"plan_stubs:classify"}' in page
    with pytest.raises(ServerError, match="stub: ValueError: negative"):
        pipelines.model("plan").infer({"INPUT__0": -EMBEDDINGS})


@pytest.mark.usefixtures("stubs")
def test_a_function_may_stand_in_for_a_decoupled_model(models: Path) -> None:
    option = "--stub-model=stream=plan_stubs:count"
    with open_repository(models, models=["stream"], options=[option]) as repository:
        stream = repository.model("stream")
        answers = stream.stream({"N": np.array([2], np.int32)})
        assert [own.outputs["TEXT"].tolist() for own in answers] == [[b"0"], [b"1"]]
        answers = stream.stream({"N": np.array([9], np.int32)})
        assert len([next(answers) for _ in range(3)]) == 3
        with pytest.raises(ServerError, match="stub: ValueError: that is enough"):
            next(answers)


def test_torchscript_has_controls_and_states(models: Path) -> None:
    with open_repository(models, models=["sum"]) as repository:
        totals = [
            repository.model("sum")
            .infer(
                {"INPUT__0": np.array([[number]], np.float32)},
                sequence_id=5,
                sequence_start=number == 1,
                sequence_end=number == 3,
            )
            .outputs
            for number in (1, 2, 3)
        ]
    assert [own["OUTPUT__0"].item() for own in totals] == [101, 103, 106]
    assert [list(own) for own in totals] == [["OUTPUT__0"]] * 3
