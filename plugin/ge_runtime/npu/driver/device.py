"""An open Ascend device: its contexts, waits for its streams, pinned memory, and its loss.

All that works on the device, its memory and its executors, is built on this. A device that is lost
is left alone: no call is made on it any more, as it might not return, and nothing is given back
before the process ends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

from ge_runtime.devices.health import DeviceHealth
from ge_runtime.errors import EngineLost
from ge_runtime.npu.driver.driver import Address, Context, Driver, Stream
from ge_runtime.npu.driver.return_codes import DriverFault, FailureKind

EXECUTION_TIMEOUT_S: Final = 60.0
"""An execution that takes longer is taken for one that never ends."""

TURN_TIMEOUT_S: Final = 1800.0
"""A thread that holds up the others for longer is taken for one that never goes on: loads of large
models may take minutes, executions twice EXECUTION_TIMEOUT_S."""

_SHORTAGE_S: Final = 0.1
"""After which a wait that failed for want of something is tried once more."""

_OF_A_TASK: Final = (FailureKind.RELOAD, FailureKind.OVERFLOW)
"""What a wait tells of a task; any other failure is its own."""

_CURRENT: Final = threading.local()


class DeviceContext:
    """A context that any thread may enter. Streams and models belong to the one they are made in.

    Made current in the thread that makes it.
    """

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver = driver
        self._device = device
        self._handle = self._obtain()
        self._alive = True
        _CURRENT.context = self

    def enter(self) -> None:
        """Make it the calling thread's context, unless it is already."""
        if _current() is not self:
            self._driver.set_context(self._handle)
            _CURRENT.context = self
        assert self._driver.current_context() == self._handle, (
            "another library changed this thread's context"
        )

    def enter_device(self) -> None:
        """Give the calling thread a context of the same device: this one, if it has none."""
        current = _current()
        if current is None or not current._alive or current._device != self._device:
            self.enter()

    def destroy(self) -> None:
        """Free it, after all that was made in it. No thread enters it again."""
        self._alive = False
        _CURRENT.context = None
        self._release()

    def _obtain(self) -> Context:
        return self._driver.create_context(self._device)

    def _release(self) -> None:
        self._driver.destroy_context(self._handle)


class DefaultContext(DeviceContext):
    """The device's own context, which all of the process share that were told of no other.

    Libraries below may change a thread's context, so each `enter` sets it.
    """

    def enter(self) -> None:
        """Make it the calling thread's context."""
        self._driver.set_context(self._handle)
        _CURRENT.context = self

    def _obtain(self) -> Context:
        self._driver.set_device(self._device)
        return self._driver.current_context()

    def _release(self) -> None:
        self._driver.reset_device(self._device)


def _current() -> DeviceContext | None:
    """The one that the calling thread entered last."""
    context: DeviceContext | None = getattr(_CURRENT, "context", None)
    return context


