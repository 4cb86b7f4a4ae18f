"""Small encoders of published families with random weights, exported by torch."""

from __future__ import annotations

import warnings
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch exports the graphs")
nn, F = torch.nn, torch.nn.functional

VOCABULARY, WIDTH, HEADS, LONGEST = 40, 16, 2, 32


class Attention(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = nn.Linear(WIDTH, 3 * WIDTH) if fused else None
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(0 if fused else 3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        rows, tokens, _ = x.shape
        if self.fused is None:
            parts = [part(x) for part in self.parts]
        else:
            parts = self.fused(x).chunk(3, -1)
        query, key, value = (part.view(rows, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        scores = query @ key.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        weights = mask(scores).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).reshape(rows, tokens, WIDTH))


class Layer(nn.Module):
    def __init__(self, *, before: bool, gated: bool, fused: bool) -> None:
        super().__init__()
        self.attention = Attention(fused)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(2 * WIDTH if gated else 4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.before, self.gated = before, gated

    def feed_forward(self, x):
        wide = self.wide(x)
        if self.gated:
            data, gate = wide.chunk(2, -1)
            return self.narrow(F.gelu(data) * gate)
        return self.narrow(F.gelu(wide))

    def forward(self, x, mask):
        first, second = self.norms
        if self.before:
            x = x + self.attention(first(x), mask)
            return x + self.feed_forward(second(x))
        x = first(x + self.attention(x, mask))
        return second(x + self.feed_forward(x))


class Encoder(nn.Module):
    """An encoder; `family` selects positions, the form of the mask, and the pooling."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self.family = family
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LONGEST + 2, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        modern = family == "modernbert"
        self.layers = nn.ModuleList(
            Layer(before=modern, gated=modern, fused=modern) for _ in range(2)
        )
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids, mask, types=None):
        x = self.words(ids)
        if self.family == "roberta":  # positions count the tokens that are not padding
            real = (ids != 1).long()
            x = x + self.positions(real.cumsum(1) * real + 1)
        elif self.family != "modernbert":
            x = x + self.positions(torch.arange(ids.shape[1])[None])
        if types is not None:
            x = x + self.types(types)
        x = self.norm(x)
        if self.family == "distilbert":
            hidden = (mask == 0)[:, None, None, :]

            def apply(scores):
                return scores.masked_fill(hidden.expand_as(scores), torch.finfo(x.dtype).min)
        else:
            bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min

            def apply(scores):
                return scores + bias

        for layer in self.layers:
            x = layer(x, apply)
        if self.family == "e5":
            x = x.masked_fill(~mask[..., None].bool(), 0.0)
            return F.normalize(x.sum(1) / mask.sum(1)[..., None], dim=-1)
        if self.family == "minilm":
            kept = mask[..., None].to(x.dtype)
            return (x * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        if self.family == "bge":
            return F.normalize(x[:, 0], dim=-1)
        if self.family == "max":
            return x.masked_fill(mask[..., None] == 0, -1e4).max(1).values
        return x, torch.tanh(self.pooler(x[:, 0]))


FAMILIES = ("bert", "distilbert", "roberta", "minilm", "e5", "bge", "max", "modernbert")


@cache
def exported(family: str, opset: int = 17) -> bytes:
    """Return the encoder as torch's exporter without dynamo writes it."""
    ids = torch.ones(2, 5, dtype=torch.long)
    names = ["input_ids", "attention_mask", *["token_type_ids"] * (family == "bert")]
    outputs = ["embedding"]
    if family in ("bert", "distilbert", "roberta", "modernbert"):
        outputs = ["last_hidden_state", "pooler_output"]
    axes = {name: {0: "batch", 1: "tokens"} for name in names}
    axes |= {name: {0: "batch"} for name in outputs} | {
        name: {0: "batch", 1: "tokens"} for name in outputs if name == "last_hidden_state"
    }
    file = BytesIO()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(3)
        torch.onnx.export(
            Encoder(family).eval(),
            tuple(ids for _ in names),
            file,
            input_names=names,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=opset,
            dynamo=False,
        )
    return file.getvalue()


def write(folder: Path, content: bytes) -> Path:
    """Return the path of a graph in `folder`."""
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path
