"""Test a Triton model without a server; requires reference-server and pytest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reference_server.testing import Code, Model, OpenRepository, ServerError, open_model

REPOSITORY = Path(__file__).parent / "model_repository"


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """Load the model once for all tests; the fixture `triton_model` loads it for each test."""
    with open_model(REPOSITORY / "word_count") as opened:
        yield opened


def test_words_are_counted(model: Model) -> None:
    response = model.infer({"TEXT": [["one"], ["two words"]]})
    assert response.outputs["COUNT"].tolist() == [[1], [2]]


def test_a_text_without_words_is_refused(model: Model) -> None:
    with pytest.raises(ServerError, match="a text without words") as caught:
        model.infer({"TEXT": [[""]]})
    assert caught.value.code is Code.INVALID_ARG


def test_three_requests_share_one_execution(model: Model) -> None:
    before = model.statistics().execution_count
    responses = model.infer_many([{"TEXT": [[text]]} for text in ("a", "a b", "a b c")])
    assert [response.outputs["COUNT"].item() for response in responses] == [1, 2, 3]
    assert model.statistics().execution_count == before + 1


def test_clients_see_json(triton_repository: OpenRepository) -> None:
    repository = triton_repository(REPOSITORY)
    body = b'{"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[1,1],"data":["a b"]}]}'
    reply = repository.http("POST", "/v2/models/word_count/infer", body)
    assert reply.status == 200
    assert reply.json()["outputs"][0]["data"] == [2]
