"""Model configurations as Triton passes them: the JSON mapping of a config.pbtxt."""


def tensor(name, data_type, dims, **more):
    return {"name": name, "data_type": f"TYPE_{data_type}", "dims": list(dims), **more}


def model_config(inputs, outputs, parameters=None, *, name="model", batch=8, **more):
    return {
        "name": name,
        "max_batch_size": batch,
        "input": list(inputs),
        "output": list(outputs),
        "parameters": {key: {"string_value": text} for key, text in (parameters or {}).items()},
        **more,
    }


def encoder_config(parameters=None, **more):
    """Return the configuration of `graphs.ENCODER`: rows of token ids with their own lengths."""
    return model_config(
        [
            tensor("input_ids", "INT64", [-1], allow_ragged_batch=True),
            tensor("lengths", "INT32", [1]),
        ],
        [tensor("embedding", "FP32", [4])],
        {
            "axes.input_ids": "tokens",
            "limit.tokens": "32",
            "axis_length.tokens": "lengths",
            "mask.attention_mask": "tokens",
            **(parameters or {}),
        },
        **{"name": "encoder", **more},
    )


#: The configuration of the encoder as text, without a name.
ENCODER_CONFIG = """
backend: "python"
max_batch_size: 8
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true },
  { name: "lengths" data_type: TYPE_INT32 dims: [ 1 ] }
]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "axes.input_ids" value { string_value: "tokens" } }
parameters { key: "limit.tokens" value { string_value: "32" } }
parameters { key: "axis_length.tokens" value { string_value: "lengths" } }
parameters { key: "mask.attention_mask" value { string_value: "tokens" } }
"""


def pixels_config(parameters=None, **more):
    """Return the configuration of `graphs.PIXELS`: images of any size, an answer per pixel."""
    return model_config(
        [tensor("image", "FP32", [1, -1, -1], allow_ragged_batch=True)],
        [tensor("sums", "FP32", [2]), tensor("inverted", "FP32", [1, -1, -1])],
        {
            "axes.image": "height,width",
            "axes.inverted": "height,width",
            "limit.height": "16",
            "limit.width": "16",
            "mask.mask": "height,width",
            **(parameters or {}),
        },
        **{"name": "pixels", **more},
    )


def edges_config(parameters=None, **more):
    """Return the configuration of `graphs.EDGES`: images of any size, without a mask."""
    return model_config(
        [tensor("image", "FP32", [1, -1, -1], allow_ragged_batch=True)],
        [tensor("edges", "FP32", [1, -1, -1]), tensor("mean", "FP32", [1])],
        {
            "axes.image": "height,width",
            "axes.edges": "height,width",
            "limit.height": "16",
            "limit.width": "16",
            **(parameters or {}),
        },
        **{"name": "edges", **more},
    )


def packed_config(parameters=None, **more):
    """Return the configuration of `graphs.PACKED`: rows of token ids, joined end to end."""
    return model_config(
        [
            tensor("input_ids", "INT64", [-1], allow_ragged_batch=True),
            tensor("lengths", "INT32", [1]),
        ],
        [tensor("tokens", "FP32", [-1, 4]), tensor("sums", "FP32", [4])],
        {
            "axes.input_ids": "tokens",
            "axes.tokens": "tokens",
            "limit.tokens": "32",
            "axis_length.tokens": "lengths",
            "packing": "tokens",
            "positions.position_ids": "tokens",
            "offsets.cu_seqlens": "tokens",
            **(parameters or {}),
        },
        **{"name": "packed", **more},
    )


def without(config, *keys):
    """Return a configuration without these parameters."""
    kept = {key: entry for key, entry in config["parameters"].items() if key not in keys}
    return {**config, "parameters": kept}
