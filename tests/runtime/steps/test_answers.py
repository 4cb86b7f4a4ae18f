"""The values of a graph become embeddings, scores with labels, and texts."""

import numpy as np
import pytest
from runtime.support.exports import random

from ge_runtime.errors import ArtifactFault
from ge_runtime.steps.answers import AnswerStep

VECTORS = random(2, 5, 4)
LENGTHS = np.array([[5], [2]], np.int32)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", lambda own: own.mean(0)),
        ("cls", lambda own: own[0]),
        ("max", lambda own: own.max(0)),
        ("lasttoken", lambda own: own[-1]),
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
def test_padding_takes_no_part_in_pooling(pooling, expected, normalize):
    vectors = VECTORS.copy()
    vectors[1, 2:] = np.inf
    parameters = {"pooling": pooling} | ({"normalize": "true"} if normalize else {})
    step = AnswerStep(["embedding"], parameters)
    found = step({"values": vectors, "lengths": LENGTHS})["embedding"]
    for row, own in enumerate((VECTORS[0], VECTORS[1, :2])):
        vector = expected(own)
        length = np.sqrt((vector**2).sum()) if normalize else 1
        np.testing.assert_allclose(found[row], vector / length, rtol=1e-6)
    assert found.dtype == np.float32


def test_a_vector_of_zeros_stays_one():
    step = AnswerStep(["embedding"], {"normalize": "true"})
    assert not step({"values": np.zeros((1, 4), np.float32)})["embedding"].any()


def test_scores_and_the_label_of_the_highest():
    values = np.array([[1, 3, 2], [90, 0, -90]], np.float32)
    names = ["a", "é", "c"]
    found = AnswerStep(["label", "score"], {"scores": "softmax"}, names)({"values": values})
    expected = np.exp(values[0]) / np.exp(values[0]).sum()
    np.testing.assert_allclose(found["score"][0], expected, rtol=1e-6)
    assert found["label"].tolist() == [["é".encode()], [b"a"]]
    found = AnswerStep(["score"], {"scores": "sigmoid"})({"values": values})
    assert list(found) == ["score"]
    np.testing.assert_allclose(found["score"][0], 1 / (1 + np.exp(-values[0])), rtol=1e-6)
    assert found["score"][1].tolist() == [1, 0.5, 0]
    found = AnswerStep(["score"], {"scores": "none"})({"values": values})
    assert found["score"].tolist() == values.tolist()


def test_tokens_behind_the_length_have_no_label():
    values = np.array([[[0, 9], [9, 0]], [[0, 9], [9, 0]]], np.float32)
    step = AnswerStep(["label", "score"], {"scores": "softmax"}, ["O", "B"])
    found = step({"values": values, "lengths": np.array([[2], [1]], np.int32)})
    assert found["label"].tolist() == [[b"B", b"O"], [b"B", b""]]
    assert found["score"].shape == (2, 2)
    assert found["score"][1, 1] == 0
    assert found["score"][1, 0] > 0.99


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([0, 2, 2, 0, 2, 3], "aab"),
        ([1, 2, 1, 1, 0, 1, 3, 1], "a  b"),
        ([0, 0], ""),
        ([2, 5, 3], "ab"),
    ],
)
def test_equal_neighbours_are_one_character_and_blanks_are_dropped(places, text):
    characters = {"<pad>": 0, "|": 1, "A": 2, "B": 3}
    parameters = {"blank": "<pad>", "delimiter": "|", "clean": "lower"}
    step = AnswerStep(["text"], parameters, characters=characters)
    found = step({"values": np.eye(6, dtype=np.float32)[places][None]})
    assert found["text"].tolist() == [[text.encode()]]


@pytest.mark.parametrize("name", ["pooling", "scores"])
def test_an_unknown_rule_is_refused(name):
    with pytest.raises(ArtifactFault, match=f"parameter '{name}': found 'x', expected one of"):
        AnswerStep(["embedding"], {name: "x"})
