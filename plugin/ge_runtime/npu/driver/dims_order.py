"""In which order the gears of a compiled model list its inputs' dims.

A gear of `--dynamic_dims` is told as the dims of the inputs in a row, in the order in which ATC's
`--input_shape` named them. That need not be the order of the model's inputs, and the model does not
tell it: the record beside the file does, and where there is none, often only one order fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.driver.atc import record_path, recorded_flag
from ge_runtime.npu.driver.description import ACL_DTYPES, GEAR_INPUT, ModelDescription, ModelTensor

Order: TypeAlias = tuple[int, ...]
"""Data inputs by index."""

_FLAG: Final = "--input_shape"
_MOST_STEPS: Final = 10_000
"""Of a search: a model with so many inputs that are alike is told to be ambiguous."""


def dims_order(path: Path, digest: str, description: ModelDescription) -> Order:
    """The order of a model's data inputs in its gears of dims; () where it has no such gears.

    path, digest: of its file, beside which a record may lie. Raises ArtifactFault where the record
    does not fit the model, and where there is none and orders that fit make different gears.
    """
    if description.family != "dims" or description.inputs[-1].name != GEAR_INPUT:
        return ()  # without that input as the last the engine refuses the model
    inputs, gears = description.data_inputs, description.dims
    flag = recorded_flag(path, digest, _FLAG)
    if flag is not None:
        order = _told(flag, inputs)
        if order is None or not _fits(order, inputs, gears):
            raise ArtifactFault(
                f"{record_path(path)}: found {_FLAG}={flag}, expected the inputs "
                f"{_names(range(len(inputs)), inputs)} in an order that fits the gears of "
                f"{path.name}, e.g. {_row(gears[0])}: give the flag that it was compiled with"
            )
        return order
    found: Order | None = None
    for order in _orders(inputs, gears):
        if found is None:
            found = order
        elif description.shapes(order) != description.shapes(found):
            raise ArtifactFault(
                f"{path}: found gears, e.g. {_row(gears[-1])}, that are those of "
                f"{_names(found, inputs)} or of {_names(order, inputs) or 'others'}, in this "
                f"order, expected {record_path(path).name} beside it, which tells: "
                "`ge-runtime build` writes it; for a file made elsewhere write "
                f'{{"om_sha256": "{digest}", "flags": ["{_FLAG}=..."]}} with the flag of its '
                "`atc`"
            )
    if found is None:
        raise ArtifactFault(
            f"{path}: found gears, e.g. {_row(gears[0])}, expected the dims of "
            f"{_names(range(len(inputs)), inputs)} in some order: `ge-runtime build` makes it anew"
        )
    return found


def _told(flag: str, inputs: Sequence[ModelTensor]) -> Order | None:
    """The order of `name:d,d;name:d`; None if it names what is no input."""
    names = [tensor.name for tensor in inputs]
    listed = [entry.rpartition(":")[0].strip() for entry in flag.split(";") if entry]
    return tuple(map(names.index, listed)) if {*listed} <= {*names} else None


def _fits(order: Order, inputs: Sequence[ModelTensor], gears: Sequence[Order]) -> bool:
    start = 0
    for index in order:
        if not _may_begin(start, inputs[index], gears):
            return False
        start += len(inputs[index].dims)
    return start == len(gears[0]) and _has_all(order, inputs)


def _orders(inputs: Sequence[ModelTensor], gears: Sequence[Order]) -> Iterator[Order]:
    """Those that fit, that of the inputs first; last () where there are too many to look at."""
    steps = 0
    open_: list[tuple[Order, int]] = [((), 0)]
    while open_:
        order, start = open_.pop()
        steps += 1
        if steps > _MOST_STEPS:
            yield ()
            return
        if start == len(gears[0]):
            if _has_all(order, inputs):
                yield order
            continue
        # The last that is pushed is the next that is looked at.
        for index in reversed(range(len(inputs))):
            tensor = inputs[index]
            if tensor.dims and index not in order and _may_begin(start, tensor, gears):
                open_.append(((*order, index), start + len(tensor.dims)))


def _has_all(order: Order, inputs: Sequence[ModelTensor]) -> bool:
    """Whether what is left out has one size."""
    return all(i in order for i, tensor in enumerate(inputs) if -1 in tensor.dims)


def _may_begin(start: int, tensor: ModelTensor, gears: Sequence[Order]) -> bool:
    """Whether the tensor's dims may stand from `start` on in each gear."""
    end = start + len(tensor.dims)
    dtype = ACL_DTYPES.get(tensor.dtype)
    itemsize = dtype.numpy.itemsize if dtype else 0
    for gear in gears:
        dims = gear[start:end]
        if len(dims) != len(tensor.dims) or math.prod(dims) * itemsize > tensor.nbytes:
            return False
        if any(own not in (-1, dim) for own, dim in zip(tensor.dims, dims, strict=True)):
            return False
    return True


def _names(order: Sequence[int], inputs: Sequence[ModelTensor]) -> str:
    return ", ".join(inputs[index].name for index in order)


def _row(gear: Order) -> str:
    return ",".join(map(str, gear))
