"""Joins requests to a batch and splits its results, by concatenation, as Triton's backends do.

Requests of one batch have equal shapes except for the batch dimension, which the server ensures.
Inputs with `allow_ragged_batch` may differ; the graph gets all their elements in one dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from ge_runtime.errors import EngineFault
from ge_runtime.specs import Array, DType, Tensors
from ge_runtime.steps.step_config import StepConfig


def join(config: StepConfig, requests: Sequence[Tensors]) -> dict[str, Array]:
    """Return the inputs of one execution, in the order of the first request's.

    The arrays of a single request are used as they are; of several requests each byte is copied
    once.
    """
    ragged = {tensor.name for tensor in config.inputs if tensor.ragged}
    joined = {
        name: np.concatenate([request[name].ravel() for request in requests])
        if name in ragged
        else array
        if len(requests) == 1
        else np.concatenate([request[name] for request in requests])
        for name, array in requests[0].items()
    }
    for made in config.batch_inputs:
        array = _MAKERS[made.kind]([request[made.source].shape for request in requests])
        for target in made.targets:
            joined[target] = array.astype(DType.of_config(made.data_type).numpy)
    return joined


def part(config: StepConfig, requests: Sequence[Tensors], results: Tensors) -> Sequence[Tensors]:
    """Return each request's part of the results, as views. Raises EngineFault on a mismatch."""
    if not config.batches:
        return [results]
    rows = [len(next(iter(request.values()))) for request in requests]
    parts: list[dict[str, Array]] = [{} for _ in requests]
    for name, array in results.items():
        source = config.scattered.get(name)
        if source is not None:
            shapes = [request[source].shape for request in requests]
            counts = [int(np.prod(shape)) for shape in shapes]
            array = array.ravel()
        else:
            shapes = [(count, *array.shape[1:]) for count in rows]
            counts = rows
        found = len(array) if array.ndim else 0
        if found != sum(counts):
            raise EngineFault(
                f"output '{name}': found shape {list(array.shape)}, expected {sum(counts)} in its "
                f"first dimension: the rows of {len(requests)} request(s)"
            )
        ends = np.cumsum(counts)
        for own, end, count, shape in zip(parts, ends, counts, shapes, strict=True):
            own[name] = array[end - count : end].reshape(shape)
    return parts


_Shapes = Sequence[tuple[int, ...]]


def _counts(shapes: _Shapes) -> Array:
    return np.array([int(np.prod(shape)) for shape in shapes])


def _item_shapes(shapes: _Shapes) -> Array:
    """Return the shape of each row: [all rows, dims]."""
    return np.concatenate([np.tile(np.array(shape[1:]), (shape[0], 1)) for shape in shapes])


_MAKERS: Final[Mapping[str, Callable[[_Shapes], Array]]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda shapes: np.cumsum(_counts(shapes)),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda shapes: np.cumsum(
        np.concatenate([[0], _counts(shapes)])
    ),
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda shapes: np.zeros(_counts(shapes).max()),
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda shapes: _item_shapes(shapes).ravel(),
}
"""Kind of `batch_input` to a function of the source's shapes, with the batch dimension."""
