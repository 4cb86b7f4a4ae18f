"""The text models' folders: configurations that agree, and what each model.py does."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from server.support.requests import Answers
from tritonclient.grpc.model_config_pb2 import ModelConfig

from model_factory import recipes
from model_factory.__main__ import REPOSITORY
from model_factory.artifacts import TEXTS
from model_factory.sentences import LABELS
from reference_server.backends.instances import InstanceSpec
from reference_server.backends.python_host.inline import InlineInstance
from reference_server.config import json_form
from reference_server.core.ports import SystemClock
from reference_server.core.request import InferRequest
from reference_server.core.tensor import Tensor, datatype_of
from reference_server.observability.metric_registry import MetricRegistry

pytestmark = pytest.mark.brute_force

FUSED = "text_pipeline_fused"


def read_config(model):
    config = text_format.Parse((REPOSITORY / model / "config.pbtxt").read_text(), ModelConfig())
    config.name = model
    return config


class Loaded:
    """A model folder as the reference server opens it, with the artifacts that `folder` has."""

    def __init__(self, folder: Path, config: ModelConfig):
        spec = InstanceSpec(
            name=f"{config.name}_0_0",
            model_name=config.name,
            model_version=1,
            model_directory=folder,
            version_directory=REPOSITORY / config.name / "1",
            model_filename="model.py",
            config_json=json_form.as_json(config),
            output_names=frozenset(tensor.name for tensor in config.output),
        )
        self._instance = InlineInstance(spec, SystemClock(), MetricRegistry())
        self._instance.open()
        self.close = self._instance.close

    def execute(self, *batch):
        """One answer for each request, inputs by name: outputs by name, or the error's message."""
        sent = [Answers() for _ in batch]
        requests = [
            InferRequest(
                self._instance.name,
                {
                    name: Tensor(name, datatype_of(array), array.shape, array=array)
                    for name, array in inputs.items()
                },
                answers,
            )
            for inputs, answers in zip(batch, sent, strict=True)
        ]
        returned = self._instance.execute(requests).responses
        # Answers of several executions are sent, each when its execution is done.
        responses = [
            response or answers.wait() for response, answers in zip(returned, sent, strict=True)
        ]
        return [
            response.error.message
            if response.error
            else {tensor.name: tensor.array() for tensor in response.outputs}
            for response in responses
        ]


@pytest.fixture(scope="module")
def load():
    """A function from a model's name to the Loaded model; its artifact is built if need be."""

    with contextlib.ExitStack() as loaded:

        def load(model):
            wanted = [item for item in TEXTS if item.model == model and not item.needs_torch]
            recipes.build_all(wanted, REPOSITORY)
            instance = Loaded(REPOSITORY / model, read_config(model))
            loaded.callback(instance.close)
            return instance

        yield load


@pytest.fixture(scope="module")
def tokenizer(load):
    return load("tokenizer")


def texts(*elements):
    return {"text": np.array(elements, object)}


# -- configurations --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["text_encoder", FUSED])
def test_tokenizer_and_encoder_agree_on_the_longest_text(model):
    longest = read_config("tokenizer").parameters["max_tokens"].string_value
    assert read_config(model).parameters["limit.tokens"].string_value == longest


def test_the_fused_model_takes_and_gives_what_the_ensemble_does():
    def tensors(model):
        config = read_config(model)
        return [
            (tensor.name, tensor.data_type, list(tensor.dims))
            for tensor in (*config.input, *config.output)
        ]

    assert tensors(FUSED) == tensors("text_pipeline")
    labels = [
        (REPOSITORY / model / "labels.txt").read_text() for model in ("text_classifier", FUSED)
    ]
    assert labels[0] == labels[1]


# -- tokenizer -------------------------------------------------------------------------------------


