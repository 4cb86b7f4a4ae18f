"""The three functions that set a model's gear, with CANN's checks in CANN's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from ascend_simulator import process
from ascend_simulator.calls import U32, U64, status
from ascend_simulator.codes import Code, MemcpyKind, Refused
from ascend_simulator.models.bindings import gear_bytes
from ascend_simulator.models.datasets import DataBuffer, dataset, dims_list
from ascend_simulator.models.loaded import Model, check_context, models
from ascend_simulator.models.om import Dims, Family
from ascend_simulator.violations import declare, violate

ELSEWHERE = declare(
    "model.gear-elsewhere",
    "A gear must be set at the model's last input, which is reserved for it.",
)

Chosen: TypeAlias = Callable[[Model], int | None]
"""Returns the index of the requested gear of a model; None if the model has no such gear."""

_MOST_DIMS: Final = 128


@status("mdl.set_dynamic_batch_size", U32, U64, U64, U64)
def set_dynamic_batch_size(model: int, handle: int, index: int, batch: int) -> None:
    """Set the gear with this many rows."""
    what = "set_dynamic_batch_size"
    found = dataset(handle, what)
    if batch == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: batch: found 0, expected 1 or more")
    buffer = _buffer(what, found.buffers, index)
    _check_length(what, buffer, 1)
    _set(what, model, index, buffer, _with_values("batch", (batch,)))


@status("mdl.set_dynamic_hw_size", U32, U64, U64, U64, U64)
def set_dynamic_hw_size(model: int, handle: int, index: int, height: int, width: int) -> None:
    """Set the gear with this height and width."""
    what = "set_dynamic_hw_size"
    found = dataset(handle, what)
    if height == 0 or width == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: found {height} by {width}, expected 1 or more")
    buffer = _buffer(what, found.buffers, index)
    _check_length(what, buffer, 2)
    _set(what, model, index, buffer, _with_values("image", (height, width)))


def dims_dict(given: object) -> Dims:
    """Return the dims of `{'name': str, 'dimCount': n, 'dims': [...]}`.

    Raises TypeError for another form, ValueError if there are fewer dims than dimCount.
    """
    if not isinstance(given, dict) or not isinstance(given.get("dims"), (list, tuple)):
        raise TypeError("a dict with name, dimCount and dims is required")
    dims_count: int = given.get("dimCount", 0).__index__()
    dims = dims_list(given["dims"])
    if dims_count > len(dims):
        raise ValueError(f"found {len(dims)} dims, expected dimCount {dims_count}")
    return dims[:dims_count]


@status("mdl.set_input_dynamic_dims", U32, U64, U64, dims_dict)
def set_input_dynamic_dims(model: int, handle: int, index: int, dims: Dims) -> None:
    """Set the gear with these dims of all inputs, in the order of --input_shape.

    Fixed dims are included.
    """
    what = "set_input_dynamic_dims"
    found = dataset(handle, what)
    if not 0 < len(dims) <= _MOST_DIMS:
        raise Refused(
            Code.INVALID_PARAM, f"{what}: dimCount: found {len(dims)}, expected 1 to {_MOST_DIMS}"
        )
    buffer = _buffer(what, found.buffers, index)
    _set(what, model, index, buffer, lambda model: _with_dims(model, dims))


def _buffer(what: str, buffers: Sequence[DataBuffer], index: int) -> DataBuffer:
    if index >= len(buffers) or buffers[index].ptr == 0:
        found = "a null address" if index < len(buffers) else f"{len(buffers)} buffers"
        raise Refused(Code.INVALID_PARAM, f"{what}: index {index}: found {found}")
    return buffers[index]


def _set(what: str, number: int, place: int, buffer: DataBuffer, chosen: Chosen) -> None:
    """Make the gear current, and write it immediately: a copy, so the thread needs a context.

    Checks ELSEWHERE, because a device accepts any input as the gear input, `claims.BUSY`, and
    `models.OTHER_CONTEXT` (inferred from the rule for executions).

    Raises Refused, in this order: GE_EXEC_MODEL_ID_INVALID, GE_DYNAMIC_INPUT_LENGTH_INVALID for
    dims that do not fit the inputs, GE_DYNAMIC_BATCH_SIZE_INVALID for an unknown gear,
    GE_DYNAMIC_INPUT_LENGTH_INVALID for a buffer too short for the dims, and RT_CONTEXT_NULL.
    """
    now = process.current()
    model = models().get(number, what)
    index = chosen(model)
    if index is None:
        text = f"{what}: {model.name}: found none of the model's {len(model.manifest.shapes)} gears"
        raise Refused(Code.GE_DYNAMIC_BATCH_SIZE_INVALID, text)
    values = model.manifest.shapes[index].gear
    model.gear = index  # a device changes the gear before it checks the buffer's length
    _check_length(what, buffer, len(values))
    last = len(model.manifest.inputs)
    if place != last:  # a device accepts this index and writes there
        violate(ELSEWHERE, f"{what}: {model.name}: found index {place}, expected {last}")
    check_context(now, model, what)
    # The write is immediate, so no queued execution may still read this buffer. Programs use one
    # buffer per slot.
    width = gear_bytes(buffer.size, len(values))
    nbytes = width * len(values)
    what = f"{what}: {model.name}: gear buffer"
    target = now.memory.resolve(buffer.ptr, nbytes, want="device", write=True, what=what)
    now.claims.host_access(buffer.ptr, nbytes, write=True, what=what)
    target[:] = np.array(values, np.int64 if width == 8 else np.int32).view(np.uint8)
    now.counters.copied(MemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE, nbytes)
    with now.lock:
        model.gear = model.gear_at[buffer.ptr] = index


def _with_values(family: Family, values: Dims) -> Chosen:
    def chosen(model: Model) -> int | None:
        if model.manifest.family != family:
            return None
        gears = [shapes.gear for shapes in model.manifest.shapes]
        return gears.index(values) if values in gears else None

    return chosen


def _with_dims(model: Model, dims: Dims) -> int | None:
    manifest = model.manifest
    if manifest.family != "dims":
        return None
    declared = manifest.listed([tensor.dims for tensor in manifest.inputs])
    fits = len(dims) == len(declared) and all(
        dim == fixed for dim, fixed in zip(dims, declared, strict=True) if fixed != -1
    )
    if not fits:
        raise _length("set_input_dynamic_dims", model, f"dims {dims}", f"{tuple(declared)}")
    for index, shapes in enumerate(manifest.shapes):
        if dims == manifest.listed(shapes.inputs):
            return index
    return None


def _check_length(what: str, buffer: DataBuffer, values: int) -> None:
    """Raise Refused GE_DYNAMIC_INPUT_LENGTH_INVALID if the buffer is too short for the values."""
    if buffer.size < 4 * values:
        text = f"{what}: found a buffer of {buffer.size} bytes, expected {4 * values} or more"
        raise Refused(Code.GE_DYNAMIC_INPUT_LENGTH_INVALID, text)


def _length(what: str, model: Model, found: str, expected: str) -> Refused:
    text = f"{what}: {model.name}: found {found}, expected {expected}"
    return Refused(Code.GE_DYNAMIC_INPUT_LENGTH_INVALID, text)
