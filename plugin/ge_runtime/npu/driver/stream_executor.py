"""Executions on a card: the stream executor, which the slots of engines are executed on.

An executor is one stream, and one block of workspace for all models that execute on it. Models take
turns, so that the block is as large as the largest of them needs.

With several buffer sets the copies of one execution are made while another computes: each set has a
stream for copies, and events order these and the executor's stream. Two computations never overlap:
the next is queued when the one before has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from ge_runtime.errors import EngineFault, OutOfMemory, RuntimeFault, shown
from ge_runtime.npu.driver.device import AscendDevice, DeviceContext
from ge_runtime.npu.driver.driver import Event, Stream
from ge_runtime.npu.driver.executor_models import ExecutorModels
from ge_runtime.npu.driver.om_model import LoadedModel, ModelFile, Stage
from ge_runtime.npu.driver.return_codes import DriverFault, FailureKind
from ge_runtime.npu.driver.slot import CardExecution, Slot

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _CopyStream:
    """Where a buffer set's copies are queued, and what orders them and the computing."""

    stream: Stream
    arrived: Event
    """All inputs are on the card."""
    computed: Event
    """All stages are done."""


class _BufferSet:
    """Of an executor, for one execution at a time."""

    def __init__(self, turn: Lock) -> None:
        self.turn = turn
        """Held for each execution, and by whoever changes what is loaded."""
        self.copies: _CopyStream | None = None
        """None where it is the only set: all is queued in the executor's own stream."""


