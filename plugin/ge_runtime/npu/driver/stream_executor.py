"""The stream executor, which executes the slots of engines on a card.

An executor has one stream, and one block of workspace for all its models. Models execute one after
another, so the block has the largest size that a model needs.

A buffer set holds the data of one execution. With several sets, copies of one execution overlap
with the computation of another: each set has a stream for copies, and events synchronize this
stream with the executor's stream. Computations never overlap: a computation is queued after the
previous one has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from ge_runtime.errors import EngineFault, OutOfMemory, RuntimeFault, shown
from ge_runtime.npu.driver.cann_values import DriverFault, FailureKind
from ge_runtime.npu.driver.device import AscendDevice
from ge_runtime.npu.driver.driver import Event, Stream
from ge_runtime.npu.driver.executor_models import ExecutorModels
from ge_runtime.npu.driver.memory import CardExecution, Slot
from ge_runtime.npu.driver.om_model import LoadedModel, ModelFile, Stage

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _CopyStream:
    """A buffer set's stream for copies, and the events that synchronize it."""

    stream: Stream
    arrived: Event
    """Recorded after the copies of all inputs."""
    computed: Event
    """Recorded after all stages."""


class _BufferSet:
    """A buffer set of an executor, used by one execution at a time."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        """Held during executions, and while models are loaded or unloaded."""
        self.copies: _CopyStream | None = None
        """None if this is the only set: copies are queued in the executor's stream."""


