"""Tiny decoders with past keys and values, their configurations, and their expected answers."""

from __future__ import annotations

import numpy as np
import onnxruntime
from runtime.support.configs import model_config, tensor

from ge_runtime.scheduling.request_batch import Caller
from ge_runtime.scheduling.sequences import SequenceStep
from model_factory.decoder_graph import DecoderSizes

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
            "cost": "launch_us=1000000, element_ns=1, element2_ns=0",
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
