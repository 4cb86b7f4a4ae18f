"""Executions of models: submission, the graph's inputs, and the task that runs on the stream.

With a memory plan (static shapes and gears), `bindings` checks all addresses on the host. Later the
stream checks the gear and the weights, and computes in place in device memory. With free shapes the
caller waits, and the computation determines the dims of the outputs. Before the graph runs, AIPP
computes its inputs from images.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ascend_simulator.codes import Code, DataType, Refused
from ascend_simulator.memory.blocks import Place, Range
from ascend_simulator.models import aipp
from ascend_simulator.models.aipp import Parameters
from ascend_simulator.models.bindings import Binding, check_apart, gear_bytes, located
from ascend_simulator.models.datasets import DataBuffer, Dataset, TensorDesc, data, describe, lookup
from ascend_simulator.models.graph import Array, Bound
from ascend_simulator.models.loaded import PATTERN, Model, check_context
from ascend_simulator.models.om import Dims, OmTensor, Shapes
from ascend_simulator.models.regions import system_memory
from ascend_simulator.process import Process
from ascend_simulator.streams.stream import Stream
from ascend_simulator.streams.tasks import Task
from ascend_simulator.violations import declare, violate

NOT_SET = declare(
    "model.aipp-not-set",
    "When an execution starts, the AIPP buffer must hold the data that set_input_aipp wrote.",
)


def graph_inputs(
    model: Model, shapes: Shapes, places: Sequence[Place]
) -> tuple[list[Bound], list[NDArray[Any]]]:
    """Return the graph's inputs, and the arrays to keep alive until the graph has run.

    Checks NOT_SET. Raises Refused RT_MODEL_EXECUTE if AIPP parameters are missing.
    """
    manifest = model.manifest
    bound: list[Bound] = []
    arrays: list[NDArray[Any]] = []
    for index, (tensor, dims, place) in enumerate(
        zip(manifest.inputs, shapes.inputs, places, strict=True)
    ):
        if index == manifest.aipp_place:
            continue
        own = manifest.aipp[index] if manifest.aipp else None
        if own is None:
            bound.append(Bound(tensor.graph_name, tensor.dtype, dims, place.address))
            continue
        parameters = own.parameters or _set_parameters(model, places)
        width, height = parameters.width, parameters.height
        if manifest.family == "image":
            height, width = shapes.gear
        rows = shapes.gear[0] if manifest.family == "batch" else tensor.dims[0]
        array = aipp.preprocess(place.content, rows, width, height, parameters)
        if own.dtype != DataType.ACL_FLOAT16:
            array = array.astype(np.float32)
        array = np.ascontiguousarray(array)
        arrays.append(array)
        bound.append(Bound(tensor.graph_name, own.dtype, array.shape, array.ctypes.data))
    return bound, arrays


def _set_parameters(model: Model, places: Sequence[Place]) -> Parameters:
    """Return the parameters that set_input_aipp wrote into this execution's buffer."""
    index = model.manifest.aipp_place
    assert index is not None  # only models with a parameter input have dynamic AIPP
    place = places[index]
    data = place.content.tobytes()
    written = model.aipp_at.get(place.ptr)
    if written is None or data[: len(written)] != written:
        found = "no data of set_input_aipp" if written is None else "changed bytes"
        text = f"execute: {model.name}: found {found} in the AIPP parameter buffer"
        violate(NOT_SET, text)
        raise Refused(Code.RT_MODEL_EXECUTE, text)
    return aipp.unpack(data, model.manifest.aipp_rows)


BUSY = declare("model.busy", "A model must be executed on one stream at a time.")
GEAR_CONTENT = declare(
    "model.gear-content",
    "When an execution starts, the gear buffer must hold the gear that the model's setter wrote.",
)


