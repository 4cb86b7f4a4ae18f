"""A model under test: arrays through the server's scheduler and counters."""

import json

import numpy as np
import pytest

from reference_server.testing import Code, ServerError


def ask(model, *numbers, **options):
    return model.infer({"X": np.array([numbers], np.float32)}, **options)


def test_arrays_are_passed_in_and_out(repository):
    response = ask(repository.model("doubling"), 1.5)
    assert response.outputs["Y"].tolist() == [[3.0]]
    assert (response.model_name, response.model_version) == ("doubling", 1)


def test_a_models_writes_do_not_change_the_tests_input(repository):
    given = np.float32([[1]])
    repository.model("doubling").infer({"X": given})
    assert given.tolist() == [[1]]


@pytest.mark.parametrize(
    "texts",
    [
        ["ä", "b"],
        [b"\xc3\xa4", b"b"],
        np.array(["ä", "b"]),
        np.array([b"\xc3\xa4", b"b"]),
        np.array(["ä", b"b"], object),
    ],
    ids=["str", "bytes", "U", "S", "objects"],
)
def test_texts_of_every_type_are_bytes_for_the_model(repository, texts):
    report = repository.model("report").infer(
        {"X": texts}, sequence_id=1, sequence_start=True, sequence_end=True
    )
    assert report.outputs["Y"].tolist() == ["ä".encode(), b"b"]


def test_the_model_gets_the_requests_options(repository):
    report = repository.model("report").infer(
        {"X": ["a"]},
        outputs=["REPORT"],
        parameters={"top_k": 3},
        request_id="r7",
        sequence_id=42,
        sequence_start=True,
        sequence_end=True,
    )
    assert list(report.outputs) == ["REPORT"]
    assert report.request_id == "r7"
    assert json.loads(report.outputs["REPORT"].item()) == ["r7", 42, 3, {"top_k": 3}]


def test_requests_submitted_together_form_a_batch(repository):
    model = repository.model("meeting")
    responses = model.infer_many([{"X": [[number]]} for number in (1, 2, 3, 4)])
    assert [response.outputs["Y"].item() for response in responses] == [2, 4, 6, 8]
    report = model.statistics()
    assert (report.inference_count, report.execution_count) == (4, 1)


@pytest.mark.parametrize(
    ("inputs", "code", "text"),
    [
        ({"X": [[-1]]}, Code.UNSUPPORTED, "negative"),
        ({"Z": [[1]]}, Code.INVALID_ARG, "unexpected inference input 'Z' for model 'doubling'"),
        ({"X": np.array([[1]])}, Code.INVALID_ARG, "inference input 'X' data-type is 'INT64'"),
    ],
    ids=["model", "input", "type"],
)
def test_errors_have_the_servers_text_and_code(repository, inputs, code, text):
    with pytest.raises(ServerError) as caught:
        repository.model("doubling").infer(inputs)
    assert caught.value.code is code
    assert text in caught.value.message


def test_a_stream_continues_after_an_error(repository):
    stream = repository.model("streaming").stream({"X": [1, -1, 3]})
    assert next(stream).outputs["Y"].item() == 1
    with pytest.raises(ServerError, match="negative"):
        next(stream)
    assert [response.outputs["Y"].item() for response in stream] == [3]


def test_a_request_can_be_cancelled(repository):
    stream = repository.model("endless").stream({"X": [1]})
    assert next(stream).outputs["Y"].item() == 1
    stream.cancel()
    assert list(stream) == []


def test_infer_rejects_a_decoupled_model(repository):
    with pytest.raises(ServerError, match="doesn't support models with decoupled") as caught:
        repository.model("streaming").infer({"X": [1]})
    assert caught.value.code is Code.UNSUPPORTED


def test_bfloat16_is_passed_as_uint16(repository):
    with pytest.raises(ServerError, match="BF16"):  # NumPy has no such type
        repository.model("bits").infer({"X": np.uint16([0x3F80])})
