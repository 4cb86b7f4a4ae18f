"""Stubs that answer calls of the model under test to missing models."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from server.support.model_folders import write_model

from reference_server.testing import ModelRepository, ServerError, open_repository

pytestmark = pytest.mark.brute_force

#: Calls `other` for one or more Y, and answers with all of them.
ASKING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.ask(request) for request in requests]

        def ask(self, request):
            question = pb_utils.InferenceRequest(
                model_name="other", inputs=request.inputs(), requested_output_names=["Y"]
            )
            decoupled = "many" in request.parameters()
            answers = question.exec(decoupled=decoupled)
            found = []
            for answer in answers if decoupled else [answers]:
                if answer.has_error():
                    return pb_utils.InferenceResponse(error=answer.error())
                found += [tensor.as_numpy() for tensor in answer.output_tensors()]
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.concatenate(found))])
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asking")
    write_model(folder, "asking", source=ASKING)
    write_model(folder, "other")
    return folder


@pytest.fixture(scope="module", params=["process"])
def asking(models: Path, request: pytest.FixtureRequest) -> Iterator[ModelRepository]:
    options = [f"--backend-config=python,host={request.param}"]
    with open_repository(models, models=["asking"], options=options) as opened:
        yield opened


def report(repository, **options):
    return repository.model("asking").infer({"X": [1, 2]}, **options).outputs["Y"].tolist()


def test_a_stub_may_keep_its_inputs(asking):
    heard = []

    def other(inputs):
        heard.append(inputs["X"])
        inputs["X"] += 1
        return {"Y": inputs["X"]}

    asking.stub("other", other)
    report(asking)
    assert report(asking) == [2, 3]
    assert [(array.dtype, array.tolist()) for array in heard] == [(np.float32, [2, 3])] * 2


def test_a_missing_output_of_a_stub_is_an_error(asking):
    asking.stub("other", lambda inputs: {"Z": inputs["X"]})
    with pytest.raises(ServerError, match="unexpected inference output 'Y' for model 'other'"):
        report(asking)


def test_an_exception_of_a_stub_has_its_line(asking):
    asking.stub("other", lambda inputs: {"Y": inputs["W"]})
    with pytest.raises(ServerError, match=r"KeyError: 'W'\n\nAt:\n.*test_stubs.py\(\d+\)"):
        report(asking)


def test_a_generator_is_a_decoupled_model(asking):
    def other(inputs):
        for number in inputs["X"]:
            yield {"Y": [number, -number]}

    asking.stub("other", other)
    assert report(asking, parameters={"many": True}) == [1, -1, 2, -2]
    with pytest.raises(ServerError, match="Model other is using the decoupled"):
        report(asking)


def test_a_stub_replaces_a_loaded_model_but_not_for_clients(asking):
    other = asking.load("other")
    assert other.infer({"X": [1, 2]}).outputs["Y"].tolist() == [1, 2]
    asking.stub("other", lambda inputs: {"Y": inputs["X"] * 10})
    assert other.infer({"X": [1, 2]}).outputs["Y"].tolist() == [1, 2]
    assert report(asking) == [10, 20]


def test_without_a_stub_the_call_fails(models):
    with open_repository(models, models=["asking"]) as repository:
        repository.stub("another", lambda inputs: {"Y": inputs["X"]})
        with pytest.raises(ServerError, match="Model 'other' is not ready"):
            report(repository)