def submit(
    now: Process, model: Model, inputs: Dataset, outputs: Dataset, stream: Stream, *, waits: bool
) -> Execution:
    """Submit an execution of the model to `stream`, and return it.

    With `waits` the caller waits for the result: `Execution.result` raises a failure, which is not
    stored in the stream, and outputs without an address are allocated. Checks BUSY, `claims.RACE`,
    `models.OTHER_CONTEXT` and the rules of `Binding`. Raises Refused RT_MODEL_CONTEXT, and like
    `Binding` and `Stream.submit`.
    """
    check_context(now, model, "execute")
    binding = Binding(now, model, inputs, outputs, allocates=waits)
    execution = Execution(now, model, binding, stream.name, waits=waits)
    with now.lock:
        # Read before the submission, which also counts as a write to the workspace.
        execution.others = execution.workspace.others()
        task = Task(
            execution.run, binding.reads(), binding.writes(), f"execute {model.name}", "execute"
        )
        submit_execution(now, model, inputs, outputs, stream, task)
        execution.workspace.submitted()
    return execution


def submit_execution(
    now: Process, model: Model, inputs: Dataset, outputs: Dataset, stream: Stream, task: Task
) -> None:
    """Submit the task of an execution and mark its resources as in use until the host waits.

    Checks BUSY; raises like `Stream.submit`.
    """
    with now.lock:
        ordering = now.streams.ordering
        if model.executions.unordered(ordering, stream.number):
            violate(BUSY, f"execute: {model.name}: still executing on another stream")
        stream.submit(task)
        number = ordering.last(stream.number)
        executions = [model.executions, inputs.executions, outputs.executions]
        executions += [buffer.executions for buffer in (*inputs.buffers, *outputs.buffers)]
        for each in executions:
            each.add(stream.number, number)


class Execution:
    """A submitted execution."""

    def __init__(
        self, now: Process, model: Model, binding: Binding, stream: str, *, waits: bool
    ) -> None:
        """Prepare an execution. `stream` is the stream's name."""
        self._stream = stream
        self._now = now
        self._model = model
        self._binding = binding
        self._waits = waits
        self.workspace: Final = model.workspace
        self.others = 0
        """The number of writes to the workspace, except by executions, at the submission."""
        self._failure: BaseException | None = None
        self._done = False

    def result(self) -> None:
        """Raise the execution's failure. Call after the wait; only with `waits`."""
        if self._failure is not None:
            raise self._failure
        if not self._done:
            code = Code.RT_LOST_HEARTBEAT if self._now.lost else Code.RT_STREAM_ABORT
            raise Refused(code, f"execute: {self._model.name}: dropped by its stream")

    def run(self) -> None:
        """Execute; raise a failure, or store it for a caller that waits. A failure spoils outputs.

        Checks GEAR_CONTENT and `loaded.CHANGED`. Raises Refused RT_MODEL_EXECUTE.
        """
        try:
            self._execute()
        except BaseException as error:
            for place in self._binding.outputs:
                place.content.fill(PATTERN)
            failed = error
            if not isinstance(error, (Refused, AssertionError, Warning)):  # raised by onnxruntime
                text = f"execute: {self._model.name}: {error}"
                failed = Refused(Code.RT_MODEL_EXECUTE, text)
                failed.__cause__ = error
            if not self._waits:
                raise failed from failed.__cause__
            self._failure = failed
        self._done = True

    def _execute(self) -> None:
        now, model, binding = self._now, self._model, self._binding
        now.faults.strike("execute")
        if now.settings.launch_us:
            time.sleep(now.settings.launch_us / 1e6)
        shapes = self._shapes()
        if model.weights.nbytes:
            model.image.check_next(model.weights.content, model.name)
        # Overwrite the whole workspace, so that programs cannot rely on its content.
        self.workspace.fill(binding.work.ptr, binding.work.nbytes, self.others)
        manifest = model.manifest
        # Some inputs are in these arrays, which must exist until the graph has run.
        inputs, arrays = graph_inputs(model, shapes, binding.inputs)
        model.graph.run(inputs, _bound(manifest.outputs, shapes.outputs, binding.outputs))
        if model.dump is not None:
            model.dump.write(inputs, model.context.device, model.number, self._stream)
        arrays.clear()
        now.counters.executed()

    def _shapes(self) -> Shapes:
        """Return the shapes of the gear in the gear buffer; of the largest gear if none was set.

        Checks GEAR_CONTENT. Raises Refused RT_MODEL_EXECUTE for an unknown gear, and if the buffers
        are too small for the gear.
        """
        manifest, binding = self._model.manifest, self._binding
        if binding.gear is None:
            return manifest.shapes[0]
        found = _gear_values(binding.gear, manifest.gear_values)
        expected = manifest.shapes[binding.expected]
        if found == expected.gear:
            return expected
        other = next((shapes for shapes in manifest.shapes if shapes.gear == found), None)
        fault = ", which is not a gear" if other is None else self._misfit(other)
        if not binding.is_set and (other is None or not fault):
            return other or expected
        text = f"found {found} in the gear buffer, expected {expected.gear}{fault}"
        text = f"execute: {self._model.name}: {text}"
        violate(GEAR_CONTENT, text)
        if other is None or fault:
            raise Refused(Code.RT_MODEL_EXECUTE, text)
        return other

    def _misfit(self, shapes: Shapes) -> str:
        """Name a buffer that is too small for `shapes`, which the host did not check, or ''."""
        manifest, binding = self._model.manifest, self._binding
        for tensors, dims, places in (
            (manifest.inputs, shapes.inputs, binding.inputs),
            (manifest.outputs, shapes.outputs, binding.outputs),
        ):
            for tensor, each, place in zip(tensors, dims, places, strict=True):
                needed = tensor.nbytes(each)
                if place.nbytes < needed:
                    return f", for which '{tensor.name}' has {place.nbytes:,} bytes of {needed:,}"
        return ""


