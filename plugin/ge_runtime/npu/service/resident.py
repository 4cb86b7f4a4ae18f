"""Resident tensors: inputs and outputs of a model whose rows stay on the device between models.

The client accesses such a tensor by the handles of its rows, UINT64 [rows, 4]. Each row has a place
in memory. An execution reads the rows of its input handles, and writes rows to places that were
reserved before the execution was queued. On a card rows are copied within the card's memory, on the
CPU within the service's memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ge_runtime.config import HANDLE_DIMS, Resident, ResidentTensor
from ge_runtime.engines.backend import DeviceBackend, HostBackend, KeepsRows
from ge_runtime.engines.base import DeviceRows, Engine, GraphTensor, Shapes, TakesRows
from ge_runtime.errors import ArtifactFault, EngineFault, HandleFault
from ge_runtime.npu.service.model_cache import EngineMemory
from ge_runtime.npu.service.row_registry import Handles, Reading, RowRegistry, RowStore
from ge_runtime.specs import Array, Tensors


class ResidentTensors:
    """The resident tensors of one open model of a client. Used by one execution at a time."""

    def __init__(
        self,
        declared: Resident,
        engine: Engine,
        backend: DeviceBackend,
        registry: RowRegistry,
        model: str,
    ) -> None:
        """Check the tensors.

        Args:
            declared: The resident tensors in config.pbtxt.
            engine: The open engine.
            backend: The device's backend.
            registry: The rows of the service.
            model: The model's name, for errors.

        Raises:
            ArtifactFault: The graph lacks a tensor, or the device does not support resident rows.
        """
        is_supported = isinstance(engine, TakesRows) or backend.kind == HostBackend.kind
        if not (is_supported and isinstance(backend, KeepsRows)):
            raise ArtifactFault(
                f"{model}: found 'resident' tensors on {backend.name}, expected none: they are "
                "supported on the CPU, and on Ascend cards for .om files with planned memory"
            )
        for side, resident, tensors in (
            ("input", declared.inputs, engine.signature.inputs),
            ("output", declared.outputs, engine.signature.outputs),
        ):
            for name, tensor in resident.items():
                _ensure_in_graph(f"{model}: resident {side} '{name}'", name, tensor, tensors)
        self._declared = declared
        self._backend: KeepsRows = backend
        self._registry = registry
        self._stores: dict[str, RowStore] = {}
        self._host: _HostRows | None = None
        self._memory = EngineMemory(backend.memory)
        self._most_rows = 0
        self._prepared = self._keeping = False

    @property
    def names(self) -> frozenset[str]:
        """The names of the resident tensors."""
        return frozenset(self._declared.tensors)

    @property
    def taken(self) -> int:
        """The number of places in use."""
        return sum(store.pool.taken for store in self._stores.values())

    def prepare(self, engine: Engine, largest: Sequence[Shapes]) -> None:
        """Allocate the memory for executions up to these shapes. Raises OutOfMemory."""
        declared = self._declared
        for name, tensor in declared.outputs.items():
            if name in self._stores:
                continue
            start, free = self._backend.allocate_rows(tensor.stride * declared.rows)
            self._stores[name] = self._registry.add(
                tensor,
                declared.rows,
                reads=declared.reads,
                lease_s=declared.lease_s,
                spare_s=declared.spare_s,
                start=start,
                free=free,
            )
        rows = max((dims[0] for shapes in largest for dims in shapes.values() if dims), default=0)
        if not isinstance(engine, TakesRows) and rows > self._most_rows:
            self._most_rows = rows
            before, self._memory = self._memory, EngineMemory(self._memory)
            self._host = _HostRows(engine, declared, rows, self._memory)
            before.free_all()
        self._prepared = True

    def keep(self) -> bool:
        """Keep rows from now on. Before this call, while a model is loaded, rows and handles are 0.

        Returns:
            False if `prepare` was not called; then rows are not kept.
        """
        self._keeping = self._prepared
        return self._keeping

    def begin(
        self, inputs: Tensors, outputs: Mapping[str, Array | None], filled: int, until: float
    ) -> ResidentExecution:
        """Look up the rows of an execution and reserve places.

        Args:
            inputs: The client's inputs, with handles.
            outputs: The client's outputs, with arrays for handles.
            filled: Number of rows that are not padding.
            until: Time until which this call may wait for places.

        Returns:
            The execution, whose `end` must be called.

        Raises:
            HandleFault: A handle is invalid.
            RowsTaken: There are not enough free places.
        """
        declared = self._declared
        execution = ResidentExecution(self._registry, dict(inputs), dict(outputs))
        try:
            for name, tensor in declared.inputs.items():
                # A copy, because the client may modify its memory concurrently.
                handles = np.array(_handles(name, inputs[name], filled))
                shape = (len(handles), *tensor.dims)
                if not self._keeping:
                    execution.inputs[name] = np.zeros(shape, tensor.dtype.numpy)
                    continue
                reading = self._registry.read(name, tensor, handles[:filled])
                execution.readings.append(reading)
                execution.inputs[name] = DeviceRows(shape, tensor.dtype.numpy, reading.addresses)
            for name, tensor in declared.outputs.items():
                if name not in outputs:
                    continue
                handles = _handles(name, outputs[name], filled)
                if not self._keeping:
                    execution.outputs[name] = None
                    execution.dropped.append((name, handles))
                    continue
                store = self._stores[name]
                places = self._registry.reserve(store, filled, until)
                execution.writings.append(_Writing(store, places, handles))
                shape = (len(handles), *tensor.dims)
                execution.outputs[name] = DeviceRows(
                    shape, tensor.dtype.numpy, store.addresses(places)
                )
        except BaseException:
            execution.end(done=False)
            raise
        return execution

    def run(self, engine: Engine, execution: ResidentExecution) -> dict[str, Array]:
        """Execute. Return the results that do not stay on the device, see `Engine.run`."""
        if isinstance(engine, TakesRows):
            results = engine.run_rows(execution.inputs, execution.outputs)
        elif self._host is not None:
            results = self._host.run_rows(execution.inputs, execution.outputs)
        else:
            raise EngineFault("found an execution before the call 'bind', expected 'bind' first")
        for name, handles in execution.dropped:
            handles[...] = 0
            results[name] = handles
        return results

    def close(self) -> None:
        """Free the memory, after current readers have ended. The model must be idle."""
        stores, self._stores = list(self._stores.values()), {}
        for store in stores:
            self._registry.remove(store)
        self._memory.free_all()


@dataclass(slots=True)
class _Writing:
    store: RowStore
    places: list[int]
    handles: Handles
    """The client's array for the handles, including padding rows."""