def test_a_request_is_padded_to_its_own_longest_text(tokenizer):
    short, long = tokenizer.execute(texts(b"Hi!"), texts(b"Hi!", b"Where is my parcel?"))
    np.testing.assert_array_equal(short["input_ids"], [[101, 7632, 999, 102]])
    np.testing.assert_array_equal(short["lengths"], [[4]])
    assert long["input_ids"].shape == (2, 7)
    np.testing.assert_array_equal(long["input_ids"][0], [101, 7632, 999, 102, 0, 0, 0])
    np.testing.assert_array_equal(long["lengths"], [[4], [7]])
    assert long["input_ids"].dtype == np.int64
    assert long["lengths"].dtype == np.int32


def test_only_the_request_with_broken_text_fails(tokenizer):
    good, broken, empty, last = tokenizer.execute(
        texts(b"fine"), texts(b"fine", "né".encode("latin-1")), texts(), texts(b"fine")
    )
    assert (
        broken == "input 'text', element 1: found unexpected end of data at byte 1, expected UTF-8"
    )
    assert empty == "input 'text': found no text, expected one or more"
    np.testing.assert_array_equal(good["input_ids"], last["input_ids"])


def test_empty_and_overlong_texts_are_texts(tokenizer):
    (answer,) = tokenizer.execute(texts(b"", b"word " * 600))
    np.testing.assert_array_equal(answer["lengths"], [[2], [512]])
    assert answer["input_ids"].shape == (2, 512)


@settings(max_examples=50)
@given(st.lists(st.lists(st.text(max_size=30), min_size=1, max_size=4), min_size=1, max_size=5))
def test_a_text_has_the_same_ids_in_any_company(tokenizer, batch):
    requests = [texts(*(text.encode("utf-8", "replace") for text in request)) for request in batch]
    for request, answer in zip(requests, tokenizer.execute(*requests), strict=True):
        for row, element in enumerate(request["text"]):
            (alone,) = tokenizer.execute(texts(element))
            length = answer["lengths"][row, 0]
            assert length == alone["lengths"][0, 0]
            np.testing.assert_array_equal(answer["input_ids"][row, :length], alone["input_ids"][0])
            assert not answer["input_ids"][row, length:].any()


@pytest.mark.parametrize("model", ["tokenizer", FUSED])
def test_a_missing_tokenizer_is_named_with_the_command_that_builds_it(tmp_path, model):
    with pytest.raises(Exception, match=r"tokenizer\.json: found nothing; `make models`"):
        Loaded(tmp_path, read_config(model))


@pytest.mark.parametrize("value", [None, "many", "-5", "2", "1.5"])
def test_a_token_limit_that_is_none_is_refused(load, value):
    config = read_config("tokenizer")
    del config.parameters["max_tokens"]
    if value is not None:
        config.parameters["max_tokens"].string_value = value
    with pytest.raises(Exception, match=f"parameter 'max_tokens': found '{value or ''}', expected"):
        Loaded(REPOSITORY / "tokenizer", config)


# -- encoder and classifier ------------------------------------------------------------------------


def test_the_label_is_that_of_the_highest_logit(load, tokenizer):
    encoder, classifier = load("text_encoder"), load("text_classifier")
    batch = tokenizer.execute(
        texts(b"Where is my parcel?", b"I was charged twice."),
        texts(b"How do I change my password?"),
    )
    answers = classifier.execute(*encoder.execute(*batch))
    assert [answer["label"].tolist() for answer in answers] == [
        [[b"delivery"], [b"billing"]],
        [[b"account"]],
    ]
    for answer in answers:
        assert answer["logits"].shape == (len(answer["label"]), len(LABELS))
        best = [LABELS[index].encode() for index in answer["logits"].argmax(axis=1)]
        assert answer["label"][:, 0].tolist() == best
    encoder.close()
    classifier.close()


# -- the pipeline as one model ---------------------------------------------------------------------


def test_only_the_request_with_broken_text_fails_in_the_fused_model(load):
    fused = load(FUSED)
    good, broken, empty, last = fused.execute(
        texts(b"fine"), texts(b"\xff"), texts(), texts(b"fine")
    )
    assert broken == "input 'text', element 0: found invalid start byte at byte 0, expected UTF-8"
    assert empty == "input 'text': found no text, expected one or more"
    np.testing.assert_allclose(good["logits"], last["logits"], atol=1e-5)
    fused.close()
