"""The service side of executions: receives RUN and sends DONE.

The client side is `engine`.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ge_runtime.config import HANDLE_DTYPE
from ge_runtime.engines.base import GraphTensor
from ge_runtime.errors import (
    Abandoned,
    EngineFault,
    EngineLost,
    HandleFault,
    OutOfMemory,
    RowsTaken,
    RuntimeFault,
    ServiceFault,
    forget_frames,
)
from ge_runtime.npu.service.channel import Channel
from ge_runtime.npu.service.fair_scheduler import QueueEntry
from ge_runtime.npu.service.protocol import (
    LAYOUT_AT,
    NOWHERE,
    BufferReference,
    Done,
    Kind,
    ProtocolError,
    fault_as_json,
    pack_done,
    unpack_layout,
    unpack_run,
)
from ge_runtime.npu.service.resident import ResidentExecution
from ge_runtime.npu.service.row_registry import MOST_WAIT_S
from ge_runtime.npu.service.shared_memory import ALIGNMENT, sealed_file
from ge_runtime.npu.service.state import ClientSession, ModelReference, ServiceState
from ge_runtime.specs import Array, DType, Tensors

_log = logging.getLogger(__name__)

_MOST_KNOWN: Final = 256
"""Maximum number of cached layouts. Gears have few layouts; other layouts mostly occur once."""


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arrays of an execution."""

    inputs: Tensors
    outputs: Mapping[str, Array | None]
    allocates: tuple[str, ...]
    """The names of the outputs that are None; the engine allocates them."""


