"""Decoders with past keys and values, of any size and with random weights, as ONNX graphs.

They serve tests and benchmarks of growing states. Inputs and outputs have the names that optimum
and transformers export: the output `present.0.key` extends the input `past_key_values.0.key`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from model_factory.onnx_graph import Dimension, GraphWriter

_BOOL = 9
"""ONNX's number of the element type bool."""
_MASKED_SCORE = -1e9


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """The sizes of a decoder. The default is tiny; GPT-2 has (12, 12, 768, 50257, 1024)."""

    layers: int = 2
    heads: int = 2
    width: int = 16
    vocabulary: int = 31
    positions: int = 96
    cross: bool = False
    """True if the decoder also attends to the states of an encoder, as T5 and Whisper do."""


def decoder_model(sizes: DecoderSizes = DecoderSizes(), seed: int = 0) -> ModelProto:
    """Return a decoder.

    Inputs: `input_ids` and `position_ids` int64 [batch, tokens], `attention_mask` int64 [batch,
    past + tokens], and for each layer `past_key_values.N.key` and `.value` float32 [batch, heads,
    past, head width]. With `cross` also `encoder_states` float32 [batch, frames, width] and
    `encoder_mask` int64 [batch, frames]. Outputs: `logits` float32 [batch, tokens, vocabulary] and
    `present.N.key` and `.value`.

    Args:
        sizes: The sizes.
        seed: The seed of the weights.
    """
    return _DecoderWriter(sizes, np.random.default_rng(seed)).model()


class _DecoderWriter:
    """Appends the decoder's nodes in order; `x` names a tensor [batch, tokens, width]."""

    def __init__(self, sizes: DecoderSizes, rng: np.random.Generator) -> None:
        self._sizes = sizes
        self._rng = rng
        self._graph = GraphWriter()

    def model(self) -> ModelProto:
        graph, sizes = self._graph, self._sizes
        ids = graph.input("input_ids", np.int64, ["batch", "tokens"])
        mask = graph.input("attention_mask", np.int64, ["batch", "total"])
        positions = graph.input("position_ids", np.int64, ["batch", "tokens"])
        words = self._weights("words", sizes.vocabulary, sizes.width)
        places = self._weights("places", sizes.positions, sizes.width)
        x = graph.node(
            "Add", graph.node("Gather", words, ids), graph.node("Gather", places, positions)
        )
        bias = self._bias(ids, mask)
        encoder = cross_bias = ""
        if sizes.cross:
            encoder = graph.input("encoder_states", np.float32, ["batch", "frames", sizes.width])
            frames = graph.input("encoder_mask", np.int64, ["batch", "frames"])
            cross_bias = self._scores_of(graph.node("Cast", self._columns(frames), to=_BOOL))
        for layer in range(sizes.layers):
            normal = self._norm(x)
            x = graph.node("Add", x, self._attention(normal, normal, bias, layer, past=True))
            if sizes.cross:
                own = self._attention(self._norm(x), encoder, cross_bias, layer, past=False)
                x = graph.node("Add", x, own)
            x = graph.node("Add", x, self._network(self._norm(x), layer))
        logits = graph.output("logits", np.float32, ["batch", "tokens", sizes.vocabulary])
        head = self._weights("head", sizes.width, sizes.vocabulary)
        graph.node("MatMul", self._norm(x), head, name=logits)
        return graph.model("decoder", "a decoder with random weights")

    def _weights(self, name: str, *shape: int) -> str:
        weights = self._rng.standard_normal(shape, np.float32) * (shape[0] ** -0.5)
        return self._graph.constant(name, weights.astype(np.float32))

    def _integers(self, *values: int) -> str:
        return self._graph.constant(f"int_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def _scalar(self, value: int) -> str:
        return self._graph.constant(f"scalar_{value}", np.array(value, np.int64))

    def _number(self, name: str, value: float) -> str:
        return self._graph.constant(name, np.float32(value))

    def _columns(self, mask: str) -> str:
        """Return a mask as [batch, 1, 1, columns]."""
        return self._graph.node("Unsqueeze", mask, axes=[1, 2])

    def _bias(self, ids: str, mask: str) -> str:
        """Return the bias [batch, 1, tokens, total]: 0 for a token itself and earlier tokens."""
        graph = self._graph

        def size(tensor: str) -> str:
            return graph.node("Gather", graph.node("Shape", tensor), self._scalar(1))

        zero, one = self._scalar(0), self._scalar(1)
        total = size(mask)
        columns = graph.node("Range", zero, total, one)
        rows = graph.node("Range", graph.node("Sub", total, size(ids)), total, one)
        before = graph.node("LessOrEqual", columns, graph.node("Unsqueeze", rows, axes=[1]))
        data = graph.node("Cast", self._columns(mask), to=_BOOL)
        return self._scores_of(graph.node("And", data, before))

    def _scores_of(self, allowed: str) -> str:
        zero, masked = self._number("zero", 0.0), self._number("masked", _MASKED_SCORE)
        return self._graph.node("Where", allowed, zero, masked)

    def _attention(self, x: str, memory: str, bias: str, layer: int, *, past: bool) -> str:
        """Return the attention to earlier tokens (`past`), or to the states of the encoder."""
        graph, sizes = self._graph, self._sizes
        width = sizes.width // sizes.heads
        kind = "self" if past else "cross"
        split, join = self._integers(0, 0, sizes.heads, width), self._integers(0, 0, sizes.width)

        def heads(part: str, source: str) -> str:
            weights = self._weights(f"{kind}.{layer}.{part}", sizes.width, sizes.width)
            parted = graph.node("Reshape", graph.node("MatMul", source, weights), split)
            return graph.node("Transpose", parted, perm=[0, 2, 1, 3])

        def with_past(part: str, own: str) -> str:
            if not past:
                return own
            shape: list[Dimension] = ["batch", sizes.heads, "past", width]
            before = graph.input(f"past_key_values.{layer}.{part}", np.float32, list(shape))
            shape[2] = "total"
            name = graph.output(f"present.{layer}.{part}", np.float32, list(shape))
            return graph.node("Concat", before, own, name=name, axis=2)

        query = heads("query", x)
        key = with_past("key", heads("key", memory))
        value = with_past("value", heads("value", memory))
        turned = graph.node("Transpose", key, perm=[0, 1, 3, 2])
        scale = self._number("scale", width**-0.5)
        scores = graph.node("Mul", graph.node("MatMul", query, turned), scale)
        shares = graph.node("Softmax", graph.node("Add", scores, bias), axis=3)
        context = graph.node("Transpose", graph.node("MatMul", shares, value), perm=[0, 2, 1, 3])
        output = self._weights(f"{kind}.{layer}.output", sizes.width, sizes.width)
        return graph.node("MatMul", graph.node("Reshape", context, join), output)

    def _network(self, x: str, layer: int) -> str:
        graph, width = self._graph, self._sizes.width
        wide = graph.node("MatMul", x, self._weights(f"wide.{layer}", width, 4 * width))
        narrow = self._weights(f"narrow.{layer}", 4 * width, width)
        return graph.node("MatMul", graph.node("Relu", wide), narrow)

    def _norm(self, x: str) -> str:
        """Normalise the last axis to mean 0 and deviation 1."""
        graph = self._graph
        centred = graph.node("Sub", x, graph.node("ReduceMean", x, axes=[-1]))
        squared = graph.node("Mul", centred, centred)
        variance = graph.node("ReduceMean", squared, axes=[-1])
        small = self._number("epsilon", 1e-5)
        return graph.node("Div", centred, graph.node("Sqrt", graph.node("Add", variance, small)))