class StreamExecutor:
    """A stream of a card, and the models that execute there.

    Executions come from any thread. Loading and closing are the card's, while it is exclusive.
    """

    def __init__(self, device: AscendDevice, models: ExecutorModels) -> None:
        """models: of this executor alone; none is loaded yet. Raises DriverFault or EngineLost."""
        self.models = models
        self._device = device
        self._failure: str | None = None
        """The model whose execution failed, and of what, until the executor is reset."""
        self._computing = Lock()
        """Held while the stages of an execution run, where there are several buffer sets."""
        self._sets: list[_BufferSet] = []
        self._open_streams()
        self._sets.append(_BufferSet(device.add_turn()))

    @property
    def turns(self) -> list[Lock]:
        """Of all buffer sets: whoever has them has the executor."""
        return [own.turn for own in self._sets]

    # -- executions --

    def execute(self, slot: Slot, execution: CardExecution, buffers: int) -> None:
        """Copy in, execute the stages, copy out; returns when all is done.

        buffers: the number of its buffer set, from 0; of those that `ensure_sets` made.
        Blocks until it is this execution's turn; other threads run while it waits.
        Raises EngineFault, OutOfMemory, or EngineLost once the card is lost. A queue that is full
        is tried once more. After a failed execution the executor is reset before the next.
        """
        own, files = self._sets[buffers], slot.files(execution)
        while True:
            self._device.take(own.turn, f"the turn of {self.models.name}")
            try:
                self._device.ensure_there()
                if self._failure is None:
                    slot.ensure_there(execution)
                    try:
                        self._context.enter()
                        if own.copies is None:
                            self._execute(slot, execution)
                            return
                        if self._execute_overlapped(own.copies, slot, execution):
                            return
                    except DriverFault as fault:
                        raise self._fault_of(fault, files) from fault
            finally:
                own.turn.release()
            # Without the turn: `exclusive` takes those of all executors.
            self._recover()

    # A turn ends with the wait for all that it queued: the driver tells of a failed task at the
    # next wait for its stream, once, and not which task it was. So it is of this execution.

    def _execute(self, slot: Slot, execution: CardExecution) -> None:
        stream = self._stream

        def submit() -> None:
            slot.copy_in(stream, execution)
            slot.compute(stream, execution)
            slot.copy_out(stream, execution)

        self._queue(submit, stream)
        self._device.wait(stream)
        slot.collect(execution)  # copies that no stream orders: only now are results there

    def _execute_overlapped(
        self, copies: _CopyStream, slot: Slot, execution: CardExecution
    ) -> bool:
        """False if nothing was computed, as another execution failed meanwhile."""
        self._queue(partial(self._copy_in, copies, slot, execution), copies.stream)
        self._device.take(self._computing, f"the computing of {self.models.name}")
        try:
            self._device.ensure_there()
            if self._failure is not None:
                self._device.wait(copies.stream)
                return False
            try:
                # The next is queued when this one has ended, though events could order them: only
                # so a failure is known to be this one's, and no document says that a model may be
                # queued in a stream while it executes at other addresses.
                compute = partial(self._compute, copies, slot, execution)
                self._queue(compute, self._stream, copies.stream)
                self._device.wait(self._stream)
            except DriverFault as fault:
                self._note(fault, slot.files(execution))  # first: nobody computes after it
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
        """Call `submit`, which queues in these streams; once more where a queue was full."""
        for last in (False, True):
            try:
                submit()
                return
            except DriverFault as fault:
                if fault.kind is FailureKind.LOST:
                    raise
                for stream in streams:
                    self._device.wait(stream)  # what was queued before still uses the slot
                if last or fault.kind is not FailureKind.RETRY:
                    raise

    def _drain(self, stream: Stream, fault: DriverFault) -> None:
        """Wait for what is queued behind something that failed; what else failed does not matter.

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
        """files: those that were executed; which of them failed, only their own calls tell."""
        text = f"{self.models.name}: {_told(fault, files)}"
        if fault.kind is FailureKind.LOST:
            return self._device.lose(text)
        if fault.kind is FailureKind.MEMORY:
            return OutOfMemory(text)
        self._note(fault, files)
        return EngineFault(text)

    def _note(self, fault: DriverFault, files: Sequence[Path]) -> None:
        """Have the executor reset before it executes again, if that is what the fault means."""
        if fault.kind is FailureKind.RELOAD:
            self._failure = _told(fault, files)

    def _recover(self) -> None:
        """Reset it, unless another thread has. Raises EngineLost."""
        with self._device.exclusive():
            self._device.ensure_there()
            self.reset_if_failed()

    # -- what is loaded: in `AscendDevice.exclusive` --

    def load(self, files: Sequence[ModelFile]) -> list[Stage]:
        self._context.enter()
        return self.models.load(files)

    def reload(self, models: Sequence[LoadedModel]) -> None:
        """See `ExecutorModels.reload`. After a failed execution it is reset first."""
        self.reset_if_failed()
        self._context.enter()
        with self._device.noticing_loss():
            self.models.reload(models)

    def unload(self, stage: Stage) -> None:
        """Of a card that is lost nothing is called."""
        if self._device.lost is None:
            self._context.enter()
        self.models.unload(stage)

    def reset_if_failed(self) -> None:
        """After a failed execution: a new context and streams, and the models loaded again.

        See `ExecutorModels.load_all`. Raises EngineLost: without them the card counts as lost.
        """
        if self._failure is None:
            return
        name = self.models.name
        _log.warning("%s: made anew after a failed execution of %s", name, self._failure)
        try:
            self._context.enter()
            self.models.unload_all()
            self._close_streams()
            self._open_streams()
            self.models.load_all()
        except DriverFault as fault:
            raise self._device.lose(f"{self._device.name}: it cannot be mended: {fault}") from fault
        self._failure = None

    def ensure_sets(self, count: int) -> None:
        """Have as many buffer sets, at least; those of more than one have a stream for copies.

        Raises DriverFault, with what was there before as it was.
        """
        missing = range(len(self._sets), count)
        if not missing:
            return
        self._context.enter()
        there = [own for own in self._sets if own.copies is None]
        with self._undoing() as undo:
            opened = [self._open_copies(undo) for _ in range(len(there) + len(missing))]
        added = [_BufferSet(self._device.add_turn()) for _ in missing]
        self._sets += added
        for own, copies in zip(there + added, opened, strict=True):
            own.copies = copies

    def close(self) -> None:
        """Free it, with no model left in it. Once. Each execution has waited for its end."""
        if self._device.lost is None:
            self._context.enter()
            self._close_streams()
        self.models.free()

    def _open_streams(self) -> None:
        """Its own, and those for copies of all buffer sets that had one."""
        self._context = DeviceContext(self._device.driver, self._device.number)
        driver = self._device.driver
        with self._undoing() as undo:
            undo.callback(self._context.destroy)
            self._stream = _undone_by(undo, driver.create_stream(), driver.destroy_stream)
            for own in self._sets:
                if own.copies is not None:
                    own.copies = self._open_copies(undo)

    @contextmanager
    def _undoing(self) -> Iterator[ExitStack]:
        """What its calls made is given back if they fail, unless the card is lost."""
        with ExitStack() as undo:
            try:
                with self._device.noticing_loss():
                    yield undo
            finally:
                if self._device.lost is not None:
                    undo.pop_all()
            undo.pop_all()

    def _open_copies(self, undo: ExitStack) -> _CopyStream:
        driver = self._device.driver
        return _CopyStream(
            _undone_by(undo, driver.create_stream(), driver.destroy_stream),
            _undone_by(undo, driver.create_event(), driver.destroy_event),
            _undone_by(undo, driver.create_event(), driver.destroy_event),
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


def _told(fault: DriverFault, files: Sequence[Path]) -> str:
    return f"{shown(*([fault.path] if fault.path else files))}: {fault}"


Handle = TypeVar("Handle")


def _undone_by(undo: ExitStack, made: Handle, destroy: Callable[[Handle], None]) -> Handle:
    undo.callback(destroy, made)
    return made
