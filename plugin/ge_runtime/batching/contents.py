"""What is checked of the content of a request's tensors, where their shapes are sound.

All raise RequestFault. Tensors are [rows, *dims].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ge_runtime.config import ValueRange
from ge_runtime.errors import RequestFault
from ge_runtime.specs import Array, Tensors, TensorSpec


def read_lengths(axis: str, name: str, tensor: Array, size: int) -> list[int]:
    """The lengths of rows along an axis that has this size; `tensor` holds one for each row."""
    # Python's integers, because most requests have a row or two: NumPy's calls cost more.
    lengths: list[int] = [tensor.item()] if tensor.size == 1 else tensor.ravel().tolist()
    if min(lengths) < 1 or max(lengths) > size:
        row = next(row for row, length in enumerate(lengths) if not 1 <= length <= size)
        raise RequestFault(
            f"input '{name}': found length {lengths[row]} in row {row}, "
            f"expected 1 to {size}, the size of axis '{axis}' in the request"
        )
    return lengths


def check_range(
    spec: TensorSpec,
    tensor: Array,
    within: ValueRange,
    lengths: Mapping[str, Sequence[int]],
    *,
    batched: bool,
) -> None:
    """Refuses an element of the data that is not in the range; NaN is in none.

    lengths: axis to where each row's data ends. batched: callers know the dimension for rows.
    """
    # Two passes that write nothing; what lies past the ends of rows is told apart only on a hit.
    if tensor.min() >= within.least and tensor.max() <= within.largest:
        return
    wrong = ~((tensor >= within.least) & (tensor <= within.largest))
    for position, dim in enumerate(spec.dims, start=1):
        if isinstance(dim, str) and dim in lengths:
            inside = np.arange(tensor.shape[position]) < np.array(lengths[dim])[:, None]
            others = [1] * (tensor.ndim - 2)
            wrong &= np.moveaxis(inside.reshape(*inside.shape, *others), 1, position)
    if wrong.any():
        index = tuple(int(at) for at in np.argwhere(wrong)[0])
        raise RequestFault(
            f"input '{spec.name}': found {tensor[index]} at {list(index[not batched :])}, expected "
            f"{within} (range.{spec.name})"
        )


def kind_of(names: Iterable[str], tensors: Tensors) -> bytes:
    """The content of inputs that the graph takes without rows: equal for requests of one kind."""
    kinds = []
    for name in names:
        tensor = tensors[name]
        # Compared as bytes: NaN is not equal to itself.
        if len(tensor) > 1 and tensor.tobytes() != tensor[0].tobytes() * len(tensor):
            raise RequestFault(
                f"input '{name}': found rows that differ, expected equal ones "
                f"(batch_axis.{name}: none): the graph takes one value for all"
            )
        kinds.append(tensor[0].tobytes())
    return b"".join(kinds)
