"""The classification extension: an output's values as its best classes, in text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reference_server.core.dtypes import DataType
from reference_server.core.errors import invalid_arg
from reference_server.core.tensor import Tensor

_UNSUPPORTED = frozenset({DataType.BYTES, DataType.FP16, DataType.BF16, DataType.BOOL})


def classify(tensor: Tensor, count: int, labels: Sequence[str], *, batches: bool) -> Tensor:
    """The `count` greatest values of each batch item as `<value>:<index>[:<label>]`, descending.

    The result is BYTES, [batch, k] if the model batches, else [k]; k is at most the number of
    values per item, whose dimensions are flattened. Equal values keep the order of their index.
    Raises ServerError INVALID_ARG for a data type without order.
    """
    if tensor.datatype is None or tensor.datatype in _UNSUPPORTED:
        kind = tensor.datatype.value if tensor.datatype else "<invalid>"
        raise invalid_arg(f"class result not available for output due to unsupported type '{kind}'")
    values = tensor.array()
    batches = batches and values.ndim > 0  # nobody checks what shape a model answers with
    rows = values.shape[0] if batches else 1
    width = values.size // rows if rows else 0
    items = values.reshape(rows, width)
    # Sorting the reversed row and reversing again keeps the lower index first among equals.
    order = width - 1 - np.argsort(items[:, ::-1], axis=1, kind="stable")[:, ::-1]
    shown = "{:.6f}" if items.dtype.kind == "f" else "{}"
    texts = [
        _label(f"{shown.format(row[index])}:{index}", labels, index).encode()
        for row, best in zip(items, order[:, :count].tolist(), strict=True)
        for index in best
    ]
    k = min(count, width)
    array = np.empty(len(texts), dtype=np.object_)
    array[:] = texts
    shape = (rows, k) if batches else (k,)
    return Tensor(tensor.name, DataType.BYTES, shape, array=array.reshape(shape))


def _label(text: str, labels: Sequence[str], index: int) -> str:
    return f"{text}:{labels[index]}" if index < len(labels) and labels[index] else text
