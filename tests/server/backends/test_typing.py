"""Tests that a type checker accepts models that use `triton_python_backend_utils`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODEL = """
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        config.set_max_batch_size(8)
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_model_transaction_policy({"decoupled": False})
        config.set_dynamic_batching()
        return config

    def initialize(self, args: dict[str, str]) -> None:
        self.config: dict[str, Any] = json.loads(args["model_config"])
        entry = pb_utils.get_output_config_by_name(self.config, "OUT")
        assert entry is not None
        self.dtype = pb_utils.triton_string_to_numpy(entry["data_type"])
        self.log = pb_utils.Logger
        family = pb_utils.MetricFamily("asked", "Requests", pb_utils.MetricFamily.COUNTER)
        self.asked = family.Metric(labels={"model": args["model_name"]})
        if not pb_utils.is_model_ready("other"):
            pb_utils.load_model("other")

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        if tensor is None or request.is_cancelled():
            error = pb_utils.TritonError("no", pb_utils.TritonError.CANCELLED)
            return pb_utils.InferenceResponse(error=error)
        numbers: npt.NDArray[Any] = tensor.as_numpy()
        question = pb_utils.InferenceRequest(
            request_id=request.request_id(),
            model_name="other",
            inputs=[pb_utils.Tensor("IN", numbers.astype(self.dtype))],
            requested_output_names=["OUT"],
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
            trace=request.trace(),
            parameters={"of": 1},
        )
        self.asked.increment(1)
        answer = question.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException("in vain")
        for each in question.exec(decoupled=True):
            self.log.log_info(str(len(each.output_tensors())))
        sender = request.get_response_sender()
        sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return pb_utils.InferenceResponse(answer.output_tensors(), parameters={"a": True})

    async def later(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        return await request.async_exec()

    def finalize(self) -> None:
        pb_utils.unload_model("other", unload_dependents=True)
"""
WRONG = """
import triton_python_backend_utils as pb_utils

pb_utils.Tensor("x", [1, 2])
pb_utils.Logger.log_info(5)
pb_utils.TritonError("x", 3)
pb_utils.no_such_name()
pb_utils.is_model_ready("m", 1)
"""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The findings of mypy in strict mode for both files and all examples, in one run.

    The files of models have one name, so mypy reads copies. Its cache is that of `make types`.
    """
    folder = tmp_path_factory.mktemp("typed")
    (folder / "used.py").write_text(MODEL)
    (folder / "wrong.py").write_text(WRONG)
    examples = ROOT / "examples"
    shutil.copy(examples / "test_your_model" / "test_word_count.py", folder)
    for model in examples.glob("**/1/model.py"):
        shutil.copy(model, folder / f"{model.parents[1].name}_model.py")
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file=pyproject.toml"]
        + [str(file) for file in sorted(folder.iterdir())],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert not found.stderr
    return [line.rpartition("/")[2] for line in found.stdout.splitlines()]


@pytest.mark.slow
def test_a_model_that_uses_everything_and_the_examples_are_well_typed(findings: list[str]):
    assert [line for line in findings if not line.startswith("wrong.py")] == []


@pytest.mark.slow
def test_wrong_arguments_and_names_are_found(findings: list[str]):
    found = [line.split(":") for line in findings if line.startswith("wrong.py:")]
    assert {line for _, line, kind, *_ in found if kind == " error"} == {"4", "5", "6", "7", "8"}
