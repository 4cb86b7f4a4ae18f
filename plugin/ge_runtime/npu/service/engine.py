"""The client side of an engine in the device service, and of its executions.

An execution sends RUN and receives DONE; the service side is `execution_loop`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.config import HANDLE_DIMS, HANDLE_DTYPE, Resident
from ge_runtime.devices import Device
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import GraphTensor, Shapes, Signature
from ge_runtime.errors import ArtifactFault, EngineFault, OutOfMemory
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.npu.service.channel import Channel, DescriptorsExhausted, PeerGone, close_all
from ge_runtime.npu.service.connection import Connection
from ge_runtime.npu.service.messages import ensure_same_files, resident_as_json
from ge_runtime.npu.service.protocol import (
    NOWHERE,
    BufferReference,
    Done,
    Json,
    Kind,
    ProtocolError,
    fault_of,
    intermediates_of,
    pack_layout,
    pack_run,
    signature_of,
    unpack_done,
)
from ge_runtime.npu.service.reconnecting_client import ReconnectingClient
from ge_runtime.npu.service.shared_memory import SharedMemory, StagingBuffer, map_sealed
from ge_runtime.specs import Array, Tensors

_TO_ALLOCATE: Final[BufferReference] = (NOWHERE, 0, ())


class ServiceEngine:
    """An engine in the device service. Created by `ServiceBackend.open`.

    The service reads and writes arrays in the backend's memory in place. Other arrays are copied to
    and from a staging buffer, which is slower.
    """

    def __init__(
        self,
        client: ReconnectingClient,
        memory: SharedMemory,
        artifacts: Sequence[Artifact],
        threads: int,
        outputs: Sequence[str],
        resident: Resident,
    ) -> None:
        """Initialize the engine without opening it.

        Args:
            client: The connection to the service.
            memory: The memory that this process shares with the service.
            artifacts: The files.
            threads: Maximum number of host threads of an execution.
            outputs: Names in config.pbtxt for the graph's outputs.
            resident: The tensors that stay on the device.
        """
        self._client = client
        self._memory = memory
        self._paths = [artifact.path.absolute() for artifact in artifacts]
        self._request: dict[str, Any] = {
            "do": "open",
            "artifacts": [[str(a.path.absolute()), a.engine, a.reason] for a in artifacts],
            "threads": threads,
            "outputs": list(outputs),
        }
        self._resident = resident.tensors
        """Tensors that this process accesses by the handles of their rows."""
        if self._resident:
            self._request["resident"] = resident_as_json(resident)
        self._keeping = False
        self._largest: list[dict[str, list[int]]] | None = None
        self._facts: dict[str, Any] = {}
        self._number = 0  # the engine's number in the current or last service
        self._executions = ClientExecutions(client)
        self._staging = StagingBuffer(memory)
        self._signature = Signature((), ())
        self._inputs: list[tuple[str, np.dtype[Any]]] = []
        self._outputs: dict[str, tuple[int, np.dtype[Any]]] = {}

    def open(self) -> None:
        """Open the engine for the first time, see `restore`. Raises EngineLost for PeerGone."""

        def open_there(connection: Connection) -> None:
            self.restore(connection)
            self._client.add(self)  # in the same call, so that a later loss is recovered

        self._client.call(open_there)

    # ------------------------------------------------------------------------- for the client

    def restore(self, connection: Connection) -> None:
        """Open the engine in a service.

        Raises:
            ArtifactFault: The files differ from the files of this process, or have changed since
                the engine was opened for the first time.
            RuntimeFault: The service cannot open the engine.
            PeerGone: The connection has ended.
        """
        facts = connection.request(self._request)
        ensure_same_files(self._paths, facts["seen"], facts["content"])
        if self._facts and facts["content"] != self._facts["content"]:
            raise ArtifactFault(
                f"{self._paths[0]}: found content that has changed since the model "
                "was loaded, expected the same; load the model again"
            )
        self._number = facts["engine"]
        if not self._facts:
            self._signature = self._with_handles(signature_of(facts["signature"]))
            self._inputs = [(t.name, t.dtype.numpy) for t in self._signature.inputs]
            self._outputs = {
                t.name: (index, t.dtype.numpy) for index, t in enumerate(self._signature.outputs)
            }
        self._facts = facts
        if self._largest is not None:
            connection.request({"do": "bind", "engine": self._number, "largest": self._largest})
        if self._keeping:
            connection.request({"do": "keep", "engine": self._number})
        self._executions.connect(connection, self._number)

    def disconnect(self) -> None:
        """End executions, which raise EngineLost until the next `restore`."""
        self._executions.disconnect()

    def close_in_fork(self) -> None:
        self._executions.close_in_fork()

    # ----------------------------------------------------------------------------- for executors

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def shapes(self) -> Sequence[Shapes] | None:
        shapes = self._facts["shapes"]
        return (
            None
            if shapes is None
            else [
                {
                    name: (dims[0], *HANDLE_DIMS) if name in self._resident else tuple(dims)
                    for name, dims in one.items()
                }
                for one in shapes
            ]
        )

    @property
    def lost(self) -> bool:
        """True while there is no service."""
        return self._client.connection is None

    @property
    def compiles_each_shape(self) -> bool:
        """False: the service does not execute engines that compile each shape."""
        return False

    @property
    def unplanned(self) -> Sequence[str]:
        """The lines of the service's engine, see `Limited`."""
        lines: list[str] = self._facts["unplanned"]
        return lines

    def waiting(
        self, within: Callable[[], float], gone: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        return self._executions.waiting(within, gone)

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Bind the engine in the service; nothing is allocated in this process."""
        # Stored first, because `restore` uses it if the service is replaced during the request.
        self._largest = [self._dims(shapes) for shapes in largest]
        self._request_engine({"do": "bind", "largest": self._largest})

    def keep_rows(self) -> None:
        """Keep resident rows from now on. Earlier executions do not belong to requests."""
        if self._resident and not self._keeping:
            self._keeping = True  # before the request, as in `bind`
            self._request_engine({"do": "keep"})

    def expect_rows(self, filled: int) -> None:
        self._executions.filled = filled

    def reserve(self, nbytes: int) -> None:
        self._staging.reserve(nbytes, len(self._signature.outputs))

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """See `Engine.run`. Raises EngineLost at once while there is no service.

        Raises Expired or Cancelled if the execution did not start: see `Remote.waiting`.
        """
        locate = self._memory.locate
        given: list[BufferReference] = []
        for name, dtype in self._inputs:
            array = inputs[name]
            if array.dtype != dtype:
                raise _wrong_type(name, array, dtype)
            buffer = locate(array)
            if buffer is None:
                return self._run_staged(inputs, outputs)
            given.append(buffer)
        wanted: list[tuple[int, BufferReference]] = []
        allocates = False
        for name, target in outputs.items():
            index, dtype = self._outputs[name]
            if target is None:
                allocates = True
                wanted.append((index, _TO_ALLOCATE))
                continue
            if target.dtype != dtype:
                raise _wrong_type(name, target, dtype)
            buffer = locate(target)
            if buffer is None:
                return self._run_staged(inputs, outputs)
            wanted.append((index, buffer))
        done, file = self._executions.execute(pack_layout(given, wanted), allocates=allocates)
        results = {name: target for name, target in outputs.items() if target is not None}
        if allocates:
            results.update(self._allocated(done, file))
        return {name: results[name] for name in outputs}

    def weights_bytes(self) -> int:
        """Return the size of the weights, which all clients of the service share."""
        nbytes: int = self._facts["weights_bytes"]
        return nbytes

    def device_io_bytes(self) -> int | None:
        nbytes: int | None = self._facts["device_io_bytes"]
        return nbytes

    def intermediates(self, shapes: Shapes) -> Intermediates | None:
        message = {"do": "intermediates", "shapes": self._dims(shapes)}
        return intermediates_of(self._request_engine(message)["intermediates"])

    def close(self) -> None:
        with self._client.cleanup() as notify:
            if self._client.remove(self):
                self.disconnect()
                notify({"do": "close", "engine": self._number})

    def _with_handles(self, signature: Signature) -> Signature:
        """Return the signature with handles instead of resident tensors."""

        def own(tensor: GraphTensor) -> GraphTensor:
            if tensor.name not in self._resident:
                return tensor
            rows = None if tensor.dims is None else tensor.dims[0]
            return GraphTensor(tensor.name, HANDLE_DTYPE, (rows, *HANDLE_DIMS))

        return Signature(tuple(map(own, signature.inputs)), tuple(map(own, signature.outputs)))

    def _dims(self, shapes: Shapes) -> dict[str, list[int]]:
        """Return the shapes of the graph, with the dims of resident tensors instead of handles."""
        return {
            name: [shape[0], *self._resident[name].dims] if name in self._resident else list(shape)
            for name, shape in shapes.items()
        }

    def _request_engine(self, message: Json) -> dict[str, Any]:
        """Send a request about the engine. Raises EngineLost, and the service's fault."""

        # The number is read within the call, because the next service may assign another one.
        def send(connection: Connection) -> dict[str, Any]:
            return connection.request({**message, "engine": self._number})

        return self._client.call(send)

    def _allocated(self, done: Done, files: list[int]) -> dict[str, Array]:
        """Map the file with the outputs that the engine allocated, and return these outputs."""
        try:
            # Only the bytes of the outputs are mapped.
            size = max((_end(self._signature, one) for one in done.allocated), default=1)
            memory = np.frombuffer(map_sealed(files[0], max(1, size), written=True), np.uint8)
            results: dict[str, Array] = {}
            for index, (_, start, shape) in done.allocated:
                tensor = self._signature.outputs[index]
                own = memory[start : start + math.prod(shape) * tensor.dtype.numpy.itemsize]
                results[tensor.name] = own.view(tensor.dtype.numpy).reshape(shape)
            return results
        except (ProtocolError, IndexError) as error:
            raise EngineFault(f"the device service: {error}") from error
        except MemoryError as error:
            raise OutOfMemory(f"the results of an execution cannot be mapped: {error}") from error
        finally:
            close_all(files)

    def _run_staged(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """Execute with tensors that are not in shared memory."""
        targets = {name: array for name, array in outputs.items() if array is not None}
        for name, array in (*inputs.items(), *targets.items()):
            if array.dtype.hasobject:
                raise EngineFault(
                    f"'{name}': found BYTES, which the device service does not support"
                )
        staged = iter(self._staging.staged([*inputs.values(), *targets.values()]))
        given = {name: next(staged) for name in inputs}
        wanted = {**outputs, **{name: next(staged) for name in targets}}
        for name, array in inputs.items():
            if given[name] is not array:
                np.copyto(given[name], array)
        results = self.run(given, wanted)
        # The caller's arrays are returned, as `Engine.run` requires.
        for name, target in targets.items():
            if results[name] is not target:
                np.copyto(target, results[name])
                results[name] = target
        return results


def _wrong_type(name: str, array: Array, expected: np.dtype[Any]) -> EngineFault:
    """Return the fault for an array of a wrong type, which would be misinterpreted."""
    return EngineFault(f"'{name}': found {array.dtype}, expected {expected}")


def _end(signature: Signature, output: tuple[int, BufferReference]) -> int:
    index, (_, start, shape) = output
    return start + math.prod(shape) * signature.outputs[index].dtype.numpy.itemsize


class ClientExecutions:
    """The connection for one engine's executions, one at a time. Thread-safe."""

    def __init__(self, client: ReconnectingClient) -> None:
        self._client = client
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._number = 0
        self._executing = Lock()
        self._sequences = itertools.count(1)
        self._within, self._gone = _unlimited, _never
        self.filled = 0
        """Number of rows of the next execution that are not padding."""

    def connect(self, connection: Connection, number: int) -> None:
        """Connect to the engine with this number. Raises like `Connection.connect_engine`."""
        channel = connection.connect_engine(number)
        self._connection, self._channel, self._number = connection, channel, number

    def disconnect(self) -> None:
        """Close the connection; executions raise EngineLost until the next `connect`."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.shut_down()  # ends the wait of a thread that executes
            with self._executing:
                channel.close()

    def close_in_fork(self) -> None:
        self._executing = Lock()  # a thread that does not exist in the fork may have held it
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    @contextmanager
    def waiting(self, within: Callable[[], float], gone: Callable[[], bool]) -> Iterator[None]:
        self._within, self._gone = within, gone
        try:
            yield
        finally:
            self._within, self._gone = _unlimited, _never

    def execute(self, layout: bytes, *, allocates: bool) -> tuple[Done, list[int]]:
        """Execute once.

        Args:
            layout: The packed buffer references of inputs and outputs.
            allocates: Whether the service allocates some outputs, in a file.

        Returns:
            The result, and the descriptors that came with it, which the caller closes.

        Raises:
            EngineLost: There is no service, or it was lost.
            RuntimeFault: The fault of the execution.
        """
        with self._executing:
            channel, connection = self._channel, self._connection
            if channel is None or connection is None:
                raise self._client.fault()
            return self._exchange(channel, connection, layout, allocates=allocates)

    def _exchange(
        self, channel: Channel, connection: Connection, layout: bytes, *, allocates: bool
    ) -> tuple[Done, list[int]]:
        sequence = next(self._sequences)
        files: list[int] = []
        try:
            channel.send(pack_run(sequence, self._within(), layout, self.filled))
            if allocates:
                kind, body, files = channel.receive_with(self._check_cancelled)
            else:
                kind, body = channel.receive(self._check_cancelled)
            if kind is not Kind.DONE:
                raise ProtocolError(f"found a message of kind {kind.name}, expected a result")
            done = unpack_done(body)
            if done.sequence != sequence:
                raise ProtocolError(
                    f"found the result of execution {done.sequence}, expected {sequence}"
                )
        except DescriptorsExhausted as exhausted:
            # Only the descriptor is missing; the message was read, so the connection is usable.
            raise OutOfMemory(f"the results of an execution: {exhausted}") from exhausted
        except (PeerGone, ProtocolError) as error:
            close_all(files)
            self._client.report_loss(connection, str(error))
            raise self._client.fault() from error
        except BaseException:  # the pending response would be mistaken for the next response
            close_all(files)
            self._client.report_loss(connection, "an execution was interrupted")
            raise
        if done.fault is not None:
            close_all(files)
            raise fault_of(done.fault)
        return done, files

    def _check_cancelled(self) -> None:
        if self._gone():  # the wait continues: the service responds to a cancelled execution too
            self._client.try_notify({"do": "cancel", "engine": self._number})


def _unlimited() -> float:
    return math.inf


def _never() -> bool:
    return False
