"""Graphs of `runtime_models` whose outputs show the content of a batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper
from runtime.support.graphs import onnx_model

ELEMENTS = {
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
}

END = np.array([2**31])
"""The end of a Slice that continues to the end of the axis."""


def identities(types: Iterable[str]) -> onnx.ModelProto:
    """Return a graph with an identity for each of Triton's types, named after the type."""
    elements = {name: ELEMENTS.get(name) or TensorProto.DataType.Value(name) for name in types}
    return onnx_model(
        [helper.make_node("Identity", [name], [f"{name}_OUT"]) for name in elements],
        [(name, element, ["batch", "size"]) for name, element in elements.items()],
        [(f"{name}_OUT", element, ["batch", "size"]) for name, element in elements.items()],
    )


def packed_rows() -> onnx.ModelProto:
    """Return a graph for packed rows: value and position of tokens, length and sum of rows."""
    node, whole = helper.make_node, TensorProto.INT64
    return onnx_model(
        [
            node("Mul", ["input_ids", "hundred"], ["hundreds"]),
            node("Add", ["hundreds", "position_ids"], ["told"]),
            node("CumSum", ["input_ids", "first"], ["sums"]),
            node("Concat", ["zero", "sums"], ["from_zero"], axis=0),
            node("Slice", ["cu_seqlens", "one", "end"], ["ends"]),
            node("Slice", ["cu_seqlens", "zero", "minus_one"], ["starts"]),
            node("Gather", ["from_zero", "ends"], ["up_to_end"]),
            node("Gather", ["from_zero", "starts"], ["up_to_start"]),
            node("Sub", ["up_to_end", "up_to_start"], ["sum"]),
            node("Unsqueeze", ["sum", "one"], ["row_sum"]),
            node("Mul", ["lengths", "one"], ["row_length"]),
        ],
        [
            ("input_ids", whole, ["total"]),
            ("position_ids", whole, ["total"]),
            ("cu_seqlens", whole, ["offsets"]),
            ("lengths", whole, ["batch", 1]),
        ],
        [
            ("told", whole, ["total"]),
            ("row_sum", whole, ["batch", 1]),
            ("row_length", whole, ["batch", 1]),
        ],
        {
            "hundred": np.array([100]),
            "first": np.array(0),
            "zero": np.array([0]),
            "one": np.array([1]),
            "minus_one": np.array([-1]),
            "end": END,
        },
    )


def told_of_batches() -> onnx.ModelProto:
    """Return a graph with the sum of a row, and a column for each kind of `batch_input`.

    It serves batches of requests of one row.
    """
    node, whole = helper.make_node, TensorProto.INT32
    columns = ["sum", "count", "accumulated", "ends", "largest_size", "shape", "flat"]
    return onnx_model(
        [
            node("ReduceSum", ["x", "one"], ["sum"]),
            node("Slice", ["offsets", "one", "end"], ["ends"]),
            node("Shape", ["largest"], ["largest_count"]),
            node("Cast", ["largest_count"], ["largest_int"], to=whole),
            node("Shape", ["count"], ["requests"]),
            node("Expand", ["largest_int", "requests"], ["largest_size"]),
            *(node("Reshape", [name, "column"], [f"{name}_column"]) for name in columns),
            node("Concat", [f"{name}_column" for name in columns], ["told"], axis=1),
        ],
        [
            ("x", whole, ["batch", "size"]),
            ("count", whole, ["requests"]),
            ("accumulated", whole, ["requests"]),
            ("offsets", whole, ["ends_and_one"]),
            ("largest", whole, ["elements"]),
            ("shape", whole, ["batch", 1]),
            ("flat", whole, ["batch_by_one"]),
        ],
        [("told", whole, ["batch", 7])],
        {"one": np.array([1]), "end": END, "column": np.array([-1, 1])},
    )