@dataclass(slots=True)
class ResidentExecution:
    """The resident rows that one execution reads and writes, until `end`."""

    registry: RowRegistry
    inputs: dict[str, Array | DeviceRows]
    outputs: dict[str, Array | DeviceRows | None]
    readings: list[Reading] = field(default_factory=list)
    writings: list[_Writing] = field(default_factory=list)
    dropped: list[tuple[str, Handles]] = field(default_factory=list)
    """(name, the client's handles) of outputs whose rows are not kept."""

    def end(self, *, done: bool) -> None:
        """End the execution. Call once.

        Args:
            done: Whether the execution succeeded. If so, the input rows count as read, and the
                handles of the output rows are written to the client's memory.
        """
        for reading in self.readings:
            reading.end(done=done)
        for writing in self.writings:
            if done:
                writing.handles[...] = 0
                writing.handles[: len(writing.places)] = self.registry.publish(
                    writing.store, writing.places
                )
            else:
                self.registry.unreserve(writing.store, writing.places)


class _HostRows:
    """Gathers and scatters rows for an engine that works on host arrays."""

    def __init__(self, engine: Engine, declared: Resident, rows: int, memory: EngineMemory) -> None:
        """Allocate batches for executions of up to `rows` rows. Raises OutOfMemory."""
        self._engine = engine
        self._batches = {
            name: memory.allocate("resident batches", rows * tensor.row_bytes).memory
            for name, tensor in declared.tensors.items()
        }

    def run_rows(
        self,
        inputs: Mapping[str, Array | DeviceRows],
        outputs: Mapping[str, Array | DeviceRows | None],
    ) -> dict[str, Array]:
        given: dict[str, Array] = {}
        for name, tensor in inputs.items():
            given[name] = tensor if isinstance(tensor, np.ndarray) else self._batch(name, tensor)
            if isinstance(tensor, DeviceRows):
                batch, filled = given[name], len(tensor.places)
                for row, place in zip(batch, tensor.places, strict=False):
                    ctypes.memmove(row.ctypes.data, place, row.nbytes)
                batch[filled:] = batch[0]
        wanted = {
            name: self._batch(name, target) if isinstance(target, DeviceRows) else target
            for name, target in outputs.items()
        }
        results = self._engine.run(given, wanted)
        for name, target in outputs.items():
            if isinstance(target, DeviceRows):
                batch = results.pop(name)
                for row, place in zip(batch, target.places, strict=False):  # without padding
                    ctypes.memmove(place, row.ctypes.data, row.nbytes)
        return results

    def _batch(self, name: str, tensor: DeviceRows) -> Array:
        memory, nbytes = self._batches[name], math.prod(tensor.shape) * tensor.dtype.itemsize
        if nbytes > len(memory):
            raise EngineFault(
                f"'{name}': found {tensor.shape[0]} rows, expected at most the prepared number"
            )
        return memory[:nbytes].view(tensor.dtype).reshape(tensor.shape)


def _handles(name: str, array: Array | None, filled: int) -> Handles:
    """Return the array. Raises HandleFault if it does not have the shape of handles."""
    if array is None or array.ndim != 2 or array.shape[1:] != HANDLE_DIMS:
        found = "none" if array is None else list(array.shape)
        raise HandleFault(f"'{name}': found handles {found}, expected [rows, {HANDLE_DIMS[0]}]")
    if not 0 < filled <= len(array):
        raise HandleFault(f"'{name}': found {filled} rows in use, expected 1 to {len(array)}")
    return array


def _ensure_in_graph(
    field: str, name: str, tensor: ResidentTensor, tensors: Sequence[GraphTensor]
) -> None:
    """Raise ArtifactFault unless the graph has the tensor with rows as its first dimension."""
    found = {each.name: each for each in tensors}.get(name)
    if found is None:
        raise ArtifactFault(f"{field}: found no such tensor in the graph, expected one")
    dims = found.dims or ()
    fits = len(dims) == len(tensor.dims) + 1 and all(
        size in (None, expected) for size, expected in zip(dims[1:], tensor.dims, strict=False)
    )
    if found.dtype is not tensor.dtype or not fits:
        wanted = f"{tensor.dtype.value}[*,{','.join(map(str, tensor.dims))}]"
        raise ArtifactFault(f"{field}: found {found} in the graph, expected {wanted}")
