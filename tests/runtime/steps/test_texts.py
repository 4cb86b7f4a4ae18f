"""Texts become padded token ids; the example models' tests cover their own tokenizer."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support import exports

from ge_runtime.errors import ArtifactFault
from ge_runtime.steps.texts import TextStep


def column(*texts):
    return np.array([[text.encode()] for text in texts], object)


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens the step of a configuration."""
    (tmp_path / "1").mkdir()
    exports.tokenizer().save(str(tmp_path / "1" / "tokenizer.json"))

    def open_step(inputs=("text",), outputs=("input_ids", "lengths"), **parameters):
        kinds = {"token": "TYPE_STRING", "lengths": "TYPE_INT32"}
        config = {
            "name": "step",
            "input": [{"name": name, "data_type": "TYPE_STRING"} for name in inputs],
            "output": [
                {"name": name, "data_type": kinds.get(name, "TYPE_INT64")} for name in outputs
            ],
            "parameters": {
                key: {"string_value": value}
                for key, value in {"max_tokens": "8", **parameters}.items()
            },
        }
        args = {
            "model_config": json.dumps(config),
            "model_repository": str(tmp_path),
            "model_version": "1",
        }
        return TextStep.open(args)

    return open_step


def test_pairs_have_token_types_and_share_the_limit(opened):
    step = opened(("text", "text_pair"), ("input_ids", "token_type_ids", "lengths"))
    request = {"text": column("where is my parcel", "a"), "text_pair": column("it is a", "it")}
    (found,) = step([request])
    assert found["input_ids"].tolist() == [[2, 4, 5, 6, 3, 11, 5, 3], [2, 8, 3, 11, 3, 0, 0, 0]]
    assert found["token_type_ids"].tolist() == [[0] * 5 + [1] * 3, [0, 0, 0, 1, 1, 0, 0, 0]]
    assert found["lengths"].tolist() == [[8], [5]]


@given(
    st.integers(3, 12), st.sampled_from(["left", "right"]), st.integers(1, 14), st.integers(1, 14)
)
def test_pairs_are_truncated_as_the_package_does(most, direction, first, second):
    with TemporaryDirectory() as folder:
        file = Path(folder, "tokenizer.json")
        exports.tokenizer().save(str(file))
        step = TextStep(file, inputs=("text", "text_pair"))
    texts = " ".join(exports.WORDS[4:] * 2).split()
    pair = " ".join(texts[:first]), " ".join(texts[-second:])
    step.truncate(most, direction)
    (found,) = step([{"text": column(pair[0]), "text_pair": column(pair[1])}])
    plain = exports.tokenizer()
    plain.no_padding()
    plain.enable_truncation(most, direction=direction)
    assert found["input_ids"].tolist() == [plain.encode(*pair).ids]


def test_other_outputs(opened):
    step = opened(outputs=("token", "attention_mask"))
    (found,) = step([{"text": column("where is", "a")}])
    assert found["token"].tolist() == [
        [b"[CLS]", b"where", b"is", b"[SEP]"],
        [b"[CLS]", b"a", b"[SEP]", b""],
    ]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_the_start_of_a_text_is_cut_off_if_the_tokenizer_says_so(opened):
    step = opened(max_tokens="4", truncation="left")
    (found,) = step([{"text": column("where is my parcel")}])
    assert found["input_ids"].tolist() == [[2, 6, 7, 3]]


def test_a_prompt_is_put_before_each_text_and_cleaned_with_it(opened):
    step = opened(prompt=" IT is ", clean="strip, lower")
    assert step._texts({"text": column("My ")}) == ["it is my"]


def test_a_text_without_tokens_is_refused_alone(opened):
    step = opened()
    step.tokenizer.post_processor = None
    good, bad = step([{"text": column("a")}, {"text": column("a", "")}])
    assert good["input_ids"].tolist() == [[8]]
    assert str(bad) == "input 'text', element 1: found no tokens, expected some"


def test_a_damaged_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ArtifactFault, match=r"tokenizer\.json: found no tokenizer"):
        TextStep(tmp_path / "tokenizer.json")