class AscendDevice:
    """A device that this process has open. Safe from any thread."""

    def __init__(self, driver: Driver, number: int, health: DeviceHealth) -> None:
        """Raises DriverFault if the device cannot be had; then it is given back."""
        self.driver = driver
        self.number = number
        self.name = f"npu:{number}"
        self._health = health
        with ExitStack() as undo:
            driver.set_device(number)  # counted by the driver: each needs its reset_device
            undo.callback(_try_to, driver.reset_device, number)
            # A context of our own: the default one is shared with whatever else of the process
            # uses the device, such as torch_npu, and streams and models belong to their context.
            self._context = DeviceContext(driver, number)
            undo.callback(_try_to, self._context.destroy)
            self.soc_name = driver.soc_name()
            self.capacity_bytes = driver.memory_info()[1]
            """Of the device's own memory."""
            undo.pop_all()
        self._changing = Lock()
        self._turns: list[Lock] = []
        self.pinned_blocks = 0
        """Blocks of pinned host memory that are not given back yet."""
        self._pinning = Lock()
        # Filled by `__del__`, which may run in any line of this thread, so no lock can be taken.
        self._unpinned: deque[Address] = deque()

    # -- whether it is lost --

    @property
    def lost(self) -> EngineLost | None:
        return self._health.lost

    def ensure_there(self) -> None:
        """Raises EngineLost once the device is lost."""
        self._health.ensure_there()

    def lose(self, text: str) -> EngineLost:
        """The device is lost, from now on and for all who use it; the error to raise."""
        return self._health.lose(text)

    @contextmanager
    def noticing_loss(self, path: Path | None = None) -> Iterator[None]:
        """Raises EngineLost where a call, for the length of a `with`, finds the device lost.

        So whoever undoes things after it knows, and makes no call any more. path: the file that
        the calls are about; their DriverFault tells it.
        """
        try:
            yield
        except DriverFault as fault:
            fault.path = path or fault.path
            if fault.kind is FailureKind.LOST:
                raise self.lose(f"{fault.path or self.name}: {fault}") from fault
            raise

    @contextmanager
    def releasing(self, *errors: type[Exception]) -> Iterator[None]:
        """Give something back, for the length of a `with`: no more of it once the device is lost.

        A device that fails in this is lost too: what it still uses nobody can tell. errors: what
        else is a failure of the device's.
        """
        failures: tuple[type[Exception], ...] = (DriverFault, *errors)
        try:
            yield
        except EngineLost:
            pass
        except failures as fault:
            self.lose(f"{self.name}: it fails to give back what it had: {fault}")

    # -- the calling thread's context --

    def enter(self) -> None:
        """Give the calling thread this object's context, which is there as long as the device is.

        That of an executor may go at any moment, when the executor is reset. Raises EngineLost.
        """
        self.ensure_there()
        self._context.enter()

    def ensure_context(self) -> None:
        """Let the calling thread use the device, in any of its contexts. Raises EngineLost."""
        self.ensure_there()
        self._context.enter_device()

    @contextmanager
    def using(self) -> Iterator[None]:
        """The same for the length of a `with`, `noticing_loss`."""
        with self.noticing_loss():
            self.ensure_context()
            yield

    # -- executions --

    def add_turn(self) -> Lock:
        """A lock for one more executor's executions, until `remove_turn`. In `exclusive`."""
        turn = Lock()
        turn.acquire()  # as all others are: `exclusive` releases it
        self._turns.append(turn)
        return turn

    def remove_turn(self, turn: Lock) -> None:
        """Undo `add_turn`. In `exclusive`."""
        self._turns.remove(turn)
        turn.release()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Nothing executes on the device, for the length of a `with`.

        Raises EngineLost where it cannot be had within TURN_TIMEOUT_S.
        """
        # One thread at a time collects turns: two with a part of them each would wait for ever.
        self.take(self._changing, "a change of what is loaded")
        try:
            with ExitStack() as undo:
                for turn in self._turns:
                    self.take(turn, "the turn of a lane")
                    undo.callback(turn.release)
                undo.pop_all()
            try:
                yield
            finally:
                for turn in self._turns:
                    turn.release()
        finally:
            self._changing.release()

    def take(self, lock: Lock, what: str) -> None:
        """Acquire it. what: it is, for people.

        Raises EngineLost if it is not free within TURN_TIMEOUT_S: then nothing goes on here.
        """
        if not lock.acquire(timeout=TURN_TIMEOUT_S):
            raise self.lose(f"{self.name}: {what}: found it taken for {TURN_TIMEOUT_S:g} s")

    def wait(self, stream: Stream) -> None:
        """Wait for all that is queued in a stream of this thread's context.

        Blocks for twice EXECUTION_TIMEOUT_S at most. Raises DriverFault for what failed of it;
        then, too, nothing of it is executing any more, unless the device is lost, or a task has
        failed and the stream, which is to be made anew, cannot be waited for after that. Raises
        EngineLost if nobody can tell.
        """
        # With a limit: a wait without one would never come back from a device that hangs.
        timeout_ms = round(EXECUTION_TIMEOUT_S * 1e3)
        try:
            self.driver.synchronize_stream(stream, timeout_ms)
        except DriverFault as fault:
            if fault.kind is not FailureKind.LOST:
                self._wait_again(stream, timeout_ms, fault)
            raise

    def _wait_again(self, stream: Stream, timeout_ms: int, fault: DriverFault) -> None:
        """Wait once more after a wait that told `fault`, the device not being lost.

        Raises as `wait`, where this one tells more than `fault`.
        """
        # A failed task may be told of before later ones have ended, so RELOAD alone does not say
        # that the stream is done. Any other failure is the wait's own, which then has not been.
        if fault.kind in (FailureKind.RETRY, FailureKind.MEMORY):
            time.sleep(_SHORTAGE_S)
        try:
            self.driver.synchronize_stream(stream, timeout_ms)
        except DriverFault as again:
            if again.kind is FailureKind.LOST:
                raise
            if fault.kind in _OF_A_TASK:
                return
            if again.kind in _OF_A_TASK:
                raise
            text = f"{self.name}: what is queued cannot be waited for: {again}"
            raise self.lose(text) from again

    # -- pinned memory --

    def pin(self, nbytes: int) -> Address:
        """Pinned memory of the host; raises MemoryError if there is no more."""
        self.free_unpinned()
        with self._pinning, self.using():
            address = allocate(self.driver.malloc_host, nbytes)
            self.pinned_blocks += 1
            return address

    def unpin_later(self, address: Address) -> None:
        """Give a block of pinned memory back later. Callable at any moment, by `__del__` too."""
        self._unpinned.append(address)

    def free_unpinned(self) -> None:
        """Give back the pinned memory that nobody reads any more."""
        with self._pinning:
            while self._unpinned and self.lost is None:
                address = self._unpinned.popleft()  # atomic: `__del__` may append meanwhile
                # Counted first: what cannot be freed keeps nobody from closing the device.
                self.pinned_blocks -= 1
                with self.using():
                    self.driver.free_host(address)

    def close(self) -> bool:
        """Free it, with nothing left on it; whether all of it was. Safe to call again if not.

        False while somebody reads pinned memory, which ends with the device; or if it is lost.
        """
        with self.releasing():
            self.free_unpinned()
            if self.lost is None and not self.pinned_blocks:
                self.ensure_context()
                # CANN's order: memory and streams are gone, then the context, then the device.
                self._context.destroy()
                self.driver.reset_device(self.number)
                return True
        return False


def allocate(malloc: Callable[[int], Address], nbytes: int) -> Address:
    """`malloc(nbytes)`. Raises MemoryError if there are not as many, else DriverFault."""
    try:
        return malloc(nbytes)
    except DriverFault as fault:
        if fault.kind is FailureKind.MEMORY:
            raise MemoryError(str(fault)) from fault
        raise


def _try_to(undo: Callable[..., None], *arguments: int) -> None:
    """Undo something after a failure, which is what is to be told."""
    with suppress(DriverFault):
        undo(*arguments)
