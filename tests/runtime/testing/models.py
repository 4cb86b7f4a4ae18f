"""Models for the tests of the conformance suite: a graph and its configuration."""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper
from runtime.support.configs import (
    edges_config,
    encoder_config,
    model_config,
    packed_config,
    pixels_config,
    tensor,
)
from runtime.support.graphs import (
    BFLOAT16,
    EDGES,
    ENCODER,
    NONZERO,
    PACKED,
    PIXELS,
    TABLE,
    Graph,
    copy_of,
    onnx_model,
)


@dataclass(frozen=True)
class Model:
    graph: Graph
    config: dict

    def __str__(self):
        return self.config["name"]


def encoder(name, parameters=None, **more):
    return Model(ENCODER, encoder_config(parameters, name=name, **more))


def pixels(name, parameters=None, **more):
    return Model(PIXELS, pixels_config(parameters, name=name, **more))


def packed(name, parameters=None, **more):
    return Model(PACKED, packed_config(parameters, name=name, **more))


def copy(dtype, name, graph=None):
    config = model_config([tensor("x", name, [3])], [tensor("y", name, [3])], name=f"copy {name}")
    return Model(graph or copy_of(dtype), config)


def _doubled_onnx():
    return onnx_model(
        [
            helper.make_node("Unsqueeze", ["x", "last"], ["column"]),
            helper.make_node("Concat", ["column", "column"], ["pairs"], axis=2),
            helper.make_node("Reshape", ["pairs", "flat"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["batch", "width"])],
        [("y", TensorProto.FLOAT, ["batch", "double"])],
        {"last": np.array([2]), "flat": np.array([0, -1])},
    )


def _doubled_torch():
    import torch

    class Doubled(torch.nn.Module):
        def forward(self, x):
            return {"y": torch.stack([x, x], 2).flatten(1)}

    return Doubled(), (torch.ones(2, 5),)


DOUBLED = Model(
    Graph("doubled", _doubled_onnx, _doubled_torch, ((),)),
    model_config(
        [tensor("x", "FP32", [-1])],
        [tensor("y", "FP32", [-1])],
        {"axes.x": "width", "limit.width": "9", "axes.y": "width * 2"},
        name="every column twice",
    ),
)
FREE = encoder("encoder")
GEARED = encoder("encoder, gears", {"gears.tokens": "4, 16, 32", "gears.batch": "1, 4, 8"})
ONE_GEAR = encoder("encoder, one gear", {"gears.tokens": "32", "gears.batch": "8"})
JOINT = encoder("encoder, joint gears", {"gears.batch,tokens": "8x4, 4x16, 8x32"})
IMAGES = pixels("pixels")
GEARED_IMAGES = pixels("pixels, gears", {"gears.height,width": "4x4, 8x16, 16x16"})
TOKENS = packed("packed")
GEARED_TOKENS = packed("packed, gears", {"gears.batch": "2, 8"})

OPTIONAL = Model(
    ENCODER,
    model_config(
        [
            tensor("input_ids", "INT64", [-1]),
            tensor("attention_mask", "INT64", [-1], optional=True),
            tensor("lengths", "INT32", [1], optional=True),
        ],
        [tensor("embedding", "FP32", [4])],
        {
            "axes.input_ids": "tokens",
            "axes.attention_mask": "tokens",
            "limit.tokens": "32",
            "axis_length.tokens": "lengths",
            "default.attention_mask": "1",
            # In padding the mask that the request brings is 0.
            "padding.tokens": "neutral",
        },
        name="encoder, optional inputs",
    ),
)
TAGGED = Model(
    ENCODER,
    {
        **(tagged := encoder_config({"pass.echo": "tag"}, name="encoder, input passed on")),
        "input": [*tagged["input"], tensor("tag", "STRING", [-1])],
        "output": [*tagged["output"], tensor("echo", "STRING", [-1])],
    },
)
ROWLESS = Model(
    ENCODER,
    model_config(
        [tensor("input_ids", "INT64", [-1, -1])],
        [tensor("embedding", "FP32", [-1, 4])],
        {
            "axes.input_ids": "rows,tokens",
            "axes.embedding": "rows",
            "limit.rows": "3",
            "limit.tokens": "9",
            "gears.tokens": "3, 9",
            "mask.attention_mask": "rows,tokens",
        },
        name="encoder without rows",
        batch=0,
    ),
)
UNFORESEEN = Model(
    NONZERO,
    model_config(
        [tensor("x", "FP32", [-1])],
        [tensor("where", "INT64", [1, -1])],
        {"axes.x": "n", "limit.n": "4"},
        name="result of unforeseen size",
        batch=0,
    ),
)
PREPARED = Model(
    ENCODER,
    model_config(
        [tensor("text", "STRING", [-1])],
        [tensor("embedding", "FP32", [-1, 4]), tensor("echo", "STRING", [-1])],
        {
            "prepared.input_ids": "INT64[tokens]",
            "prepared.lengths": "INT32[1]",
            "rows": "6",
            "limit.tokens": "32",
            "axis_length.tokens": "lengths",
            "mask.attention_mask": "tokens",
            "pass.echo": "text",
        },
        name="encoder of prepared tensors",
        batch=0,
    ),
)

SOUND = [
    FREE,
    GEARED,
    ONE_GEAR,
    JOINT,
    IMAGES,
    GEARED_IMAGES,
    TOKENS,
    GEARED_TOKENS,
    OPTIONAL,
    TAGGED,
    ROWLESS,
    UNFORESEEN,
    PREPARED,
    DOUBLED,
    Model(EDGES, edges_config()),
    Model(EDGES, edges_config({"gears.height,width": "3x3, 8x16, 16x16"}, name="edges, gears")),
    pixels("pixels, batch gears", {"gears.batch": "4, 8", "gears.width": "16"}),
    encoder("encoder, fallback", {"gears.tokens": "8", "oversize": "fallback"}),
    encoder("encoder, two devices", {"devices": "cpu, cpu"}),
    encoder("encoder, derived gears", {"gears.tokens": "auto 3", "histogram": "sizes.json"}),
    *[
        copy(dtype, name)
        for dtype, name in {
            "bool": "BOOL",
            "uint8": "UINT8",
            "int64": "INT64",
            "float16": "FP16",
            "float64": "FP64",
        }.items()
    ],
    copy(None, "BF16", BFLOAT16),
]

ON_BOTH_ENGINES = [FREE, IMAGES, TOKENS, ROWLESS, UNFORESEEN, DOUBLED]
ON_BOTH_ENGINES += [model for model in SOUND if str(model) in ("copy BOOL", "copy BF16")]
"""Sound models for the second engine too: one for each graph.

Gears, defaults, prepared inputs and most types are the same for all engines.
"""


def _embedding(name, *nodes):
    """Return an encoder graph with these nodes, from `tokens` [batch, tokens, 4] to `embedding`."""

    def as_onnx():
        return onnx_model(
            [helper.make_node("Gather", ["table", "input_ids"], ["tokens"]), *nodes],
            [
                ("input_ids", TensorProto.INT64, ["batch", "tokens"]),
                ("attention_mask", TensorProto.INT64, ["batch", "tokens"]),
            ],
            [("embedding", TensorProto.FLOAT, ["batch", 4])],
            {"table": TABLE},
        )

    return Graph(name, as_onnx, None, ((), ()))


def _mean(source, target, axis):
    return helper.make_node("ReduceMean", [source], [target], axes=[axis], keepdims=0)


BLIND = _embedding("blind", _mean("tokens", "embedding", 1))
"""Treats padding as data and ignores its mask."""

MIXING = _embedding(
    "mixing",
    helper.make_node("ReduceMax", ["tokens"], ["best"], axes=[1], keepdims=0),
    helper.make_node("ReduceMax", ["best"], ["of_all"], axes=[0], keepdims=1),
    helper.make_node("Sub", ["best", "of_all"], ["embedding"]),
)
"""Computes each row from the other rows."""