def _bound(
    tensors: Sequence[OmTensor], dims: Sequence[Dims], places: Sequence[Place]
) -> list[Bound]:
    return [
        Bound(tensor.graph_name, tensor.dtype, each, place.address)
        for tensor, each, place in zip(tensors, dims, places, strict=True)
    ]


def _gear_values(place: Place, values: int) -> tuple[int, ...]:
    width = gear_bytes(place.nbytes, values)
    found = place.content[: width * values].view(np.int64 if width == 8 else np.int32)
    return tuple(map(int, found))


# -- free shapes ---------------------------------------------------------------------------------


def execute_free_shapes(
    now: Process, model: Model, inputs: Dataset, outputs: Dataset, stream: Stream
) -> None:
    """Execute after the earlier tasks of `stream`, and wait. Fills the outputs' descriptions.

    Checks `models.OTHER_CONTEXT`, `datasets.DEAD`, and the rules of `bindings.located`,
    `check_apart` and `submit_execution`. Raises Refused: INVALID_PARAM for missing inputs, missing
    descriptions and shapes outside the compiled ranges; GE_FAILURE for short buffers, with the
    needed bytes in the text (inferred); RT_MODEL_EXECUTE.
    """
    check_context(now, model, "execute")
    what = f"execute: {model.name}"
    manifest = model.manifest
    for given, tensors in ((inputs, manifest.inputs), (outputs, manifest.outputs)):
        if len(given.buffers) < len(tensors):
            found = f"found {len(given.buffers)} buffers, expected {len(tensors)}"
            raise Refused(Code.INVALID_PARAM, f"{what}: {found}")
        for handle in given.handles:
            lookup(data().buffers, handle, what)
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
            if model.dump is not None:
                model.dump.write(bound, model.context.device, model.number, stream.name)
            now.counters.executed()
        except Exception as error:  # reported to the waiting caller
            failures.append(error)

    task = Task(run, reads, writes, f"execute {model.name}", "execute")
    submit_execution(now, model, inputs, outputs, stream, task)
    now.streams.wait(stream.record(), None)
    if failures:
        raise _refusal(model, failures[0]) from failures[0]
    if not results:
        code = Code.RT_LOST_HEARTBEAT if now.lost else Code.RT_STREAM_ABORT
        raise Refused(code, f"{what}: dropped by its stream")
    for index, (tensor, array) in enumerate(zip(manifest.outputs, results, strict=True)):
        _deliver(now, model, outputs, index, tensor, array)


def _dims(model: Model, inputs: Dataset, index: int, tensor: OmTensor) -> Dims:
    handle = inputs.descs.get(index)
    if handle is None:
        if -1 in tensor.dims:
            text = f"'{tensor.name}': no tensor description, required for dims {tensor.dims}"
            raise Refused(Code.INVALID_PARAM, f"execute: {model.name}: {text}")
        return tensor.dims
    dims = lookup(data().descs, handle, "execute").dims
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