class StreamExecutor:
    """A stream of a card, and the models that execute on it.

    `execute` is thread-safe. The card calls the other methods within `AscendDevice.exclusive`.
    """

    def __init__(self, device: AscendDevice, models: ExecutorModels) -> None:
        """Open the streams; `models` has no models yet. Raises DriverFault or EngineLost."""
        self.models = models
        self._device = device
        self._failure: str | None = None
        """The failed execution and its error, until the executor is reset."""
        self._computing = Lock()
        """Held during the computation of an execution, if there are several buffer sets."""
        self._sets: list[_BufferSet] = []
        self._open_streams()
        self._sets.append(_BufferSet(device.add_execution_lock()))

    @property
    def locks(self) -> list[Lock]:
        """The locks of all buffer sets."""
        return [own.lock for own in self._sets]

    # -- executions --

    def execute(self, slot: Slot, execution: CardExecution, buffers: int) -> None:
        """Copy inputs, execute the stages, copy outputs, and wait.

        Waits for earlier executions of the buffer set; other threads run while it waits. A call
        that failed because of a full queue is repeated once. After a failed execution the executor
        is reset before the next one.

        Args:
            slot: The engine's slot.
            execution: The stages and copies.
            buffers: Index of the slot's buffer set, from 0.

        Raises:
            EngineFault: The execution failed.
            OutOfMemory: The card has not enough memory.
            EngineLost: The card is lost.
        """
        own, files = self._sets[buffers], slot.files(execution)
        while True:
            self._device.acquire_lock(own.lock, f"an execution of {self.models.name}")
            try:
                self._device.ensure_available()
                if self._failure is None:
                    slot.ensure_loaded(execution)
                    try:
                        with self._context.current():
                            if own.copies is None:
                                self._execute(slot, execution)
                                return
                            if self._execute_overlapped(own.copies, slot, execution):
                                return
                    except DriverFault as fault:
                        raise self._fault_of(fault, files) from fault
            finally:
                own.lock.release()
            # After the release, because `exclusive` acquires the locks of all executors.
            self._recover()

    # The driver reports a failed task once, at the next wait for its stream, without naming the
    # task. Each execution waits for all tasks that it queued, so a failure belongs to one of them.

    def _execute(self, slot: Slot, execution: CardExecution) -> None:
        stream = self._stream

        def submit() -> None:
            slot.copy_in(stream, execution)
            slot.compute(stream, execution)
            slot.copy_out(stream, execution)

        self._queue(submit, stream)
        self._device.wait(stream)
        slot.collect(execution)  # synchronous copies, after the results were computed

    def _execute_overlapped(
        self, copies: _CopyStream, slot: Slot, execution: CardExecution
    ) -> bool:
        """Execute; return False if nothing was computed because another execution had failed."""
        self._queue(partial(self._copy_in, copies, slot, execution), copies.stream)
        self._device.acquire_lock(self._computing, f"a computation of {self.models.name}")
        try:
            self._device.ensure_available()
            if self._failure is not None:
                self._device.wait(copies.stream)
                return False
            try:
                # The next computation is queued after this one has ended. Events could order them,
                # but then a failure could not be attributed to one of them. Also, no document says
                # that a model may be queued while it executes at other addresses.
                compute = partial(self._compute, copies, slot, execution)
                self._queue(compute, self._stream, copies.stream)
                self._device.wait(self._stream)
            except DriverFault as fault:
                self._note(fault, slot.files(execution))  # first: prevents further computations
                self._drain(copies.stream, fault)
                raise
        finally:
            self._computing.release()
        self._device.wait(copies.stream)
        slot.collect(execution)
        return True

    def _copy_in(self, copies: _CopyStream, slot: Slot, execution: CardExecution) -> None:
        slot.copy_in(copies.stream, execution)
        self._device.driver.record_event(copies.arrived, copies.stream)

    def _compute(self, copies: _CopyStream, slot: Slot, execution: CardExecution) -> None:
        driver = self._device.driver
        driver.stream_wait_event(self._stream, copies.arrived)
        slot.compute(self._stream, execution)
        driver.record_event(copies.computed, self._stream)
        driver.stream_wait_event(copies.stream, copies.computed)
        slot.copy_out(copies.stream, execution)

    def _queue(self, submit: Callable[[], None], *streams: Stream) -> None:
        """Call `submit`, which queues tasks in these streams; repeat it once if a queue is full."""
        for last in (False, True):
            try:
                submit()
                return
            except DriverFault as fault:
                if fault.kind is FailureKind.LOST:
                    raise
                for stream in streams:
                    self._device.wait(stream)  # queued tasks still use the slot
                if last or fault.kind is not FailureKind.RETRY:
                    raise

    def _drain(self, stream: Stream, fault: DriverFault) -> None:
        """Wait for tasks that were queued after a failed task, and ignore their failures.

        Raises DriverFault if the card is lost.
        """
        if fault.kind is FailureKind.LOST:
            return
        try:
            self._device.wait(stream)
        except DriverFault as again:
            if again.kind is FailureKind.LOST:
                raise

    def _fault_of(self, fault: DriverFault, files: Sequence[Path]) -> RuntimeFault:
        text = f"{self.models.name}: {_described(fault, files)}"
        if fault.kind is FailureKind.LOST:
            return self._device.mark_lost(text)
        if fault.kind is FailureKind.MEMORY:
            return OutOfMemory(text)
        self._note(fault, files)
        return EngineFault(text)

    def _note(self, fault: DriverFault, files: Sequence[Path]) -> None:
        """Schedule a reset of the executor if the fault requires it."""
        if fault.kind is FailureKind.RELOAD:
            self._failure = _described(fault, files)

    def _recover(self) -> None:
        """Reset the executor, unless another thread did. Raises EngineLost."""
        with self._device.exclusive():
            self._device.ensure_available()
            self.reset_if_failed()

    # -- loading: within `AscendDevice.exclusive` --

    def load(self, files: Sequence[ModelFile]) -> list[Stage]:
        with self._context.current():
            return self.models.load(files)

    def reload(self, models: Sequence[LoadedModel]) -> None:
        """See `ExecutorModels.reload`. If an execution failed, resets the executor first."""
        self.reset_if_failed()
        with self._device.detecting_loss(), self._context.current():
            self.models.reload(models)

    def unload(self, stage: Stage) -> None:
        """Release one use of a model; does not call a lost card."""
        with nullcontext() if self._device.lost else self._context.current():
            self.models.unload(stage)

    def reset_if_failed(self) -> None:
        """After a failed execution, recreate the context and streams, and reload the models.

        See `ExecutorModels.load_all`. If a call fails, the card is lost. Raises EngineLost.
        """
        if self._failure is None:
            return
        name = self.models.name
        _log.warning("%s: reset after a failed execution of %s", name, self._failure)
        self._device.log_errors()
        try:
            with self._context.current():
                self.models.unload_all()
                self._close_streams()
            self._open_streams()
            with self._context.current():
                self.models.load_all()
        except DriverFault as fault:
            raise self._device.mark_lost(
                f"{self._device.name}: recovery failed: {fault}"
            ) from fault
        self._failure = None

    def ensure_sets(self, count: int) -> None:
        """Create buffer sets until there are `count`. If there are several, each has a copy stream.

        Raises DriverFault; then nothing is changed.
        """
        missing = range(len(self._sets), count)
        if not missing:
            return
        without = [own for own in self._sets if own.copies is None]
        with self._context.current(), self._undoing() as undo:
            opened = [self._open_copies(undo) for _ in range(len(without) + len(missing))]
        added = [_BufferSet(self._device.add_execution_lock()) for _ in missing]
        self._sets += added
        for own, copies in zip(without + added, opened, strict=True):
            own.copies = copies

    def close(self) -> None:
        """Free the executor, after all models were unloaded. Call once."""
        if self._device.lost is None:
            with self._context.current():
                self._close_streams()
        self.models.free()

    def _open_streams(self) -> None:
        """Create the context, the executor's stream, and new copy streams."""
        self._context = self._device.new_context()
        driver = self._device.driver
        with self._context.current(), self._undoing() as undo:
            undo.callback(self._context.destroy)
            self._stream = _with_undo(undo, driver.create_stream(), driver.destroy_stream)
            for own in self._sets:
                if own.copies is not None:
                    own.copies = self._open_copies(undo)

    @contextmanager
    def _undoing(self) -> Iterator[ExitStack]:
        """Yield a stack of callbacks that run after an error, unless the card is lost."""
        with ExitStack() as undo:
            try:
                with self._device.detecting_loss():
                    yield undo
            finally:
                if self._device.lost is not None:
                    undo.pop_all()
            undo.pop_all()

    def _open_copies(self, undo: ExitStack) -> _CopyStream:
        driver = self._device.driver
        return _CopyStream(
            _with_undo(undo, driver.create_stream(), driver.destroy_stream),
            _with_undo(undo, driver.create_event(), driver.destroy_event),
            _with_undo(undo, driver.create_event(), driver.destroy_event),
        )

    def _close_streams(self) -> None:
        driver = self._device.driver
        for own in self._sets:
            if own.copies is not None:
                driver.destroy_event(own.copies.arrived)
                driver.destroy_event(own.copies.computed)
                driver.destroy_stream(own.copies.stream)
        driver.destroy_stream(self._stream)
        self._context.destroy()

    def __repr__(self) -> str:
        return f"<{self.models.name}: {self.models}>"


def _described(fault: DriverFault, files: Sequence[Path]) -> str:
    # Only some calls know which of the executed files failed.
    return f"{shown(*([fault.path] if fault.path else files))}: {fault}"


Handle = TypeVar("Handle")


def _with_undo(undo: ExitStack, handle: Handle, destroy: Callable[[Handle], None]) -> Handle:
    undo.callback(destroy, handle)
    return handle
