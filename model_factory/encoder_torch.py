"""The sentence encoder in torch: the check on `encoder_graph`, and the artifact `model.pt2`.

The same network over the same weights, written with torch's own attention, normalisation and
GELU rather than with elementary operators, so that a slip in one of the two shows. Needs torch.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_factory.encoder_graph import MASKED_SCORE
from model_factory.minilm import BertSizes, Weights
from model_factory.torch_export import save_exported


class SentenceEncoder(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """See `encoder_graph.encoder_model`: the same inputs, output and promises."""

    def __init__(self, weights: Weights, sizes: BertSizes) -> None:
        super().__init__()
        self.words = _embedding(weights, "embeddings.word_embeddings")
        self.positions = _embedding(weights, "embeddings.position_embeddings")
        self.segments = _embedding(weights, "embeddings.token_type_embeddings")
        self.norm = _layer_norm(weights, "embeddings.LayerNorm", sizes)
        self.layers = nn.ModuleList(
            _Layer(weights, f"encoder.layer.{layer}", sizes) for layer in range(sizes.layers)
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[batch, tokens] int64, twice, to [batch, hidden] float32."""
        kept = attention_mask.to(torch.float32)
        words = self.words(input_ids * attention_mask)
        positions = self.positions.weight[: input_ids.shape[1]]
        x = self.norm(words + positions + self.segments.weight[0])
        bias = (1.0 - kept)[:, None, None, :] * MASKED_SCORE
        for layer in self.layers:
            x = layer(x, bias)
        # Mean pooling and normalisation, step by step as sentence-transformers does it.
        count = kept.sum(dim=1, keepdim=True).clamp(min=1.0)
        mean = (x * kept[:, :, None]).sum(dim=1) / count
        return functional.normalize(mean, dim=1)


class _Layer(nn.Module):  # type: ignore[misc]
    """One transformer layer, normalised after each residual as in BERT."""

    def __init__(self, weights: Weights, prefix: str, sizes: BertSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query = _linear(weights, f"{prefix}.attention.self.query")
        self.key = _linear(weights, f"{prefix}.attention.self.key")
        self.value = _linear(weights, f"{prefix}.attention.self.value")
        self.join = _linear(weights, f"{prefix}.attention.output.dense")
        self.attention_norm = _layer_norm(weights, f"{prefix}.attention.output.LayerNorm", sizes)
        self.widen = _linear(weights, f"{prefix}.intermediate.dense")
        self.narrow = _linear(weights, f"{prefix}.output.dense")
        self.output_norm = _layer_norm(weights, f"{prefix}.output.LayerNorm", sizes)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """From x [batch, tokens, hidden] to the same; bias is added to the attention scores."""
        query, key, value = (
            projection(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = self.attention_norm(x + self.join(context.transpose(1, 2).flatten(2)))
        return self.output_norm(x + self.narrow(functional.gelu(self.widen(x))))


def save_encoder(weights: Weights, sizes: BertSizes, path: Path) -> None:
    """Write the encoder as `model.pt2`: `input_ids` and `attention_mask` in, `embedding` out."""
    # Two tensors: torch.export would take one tensor passed twice for a single input.
    ids, mask = torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    tokens = torch.export.Dim("tokens", min=1, max=sizes.positions)
    save_exported(
        SentenceEncoder(weights, sizes),
        {"input_ids": ids, "attention_mask": mask},
        {0: torch.export.Dim("batch", min=1), 1: tokens},
        path,
    )


def _linear(weights: Weights, prefix: str) -> nn.Linear:
    weight = torch.tensor(weights[f"{prefix}.weight"])
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": torch.tensor(weights[f"{prefix}.bias"])})
    return layer


def _embedding(weights: Weights, prefix: str) -> nn.Embedding:
    return nn.Embedding.from_pretrained(torch.tensor(weights[f"{prefix}.weight"]))


def _layer_norm(weights: Weights, prefix: str, sizes: BertSizes) -> nn.LayerNorm:
    layer = nn.LayerNorm(sizes.hidden, eps=sizes.layer_norm_epsilon)
    layer.load_state_dict(
        {part: torch.tensor(weights[f"{prefix}.{part}"]) for part in ("weight", "bias")}
    )
    return layer
