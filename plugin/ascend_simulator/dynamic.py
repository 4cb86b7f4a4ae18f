"""Executions of models whose shapes are free: no plan of memory, shapes told by the caller.

The path that documents call v2, as far as it is needed to see that it is not the one to take:
synchronous only. Buffers may be of any size that holds their elements; those of outputs may have no
address, and get memory of the system that the caller frees.
"""

from __future__ import annotations

import numpy as np

from ascend_simulator.bindings import check_apart, located
from ascend_simulator.codes import Code, Refused
from ascend_simulator.datasets import DataBuffer, Dataset, TensorDesc, data, describe, living
from ascend_simulator.execution import depart
from ascend_simulator.graph import Array, Bound
from ascend_simulator.models import Model, check_context
from ascend_simulator.om import Dims, OmTensor
from ascend_simulator.ordering import Range
from ascend_simulator.process import Process
from ascend_simulator.regions import system_memory
from ascend_simulator.stream import Stream
from ascend_simulator.tasks import Task


def execute(now: Process, model: Model, inputs: Dataset, outputs: Dataset, stream: Stream) -> None:
    """Execute behind what `stream` has to do, and wait. The outputs' descriptions are filled.

    Violates `models.OTHER_CONTEXT`, `datasets.DEAD`, and what `bindings.located`, `check_apart` and
    `execution.depart` violate. Raises Refused: INVALID_PARAM for missing inputs, missing
    descriptions and shapes outside what was compiled; GE_FAILURE for short buffers, the bytes that
    are needed in its text (an inference); RT_MODEL_EXECUTE.
    """
    check_context(now, model, "execute")
    what = f"execute: {model.name}"
    manifest = model.manifest
    for given, tensors in ((inputs, manifest.inputs), (outputs, manifest.outputs)):
        if len(given.buffers) < len(tensors):
            found = f"found {len(given.buffers)} buffers, expected {len(tensors)}"
            raise Refused(Code.INVALID_PARAM, f"{what}: {found}")
        for handle in given.handles:
            living(data().buffers, handle, what)
    bound = []
    reads: list[Range] = []
    for index, tensor in enumerate(manifest.inputs):
        dims = _dims(model, inputs, index, tensor)
        buffer = inputs.buffers[index]
        nbytes = tensor.nbytes(dims)
        _check_room(model, tensor.name, buffer, nbytes)
        place = located(now, model, buffer.ptr, nbytes, f"{what}: '{tensor.name}'")
        bound.append(Bound(tensor.graph_name, tensor.dtype, dims, place.address))
        reads.append(place.range)
    writes = [
        located(now, model, buffer.ptr, buffer.size, f"{what}: output {index}").range
        for index, buffer in enumerate(outputs.buffers)
        if buffer.ptr
    ]
    check_apart(what, reads, writes)
    results: list[Array] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            now.faults.strike("execute")
            names = [tensor.graph_name for tensor in manifest.outputs]
            results.extend(model.graph.run_unsized(bound, names))
            now.counters.executed()
        except Exception as error:  # reported to the caller, who waits
            failures.append(error)

    task = Task(run, reads, writes, f"execute {model.name}")
    depart(now, model, inputs, outputs, stream, task)
    now.streams.wait(stream.record(), None)
    if failures:
        raise _refusal(model, failures[0]) from failures[0]
    if not results:
        code = Code.RT_LOST_HEARTBEAT if now.lost else Code.RT_STREAM_ABORT
        raise Refused(code, f"{what}: found it dropped by its stream")
    for index, (tensor, array) in enumerate(zip(manifest.outputs, results, strict=True)):
        _deliver(now, model, outputs, index, tensor, array)


def _dims(model: Model, inputs: Dataset, index: int, tensor: OmTensor) -> Dims:
    handle = inputs.descs.get(index)
    if handle is None:
        if -1 in tensor.dims:
            text = f"'{tensor.name}': found no tensor description, its dims are {tensor.dims}"
            raise Refused(Code.INVALID_PARAM, f"execute: {model.name}: {text}")
        return tensor.dims
    dims = living(data().descs, handle, "execute").dims
    fits = len(dims) == len(tensor.ranges) and all(
        low <= dim and (high < 0 or dim <= high)
        for dim, (low, high) in zip(dims, tensor.ranges, strict=True)
    )
    if not fits:
        text = f"'{tensor.name}': found dims {dims}, expected {tensor.ranges}"
        raise Refused(Code.INVALID_PARAM, f"execute: {model.name}: {text}")
    return dims


def _deliver(
    now: Process, model: Model, outputs: Dataset, index: int, tensor: OmTensor, array: Array
) -> None:
    buffer = outputs.buffers[index]
    if buffer.ptr == 0 and array.nbytes:
        what = f"execute: {model.name}: '{tensor.name}'"
        buffer.ptr = system_memory(array.nbytes, 0, what)
        buffer.size = array.nbytes
    _check_room(model, tensor.name, buffer, array.nbytes)
    if array.nbytes:
        target = now.memory.resolve(buffer.ptr, array.nbytes, want="device", write=True)
        target[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    describe(outputs, index, TensorDesc(tensor.dtype, array.shape, tensor.format))


def _check_room(model: Model, name: str, buffer: DataBuffer, nbytes: int) -> None:
    if buffer.size < nbytes:
        text = f"'{name}': found {buffer.size:,} bytes, expected {nbytes:,}"
        raise Refused(Code.GE_FAILURE, f"execute: {model.name}: {text}")


def _refusal(model: Model, error: BaseException) -> Refused:
    if isinstance(error, Refused):
        return error
    return Refused(Code.RT_MODEL_EXECUTE, f"execute: {model.name}: {error}")
