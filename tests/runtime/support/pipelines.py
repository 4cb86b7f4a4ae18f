"""Tiny graphs that run one after another, as ONNX and compiled for a card.

input_ids ─┐
           ├─ embed ── hidden ── pool ── pooled ── head ── logits ── scale ── scores
attention_mask ─────────────────┘
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from runtime.support.ascend import compile_om
from runtime.support.graphs import onnx_model

STAGES = ("embed", "pool", "head", "scale")
GEARS = [(1, 8), (4, 8), (4, 32), (8, 32)]
"""Rows and tokens."""
WEIGHTS = np.array([[1, -2, 3]], np.float32)
SCORES = {"name": "scores", "data_type": "TYPE_FP32", "dims": [3]}
"""The pipeline's output in the words of config.pbtxt; inputs are the encoder's."""

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def _embed():
    node = helper.make_node
    return onnx_model(
        [
            node("Cast", ["input_ids"], ["ids"], to=FLOAT),
            node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
            node("Mul", ["ids", "mask"], ["hidden"]),
        ],
        [
            ("input_ids", INT64, ["rows", "tokens"]),
            ("attention_mask", INT64, ["rows", "tokens"]),
        ],
        [("hidden", FLOAT, ["rows", "tokens"])],
    )


def _pool():
    node = helper.make_node
    return onnx_model(
        [
            node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
            node("ReduceSum", ["hidden", "axis"], ["sum"], keepdims=1),
            node("ReduceSum", ["mask", "axis"], ["count"], keepdims=1),
            node("Div", ["sum", "count"], ["pooled"]),
        ],
        [("hidden", FLOAT, ["n", "length"]), ("attention_mask", INT64, ["n", "length"])],
        [("pooled", FLOAT, ["n", 1])],
        {"axis": np.array([1])},
    )


def _head():
    return onnx_model(
        [helper.make_node("MatMul", ["pooled", "weights"], ["logits"])],
        [("pooled", FLOAT, ["rows", 1])],
        [("logits", FLOAT, ["rows", 3])],
        {"weights": WEIGHTS},
    )


def _scale():
    return onnx_model(
        [helper.make_node("Mul", ["logits", "two"], ["scores"])],
        [("logits", FLOAT, ["rows", 3])],
        [("scores", FLOAT, ["rows", 3])],
        {"two": np.array(2, np.float32)},
    )


GRAPHS = {"embed": _embed, "pool": _pool, "head": _head, "scale": _scale}


def write_stages(folder, *stages):
    """Their .onnx files."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in stages or STAGES:
        onnx.save(GRAPHS[stage](), folder / f"{stage}.onnx")
    return folder


def stage_flags(stage, gears=GEARS):
    """ATC's flags for one of them with gears of (rows, tokens)."""
    if stage in ("embed", "pool"):
        first = "input_ids" if stage == "embed" else "hidden"
        dims = ";".join(f"{n},{t},{n},{t}" for n, t in gears)
        shapes = f"{first}:-1,-1;attention_mask:-1,-1"
        return ["--input_format=ND", f"--input_shape={shapes}", f"--dynamic_dims={dims}"]
    rows = ",".join(str(n) for n in sorted({n for n, _ in gears}))
    shape = "pooled:-1,1" if stage == "head" else "logits:-1,3"
    return [f"--input_shape={shape}", f"--dynamic_batch_size={rows}"]


def compile_stages(folder, *stages, gears=GEARS):
    """Their .onnx and .om files; the paths of these."""
    write_stages(folder, *stages)
    return [
        compile_om(folder, *stage_flags(stage, gears), name=stage, source=stage)
        for stage in stages or STAGES
    ]


def pipeline_batch(rows, tokens, seed=0):
    """Inputs, and what all stages give for them, by name."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 50, (rows, tokens))
    mask = (np.arange(tokens) < rng.integers(1, tokens + 1, rows)[:, None]).astype(np.int64)
    hidden = (ids * mask).astype(np.float32)
    pooled = hidden.sum(axis=1, keepdims=True) / mask.sum(axis=1, keepdims=True)
    logits = pooled.astype(np.float32) @ WEIGHTS
    given = {"input_ids": ids, "attention_mask": mask}
    return given, {"hidden": hidden, "pooled": pooled, "logits": logits, "scores": 2 * logits}
