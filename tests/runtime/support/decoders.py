"""Tiny decoders with past keys and values, their configurations, and their expected answers."""

from __future__ import annotations

import numpy as np
import onnxruntime
from runtime.support.configs import model_config, tensor

from ge_runtime.scheduling.request_batch import Caller
from ge_runtime.scheduling.sequences import SequenceStep
from model_factory.decoder_graph import DecoderSizes
from model_factory.onnx_graph import GraphWriter

TINY = DecoderSizes()


def decoder_config(parameters=None, *, sizes=TINY, batch=4, sequences=6, **more):
    states = {
        f"state.past_key_values.{layer}.{part}": f"present.{layer}.{part}"
        for layer in range(sizes.layers)
        for part in ("key", "value")
    }
    return model_config(
        [tensor("input_ids", "INT64", [-1], allow_ragged_batch=True)],
        [tensor("logits", "FP32", [-1, sizes.vocabulary])],
        {
            "axes.input_ids": "tokens",
            "axes.logits": "tokens",
            "limit.tokens": "8",
            "limit.past": "40",
            "mask.attention_mask": "past + tokens",
            "positions.position_ids": "tokens",
            "range.input_ids": f"0..{sizes.vocabulary - 1}",
            # Other models would execute requests separately at this cost.
            "cost": "launch_us=1, element_ns=1, element2_ns=0, growth_ns=1000000",
            "load_check": "off",
            **states,
            **(parameters or {}),
        },
        batch=batch,
        **{
            "name": "decoder",
            "sequence_batching": {"oldest": {"max_candidate_sequences": sequences}},
            **more,
        },
    )


def cross_config(**more):
    """Return the configuration of a decoder that attends to the states of an encoder."""
    config = decoder_config(
        {
            "axes.encoder_states": "frames",
            "limit.frames": "6",
            "mask.encoder_mask": "frames",
            "state_growth": "tokens",
        },
        **more,
    )
    states = tensor("encoder_states", "FP32", [-1, TINY.width], allow_ragged_batch=True)
    return {**config, "input": [*config["input"], states]}


FEATURES = 4


def recogniser():
    """A streaming recogniser of 4 frames for each result.

    `last` is the frame before a request, of fixed size. `memory` has all results, [past, batch,
    features].
    """
    graph, rng = GraphWriter(), np.random.default_rng(0)

    def integers(*values):
        return graph.constant(f"int_{values}", np.array(values, np.int64))

    frames = graph.input("features", np.float32, ["batch", "frames", FEATURES])
    last = graph.input("last", np.float32, ["batch", 1, FEATURES])
    memory = graph.input("memory", np.float32, ["past", "batch", FEATURES])
    mask = graph.input("valid", np.float32, ["batch", "total"])
    graph.output("next_last", np.float32, ["batch", 1, FEATURES])
    graph.output("next_memory", np.float32, ["total", "batch", FEATURES])
    graph.output("scores", np.float32, ["batch", "results", 3])
    before = graph.node("Concat", last, frames, axis=1)
    ends = integers(-1), integers(10**6), integers(1)
    graph.node("Slice", before, *ends, name="next_last")
    shifted = graph.node("Slice", before, integers(0), integers(-1), integers(1))
    both = graph.node("Add", frames, graph.node("Mul", shifted, shifted))
    fours = graph.node("Reshape", both, integers(0, -1, 4, FEATURES))
    query = graph.node("ReduceMean", fours, axes=[2], keepdims=0)
    rows_second = graph.node("Transpose", query, perm=[1, 0, 2])
    graph.node("Concat", memory, rows_second, axis=0, name="next_memory")
    keys = graph.node("Transpose", "next_memory", perm=[1, 2, 0])
    values = graph.node("Transpose", "next_memory", perm=[1, 0, 2])
    one, masked = graph.constant("one", np.float32(1)), graph.constant("far", np.float32(-1e9))
    outside = graph.node("Sub", one, graph.node("Unsqueeze", mask, axes=[1]))
    attention = graph.node("MatMul", query, keys)
    attention = graph.node("Add", attention, graph.node("Mul", outside, masked))
    found = graph.node("MatMul", graph.node("Softmax", attention, axis=2), values)
    head = graph.constant("head", rng.standard_normal((FEATURES, 3), np.float32))
    graph.node("MatMul", graph.node("Add", found, query), head, name="scores")
    return graph.model("recogniser", "a streaming recogniser with two caches")


def recogniser_config():
    return model_config(
        [tensor("features", "FP32", [-1, FEATURES], allow_ragged_batch=True)],
        [tensor("scores", "FP32", [-1, 3])],
        {
            "axes.features": "frames",
            "axes.scores": "frames // 4",
            "limit.frames": "16",
            "min.frames": "4",
            "align.frames": "4",
            "limit.past": "40",
            "state_growth": "frames // 4",
            "mask.valid": "past + frames // 4",
            "state.last": "next_last",
            "state.memory": "next_memory",
            "batch_axis.memory": "1",
            "batch_axis.next_memory": "1",
            "cost": "launch_us=1000000, element_ns=1, element2_ns=0",
        },
        batch=4,
        name="recogniser",
        sequence_batching={"oldest": {"max_candidate_sequences": 4}},
    )


class Expected:
    """The answers of the graph in ONNX Runtime, without states: all tokens in one execution."""

    def __init__(self, model):
        self._session = onnxruntime.InferenceSession(model.SerializeToString())

    def logits(self, ids, **more):
        """Return the logits of all tokens, [tokens, vocabulary]."""
        count = len(ids)
        feeds = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, count), np.int64),
            "position_ids": np.arange(count)[None],
            **more,
        }
        for port in self._session.get_inputs():
            if port.name not in feeds:
                _, heads, _, width = port.shape
                feeds[port.name] = np.zeros((1, heads, 0, width), np.float32)
        return self._session.run(["logits"], feeds)[0][0]


def request(ids):
    return {"input_ids": np.array([ids], np.int64)}


def of(sequence, *, starts=False, ends=False):
    return Caller(sequence=SequenceStep(sequence, starts, ends))
