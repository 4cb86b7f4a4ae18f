"""A model under test that asks others which are not there: stubs answer in their place."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from server.support.model_folders import write_model

from reference_server.testing import Code, ModelRepository, ServerError, open_repository

pytestmark = pytest.mark.brute_force

#: Asks `other` for Y, or for as many Y as it likes to give, and answers with all of them.
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


@pytest.fixture(scope="module", params=["inline", "process"])
def asking(models: Path, request: pytest.FixtureRequest) -> Iterator[ModelRepository]:
    options = [f"--backend-config=python,host={request.param}"]
    with open_repository(models, models=["asking"], options=options) as opened:
        yield opened


def told(repository, **options):
    return repository.model("asking").infer({"X": [1, 2]}, **options).outputs["Y"].tolist()


def test_a_stub_answers_in_the_place_of_a_model(asking):
    asking.stub("other", lambda inputs: {"Y": inputs["X"] * 10})
    assert told(asking) == [10, 20]


def test_the_latest_stub_answers(asking):
    for factor in (2, 3):
        asking.stub("other", lambda inputs, factor=factor: {"Y": inputs["X"] * factor})
    assert told(asking) == [3, 6]


def test_a_stub_hears_what_it_is_asked_and_may_keep_it(asking):
    heard = []

    def other(inputs):
        heard.append(inputs["X"])
        inputs["X"] += 1
        return {"Y": inputs["X"]}

    asking.stub("other", other)
    told(asking)
    assert told(asking) == [2, 3]
    assert [(array.dtype, array.tolist()) for array in heard] == [(np.float32, [2, 3])] * 2


def test_only_what_was_asked_for_is_given(asking):
    asking.stub("other", lambda inputs: {"Z": [9.0], "Y": inputs["X"]})
    assert told(asking) == [1, 2]


def test_a_stub_is_refused_an_output_that_it_does_not_give(asking):
    asking.stub("other", lambda inputs: {"Z": inputs["X"]})
    with pytest.raises(ServerError, match="unexpected inference output 'Y' for model 'other'"):
        told(asking)


def test_an_error_of_a_stub_is_told_to_the_model(asking):
    def other(inputs):
        raise ServerError(Code.UNAVAILABLE, "come back later")

    asking.stub("other", other)
    with pytest.raises(ServerError, match=r"^come back later$"):
        told(asking)


def test_a_defect_of_a_stub_is_told_with_its_line(asking):
    asking.stub("other", lambda inputs: {"Y": inputs["W"]})
    with pytest.raises(ServerError, match=r"KeyError: 'W'\n\nAt:\n.*test_stubs.py\(\d+\)"):
        told(asking)


def test_a_generator_stands_for_a_decoupled_model(asking):
    def other(inputs):
        for number in inputs["X"]:
            yield {"Y": [number, -number]}

    asking.stub("other", other)
    assert told(asking, parameters={"many": True}) == [1, -1, 2, -2]
    with pytest.raises(ServerError, match="Model other is using the decoupled"):
        told(asking)


def test_a_stub_goes_before_a_model_of_its_name_but_not_for_clients(asking):
    other = asking.load("other")
    assert other.infer({"X": [1, 2]}).outputs["Y"].tolist() == [1, 2]
    asking.stub("other", lambda inputs: {"Y": inputs["X"] * 10})
    assert other.infer({"X": [1, 2]}).outputs["Y"].tolist() == [1, 2]
    assert told(asking) == [10, 20]


def test_without_a_stub_the_model_is_told_that_the_other_is_not_there(models):
    with open_repository(models, models=["asking"]) as repository:
        repository.stub("another", lambda inputs: {"Y": inputs["X"]})
        with pytest.raises(ServerError, match="Request for unknown model: 'other' is not found"):
            told(repository)