class ServerExecutions:
    """The executions of one connection on one engine, one after another."""

    def __init__(
        self,
        state: ServiceState,
        channel: Channel,
        client: ClientSession,
        reference: ModelReference,
    ) -> None:
        self._state = state
        self._channel = channel
        self._client = client
        self._reference = reference
        self._model = reference.model
        self._signature = reference.model.engine.signature
        self._units = state.units(reference.model)
        self._exclusive = reference.model.exclusive
        self._what = f"{client} of {reference.name}"
        self._known: dict[bytes, _Arguments] = {}
        self._version = client.version

    def serve(self) -> None:
        """Serve executions until the connection ends. Raises PeerGone or ProtocolError."""
        while True:
            kind, body = self._channel.receive()
            if kind is not Kind.RUN:
                raise ProtocolError(f"found a message of kind {kind.name}, expected an execution")
            sequence, within_s, filled = unpack_run(body)
            try:
                arguments = self._arguments(body[LAYOUT_AT:])
            except ProtocolError as error:  # fails only this execution, not the connection
                self._send_fault(
                    sequence, ServiceFault(f"the device service refuses an execution: {error}")
                )
                continue
            entry = QueueEntry(
                self._client.process,
                self._units,
                self._client.weight,
                self._client.priority,
                # The message has a duration and not a deadline, because clocks may differ.
                math.inf if within_s == math.inf else self._state.clock.now() + within_s,
                self._exclusive,
                self._model.expected_s,
                self._what,
            )
            self._execute(sequence, entry, arguments, filled)

    def _execute(
        self, sequence: int, entry: QueueEntry, arguments: _Arguments, filled: int
    ) -> None:
        """Wait in the queue, execute, and send the result. Raises PeerGone."""
        self._reference.entry = entry  # allows the control connection to cancel it
        fault: Exception | None = None
        results: Tensors = {}
        waited_s = took_s = 0.0
        rows: ResidentExecution | None = None
        try:
            # Rows are reserved first: this wait must not block executions that release rows.
            rows = self._begin_rows(arguments, filled, entry.deadline)
            self._state.scheduler.enter(entry)
        except (Abandoned, EngineLost, EngineFault, HandleFault, RowsTaken) as not_started:
            fault = not_started
        else:
            waited_s = entry.waited_s
            started = time.perf_counter()
            try:
                with self._model.in_arena(arguments.inputs):
                    results = self._run(arguments, rows)
            except RuntimeFault as error:
                fault = error
            except Exception as error:  # a defect of the engine
                _log.exception("an execution for %s failed", self._what)
                fault = error
            took_s = time.perf_counter() - started
            self._state.scheduler.leave(entry, took_s)
            self._model.note(took_s, failed=fault is not None)
            self._client.note(took_s, waited_s, failed=fault is not None)
        if rows is not None:
            rows.end(done=fault is None)
        self._reference.entry = None
        file: int | None = None
        allocated: tuple[tuple[int, BufferReference], ...] = ()
        if fault is None and arguments.allocates:
            try:
                file, allocated = self._in_a_file(results, arguments.allocates)
            except RuntimeFault as error:
                fault = error
        if fault is not None:
            forget_frames(fault)  # frames refer to arrays in the client's memory
            self._send_fault(sequence, fault, waited_s, took_s)
            if isinstance(fault, EngineLost):  # only a new process can use the device again
                self._state.end(
                    f"the device is lost, as {self._what} found: {fault}", patience_s=0.0
                )
            return
        done = pack_done(Done(sequence, waited_s, took_s, allocated))
        if file is None:
            self._channel.send(done)
            return
        try:
            self._channel.send(done, [file])
        finally:
            os.close(file)

    def _begin_rows(
        self, arguments: _Arguments, filled: int, deadline: float
    ) -> ResidentExecution | None:
        """Look up and reserve the resident rows of an execution; None if the model has none.

        Raises HandleFault, RowsTaken or EngineFault.
        """
        resident = self._reference.resident
        if resident is None:
            return None
        until = min(deadline, self._state.clock.now() + MOST_WAIT_S)
        return resident.begin(arguments.inputs, arguments.outputs, filled, until)

    def _run(self, arguments: _Arguments, rows: ResidentExecution | None) -> Tensors:
        engine = self._model.engine
        if rows is None:
            return engine.run(arguments.inputs, arguments.outputs)
        resident = self._reference.resident
        assert resident is not None, "`_begin_rows` returns None otherwise"
        return resident.run(engine, rows)

    def _send_fault(
        self, sequence: int, fault: Exception, waited_s: float = 0.0, took_s: float = 0.0
    ) -> None:
        done = Done(sequence, waited_s, took_s, fault=fault_as_json(fault))
        self._channel.send(pack_done(done))

    def _arguments(self, layout: bytes) -> _Arguments:
        """Return the arrays of a layout, cached for equal layouts. Raises ProtocolError."""
        if self._version != self._client.version or len(self._known) >= _MOST_KNOWN:
            self._known.clear()  # layouts of gears are soon cached again
            self._version = self._client.version
        arguments = self._known.get(layout)
        if arguments is None:
            arguments = self._known[layout] = self._unpacked(layout)
        return arguments

    def _unpacked(self, data: bytes) -> _Arguments:
        layout = unpack_layout(data)
        inputs, outputs = self._signature.inputs, self._signature.outputs
        view = self._client.arenas.view
        if len(layout.inputs) != len(inputs):
            raise ProtocolError(f"found {len(layout.inputs)} inputs, expected {len(inputs)}")
        given = {
            tensor.name: view(buffer, self._dtype(tensor))
            for tensor, buffer in zip(inputs, layout.inputs, strict=True)
        }
        wanted: dict[str, Array | None] = {}
        for index, buffer in layout.outputs:
            if index >= len(outputs) or outputs[index].name in wanted:
                raise ProtocolError(
                    f"found output {index}, expected each of {len(outputs)} outputs at most once"
                )
            tensor = outputs[index]
            to_allocate = buffer[0] == NOWHERE and not buffer[2]
            wanted[tensor.name] = None if to_allocate else view(buffer, self._dtype(tensor))
        # Outputs with an array are written in shared memory; outputs without are sent in a file.
        allocates = tuple(name for name, array in wanted.items() if array is None)
        return _Arguments(given, wanted, allocates)

    def _dtype(self, tensor: GraphTensor) -> np.dtype[np.generic]:
        """Return the type of a tensor in the client's memory. Raises ProtocolError."""
        resident = self._reference.resident
        if resident is not None and tensor.name in resident.names:
            return HANDLE_DTYPE.numpy
        if tensor.dtype is DType.BYTES:
            raise ProtocolError(
                f"found '{tensor.name}' of BYTES, expected elements of a fixed size"
            )
        return tensor.dtype.numpy

    def _in_a_file(
        self, results: Tensors, names: tuple[str, ...]
    ) -> tuple[int, tuple[tuple[int, BufferReference], ...]]:
        """Write the outputs that the engine allocated to a new file.

        Returns:
            The descriptor of the file, and (index, buffer reference) of each output.

        Raises:
            EngineFault: An output has the type BYTES.
            OutOfMemory: The file cannot be created.
        """
        indices = {tensor.name: index for index, tensor in enumerate(self._signature.outputs)}
        buffers: list[tuple[int, BufferReference]] = []
        end = 0
        for name in names:
            array = results[name]
            if array.dtype.hasobject:
                raise EngineFault(
                    f"output '{name}': found BYTES, expected elements of a fixed size"
                )
            start = -(-end // ALIGNMENT) * ALIGNMENT
            buffers.append((indices[name], (0, start, array.shape)))
            end = start + array.nbytes
        try:
            file = sealed_file("answer", max(1, end))
            try:
                for name, (_, (_, start, _)) in zip(names, buffers, strict=True):
                    _write(file, results[name], start)
            except BaseException:
                os.close(file)
                raise
        except OSError as error:
            raise OutOfMemory(
                f"the device service: a file of {end:,} bytes cannot be created: {error}"
            ) from error
        return file, tuple(buffers)


def _write(descriptor: int, array: Array, start: int) -> None:
    """Write the array's bytes at `start`. For a single use, writing is faster than mapping."""
    left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while left:
        written = os.pwrite(descriptor, left, start)
        left, start = left[written:], start + written
