"""The text models' folders: configurations that agree, and what each model.py does."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

import reference_server.backends.python_host.shim as shim
from model_factory import artifacts
from model_factory.__main__ import REPOSITORY
from model_factory.sentences import LABELS
from model_factory.text_recipes import RECIPES
from reference_server.config import render

STEPS = ("tokenizer", "text_encoder", "text_classifier")
MODELS = (*STEPS, "text_pipeline")


def read_config(model):
    config = text_format.Parse((REPOSITORY / model / "config.pbtxt").read_text(), ModelConfig())
    config.name = model
    return config


class Request:
    """What a model sees of a request; the real one comes only from a server."""

    def __init__(self, tensors, outputs):
        self.inputs = lambda: tensors
        self.requested_output_names = lambda: outputs


class Loaded:
    """A model folder's TritonPythonModel, initialized as a server would, without one."""

    def __init__(self, folder: Path, config: ModelConfig, version: str = "1"):
        import triton_python_backend_utils as pb_utils

        self._pb_utils = pb_utils
        self._outputs = [tensor.name for tensor in config.output]
        path = REPOSITORY / config.name / version / "model.py"
        spec = importlib.util.spec_from_file_location(f"{config.name}_model", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.model = module.TritonPythonModel()
        self.model.initialize(
            {
                "model_config": render.as_json(config),
                "model_instance_name": f"{config.name}_0_0",
                "model_name": config.name,
                "model_repository": str(folder),
                "model_version": version,
            }
        )

    def execute(self, *window):
        """One answer for each request, inputs by name: outputs by name, or the error's message."""
        pb_utils = self._pb_utils
        requests = [
            Request([pb_utils.Tensor(name, array) for name, array in inputs.items()], self._outputs)
            for inputs in window
        ]
        return [
            response.error().message()
            if response.has_error()
            else {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
            for response in self.model.execute(requests)
        ]


@pytest.fixture(scope="module", autouse=True)
def utilities():
    """Makes triton_python_backend_utils importable by its name, as in a server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(shim.__file__).parent))
        yield


@pytest.fixture(scope="module")
def load(utilities):
    """A function from a model's name to the Loaded model; its artifact is built if need be."""

    def load(model):
        wanted = [item for item in RECIPES if item.model == model and not item.needs_torch]
        artifacts.build_all(wanted, REPOSITORY)
        return Loaded(REPOSITORY / model, read_config(model))

    return load


@pytest.fixture(scope="module")
def tokenizer(load):
    return load("tokenizer")


def texts(*elements):
    return {"text": np.array(elements, object)}


# -- configurations --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_the_configuration_parses_and_its_version_folder_exists(model):
    config = read_config(model)
    assert (REPOSITORY / model / "1").is_dir()
    assert config.backend == ("" if model == "text_pipeline" else "python")


def test_the_ensemble_connects_tensors_of_one_type():
    pipeline = read_config("text_pipeline")
    known = {tensor.name: tensor.data_type for tensor in pipeline.input}
    assert [step.model_name for step in pipeline.ensemble_scheduling.step] == list(STEPS)
    for step in pipeline.ensemble_scheduling.step:
        config = read_config(step.model_name)
        inputs = {tensor.name: tensor.data_type for tensor in config.input}
        outputs = {tensor.name: tensor.data_type for tensor in config.output}
        assert set(step.input_map) == set(inputs)
        assert set(step.output_map) == set(outputs)
        for name, source in step.input_map.items():
            assert known[source] == inputs[name]
        known |= {target: outputs[name] for name, target in step.output_map.items()}
    for tensor in pipeline.output:
        assert known[tensor.name] == tensor.data_type


def test_the_label_file_is_the_order_of_the_logits():
    config = read_config("text_classifier")
    logits = next(tensor for tensor in config.output if tensor.name == "logits")
    lines = (REPOSITORY / "text_classifier" / logits.label_filename).read_text().splitlines()
    assert tuple(lines) == LABELS
    assert list(logits.dims) == [len(LABELS)]


def test_tokenizer_and_encoder_agree_on_the_longest_text():
    longest = read_config("tokenizer").parameters["max_tokens"].string_value
    assert read_config("text_encoder").parameters["limit.tokens"].string_value == longest


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


def test_a_window_without_any_text_is_answered(tokenizer):
    assert tokenizer.execute(texts(b"\xff")) == [
        "input 'text', element 0: found invalid start byte at byte 0, expected UTF-8"
    ]


def test_empty_and_overlong_texts_are_texts(tokenizer):
    (answer,) = tokenizer.execute(texts(b"", b"word " * 600))
    np.testing.assert_array_equal(answer["lengths"], [[2], [512]])
    assert answer["input_ids"].shape == (2, 512)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.text(max_size=30), min_size=1, max_size=4), min_size=1, max_size=5))
def test_a_text_has_the_same_ids_in_any_company(tokenizer, window):
    requests = [texts(*(text.encode("utf-8", "replace") for text in request)) for request in window]
    for request, answer in zip(requests, tokenizer.execute(*requests), strict=True):
        for row, element in enumerate(request["text"]):
            (alone,) = tokenizer.execute(texts(element))
            length = answer["lengths"][row, 0]
            assert length == alone["lengths"][0, 0]
            np.testing.assert_array_equal(answer["input_ids"][row, :length], alone["input_ids"][0])
            assert not answer["input_ids"][row, length:].any()


def test_a_missing_tokenizer_is_named_with_the_command_that_builds_it(tmp_path):
    with pytest.raises(Exception, match=r"tokenizer\.json: found nothing; `make models`"):
        Loaded(tmp_path, read_config("tokenizer"))


@pytest.mark.parametrize("value", [None, "many", "-5", "2", "1.5"])
def test_a_token_limit_that_is_none_is_refused(load, value):
    config = read_config("tokenizer")
    del config.parameters["max_tokens"]
    if value is not None:
        config.parameters["max_tokens"].string_value = value
    with pytest.raises(Exception, match=f"parameter 'max_tokens': found '{value or ''}', expected"):
        Loaded(REPOSITORY / "tokenizer", config)


# -- encoder and classifier ------------------------------------------------------------------------


def test_the_encoder_answers_a_mixed_window_as_it_answers_each_alone(load, tokenizer):
    encoder = load("text_encoder")
    requests = tokenizer.execute(
        texts(b"Hi!"), texts("退款已经十天了还没有到账。".encode()), texts(b"one", b"two " * 50)
    )
    together = encoder.execute(*requests)
    for request, answer in zip(requests, together, strict=True):
        (alone,) = encoder.execute(request)
        np.testing.assert_allclose(answer["embedding"], alone["embedding"], atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(answer["embedding"], axis=1), 1, atol=1e-5)
    encoder.model.finalize()


def test_the_label_is_that_of_the_highest_logit(load, tokenizer):
    encoder, classifier = load("text_encoder"), load("text_classifier")
    window = tokenizer.execute(
        texts(b"Where is my parcel?", b"I was charged twice."),
        texts(b"How do I change my password?"),
    )
    answers = classifier.execute(*encoder.execute(*window))
    assert [answer["label"].tolist() for answer in answers] == [
        [[b"delivery"], [b"billing"]],
        [[b"account"]],
    ]
    for answer in answers:
        assert answer["logits"].shape == (len(answer["label"]), len(LABELS))
        best = [LABELS[index].encode() for index in answer["logits"].argmax(axis=1)]
        assert answer["label"][:, 0].tolist() == best
    encoder.model.finalize()
    classifier.model.finalize()
