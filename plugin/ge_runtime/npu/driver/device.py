"""An open Ascend device: contexts, synchronization, pinned memory, and the loss of the device.

The device's memory and executors are built on this module. A lost device must not be called any
more, because a call might not return; nothing is freed on it before the process ends.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

from ge_runtime.config import TimeLimits
from ge_runtime.devices import DeviceHealth
from ge_runtime.errors import EngineLost, PlanFault
from ge_runtime.npu.driver.cann_values import DriverFault, FailureKind
from ge_runtime.npu.driver.driver import Address, Context, Stream
from ge_runtime.npu.driver.installation import last_log_errors
from ge_runtime.npu.driver.pyacl import PyAclDriver

LOCK_TIMEOUT_S: Final = 1800.0
"""Time limit of waiting for a lock; after it the lock's holder is assumed to hang. Loads of large
models may take minutes, and executions twice their time limit."""

_OPERATOR_LIMITS_S: Final = (
    (re.compile(r"Ascend310P.*"), 547),
    (re.compile(r"Ascend910(A|B|Pro[AB]|PremiumA)?"), 68),  # the first generation
    (re.compile(r".*"), 1091),
)
"""CANN's default time limit of an operator, which is also the maximum, by chip. Source: CANN's
documentation of aclrtSetOpExecuteTimeOut. The AI CPU of 310P and 910 always has 28 s."""

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
"""Delay before waiting again, after a wait that failed for lack of a resource."""

_TASK_FAILURES: Final = (FailureKind.RELOAD, FailureKind.OVERFLOW)
"""Failures of a task that a wait reports; any other failure is a failure of the wait."""

_NO_CONTEXT: Final = Context(0)


@contextmanager
def restoring_context(driver: PyAclDriver, default: Context = _NO_CONTEXT) -> Iterator[None]:
    """Restore the calling thread's context at the end of the `with` block.

    Other libraries of the process, such as torch_npu, set a thread's context at any time, and
    expect that it stays set.

    Args:
        driver: The driver.
        default: The context to set if the thread had no context.
    """
    before = driver.current_context() or default
    try:
        yield
    finally:
        _restore(driver, before)


def _restore(driver: PyAclDriver, context: Context) -> None:
    """Make a context current. Ignores failures: the context may have been destroyed."""
    if context != _NO_CONTEXT:
        with suppress(DriverFault):
            driver.set_context(context)


class DeviceContext:
    """A context that any thread may use. Streams and models belong to their context.

    Args:
        driver: The driver.
        device: Number of the device.
        default: The device's default context.
    """

    def __init__(self, driver: PyAclDriver, device: int, default: Context) -> None:
        self._driver = driver
        self._device = device
        self._default = default
        with restoring_context(driver, default):
            self._handle = self._obtain()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the calling thread's context within the `with` block."""
        with restoring_context(self._driver, self._default):
            self._driver.set_context(self._handle)
            yield

    def destroy(self) -> None:
        """Destroy the context, whose streams and models must have been freed."""
        before = self._driver.current_context() or self._default
        try:
            self._release()
        finally:
            if before != self._handle:
                _restore(self._driver, before)

    def _obtain(self) -> Context:
        return self._driver.create_context(self._device)

    def _release(self) -> None:
        self._driver.destroy_context(self._handle)


class DefaultContext(DeviceContext):
    """The device's default context, which libraries of the process share."""

    def _obtain(self) -> Context:
        self._driver.set_device(self._device)
        return self._default

    def _release(self) -> None:
        self._driver.reset_device(self._device)


class AscendDevice:
    """A device that this process has open. Thread-safe."""

    def __init__(
        self,
        driver: PyAclDriver,
        number: int,
        health: DeviceHealth,
        limits: TimeLimits = TimeLimits(),  # noqa: B008 - immutable
    ) -> None:
        """Open the device. After an error nothing stays open.

        Raises:
            DriverFault: The device cannot be opened.
            PlanFault: The chip does not support the time limits.
        """
        self.driver = driver
        self.number = number
        self.name = f"npu:{number}"
        self._health = health
        with restoring_context(driver), ExitStack() as undo:
            driver.set_device(number)  # reference-counted: each call needs its reset_device
            undo.callback(_try_to, driver.reset_device, number)
            self._default = driver.current_context() or _NO_CONTEXT
            # A private context: the default context is shared with other libraries of the process,
            # such as torch_npu, and streams and models belong to their context.
            self._context = self.new_context()
            undo.callback(_try_to, self._context.destroy)
            self.soc_name = driver.soc_name()
            self._execution_s = 0.0
            self._operator_s = 0
            self._set_limits(limits)
            self.capacity_bytes = driver.memory_info()[1]
            """Size of the device's memory."""
            undo.pop_all()
        self._changing = Lock()
        self._execution_locks: list[Lock] = []
        self.pinned_blocks = 0
        """Number of allocated blocks of pinned host memory."""
        self._pinning = Lock()
        # Appended to by `__del__`, which may interrupt any line of a thread, so without a lock.
        self._unpinned: deque[Address] = deque()

    # -- loss of the device --

    @property
    def lost(self) -> EngineLost | None:
        return self._health.lost

    def ensure_available(self) -> None:
        """Raise EngineLost if the device is lost."""
        self._health.ensure_available()

    def mark_lost(self, text: str) -> EngineLost:
        """Mark the device as lost for all its users; return the error to raise."""
        self.log_errors()
        return self._health.mark_lost(text)

    def log_errors(self) -> None:
        """Log the last errors in CANN's own log, which often contain the cause of a failure."""
        if errors := last_log_errors():
            _log.error("%s: %s", self.name, errors)

    @contextmanager
    def detecting_loss(self, path: Path | None = None) -> Iterator[None]:
        """Return a context that marks the device as lost if a call within it reports the loss.

        The context converts the call's DriverFault to EngineLost, so that cleanup code does not
        call the device any more.

        Args:
            path: The file that the calls use; it is added to their DriverFault.
        """
        try:
            yield
        except DriverFault as fault:
            fault.path = path or fault.path
            if fault.kind is FailureKind.LOST:
                raise self.mark_lost(f"{fault.path or self.name}: {fault}") from fault
            raise

    @contextmanager
    def releasing(self, *errors: type[Exception]) -> Iterator[None]:
        """Return a context in which resources are released.

        A failure within the context marks the device as lost, because it is unknown which
        resources are still in use. EngineLost is suppressed.

        Args:
            errors: Exceptions other than DriverFault that are failures of the device.
        """
        failures: tuple[type[Exception], ...] = (DriverFault, *errors)
        try:
            yield
        except EngineLost:
            pass
        except failures as fault:
            self.mark_lost(f"{self.name}: releasing resources failed: {fault}")

    # -- the calling thread's context --

    def new_context(self) -> DeviceContext:
        """Create a context of the device."""
        return DeviceContext(self.driver, self.number, self._default)

    def default_context(self) -> DefaultContext:
        """Return the context that other libraries use, with a reference to the device."""
        return DefaultContext(self.driver, self.number, self._default)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this object's context the calling thread's within the `with` block.

        This context exists as long as the device is open, whereas a reset may destroy the context
        of an executor at any time. Raises EngineLost.
        """
        self.ensure_available()
        with self._context.current():
            yield

    @contextmanager
    def using(self) -> Iterator[None]:
        """Combine `current` and `detecting_loss` for a `with` block."""
        with self.detecting_loss(), self.current():
            yield

    # -- executions --

    def extend_limits(self, limits: TimeLimits) -> None:
        """Increase the time limits of all executions to at least these.

        The limit of operators is lower, so that CANN ends a hanging operator and reports a failed
        execution, while the device stays usable. Raises PlanFault, DriverFault or EngineLost.
        """
        with self.using():
            self._set_limits(limits)

    def _set_limits(self, limits: TimeLimits) -> None:
        most = next(most for chip, most in _OPERATOR_LIMITS_S if chip.fullmatch(self.soc_name))
        operator_s = limits.operator_s or max(1, min(most, int(limits.execution_s / 2)))
        if operator_s > most:
            raise PlanFault(
                f"parameter 'operator_timeout_s': found {operator_s}, expected at most {most} on "
                f"{self.name}, {self.soc_name}"
            )
        self._execution_s = max(self._execution_s, limits.execution_s)
        if operator_s > self._operator_s:
            try:
                self.driver.limit_operators(operator_s)
            except DriverFault as fault:
                if fault.kind is FailureKind.LOST:
                    raise
                _log.warning(
                    "%s: operators keep CANN's own time limit, so a hanging operator may make the "
                    "card unusable: %s",
                    self.name,
                    fault,
                )
            self._operator_s = operator_s

    def add_execution_lock(self) -> Lock:
        """Return a new lock that must be held during executions. Call within `exclusive`."""
        lock = Lock()
        lock.acquire()  # `exclusive` holds all locks, and releases this one with them
        self._execution_locks.append(lock)
        return lock

    def remove_execution_lock(self, lock: Lock) -> None:
        """Undo `add_execution_lock`. Call within `exclusive`."""
        self._execution_locks.remove(lock)
        lock.release()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Return a context in which nothing executes on the device.

        Raises EngineLost if executions do not end within LOCK_TIMEOUT_S.
        """
        # Only one thread at a time acquires all locks, because two threads could deadlock.
        self.acquire_lock(self._changing, "loading or unloading models")
        try:
            with ExitStack() as undo:
                for lock in self._execution_locks:
                    self.acquire_lock(lock, "an execution")
                    undo.callback(lock.release)
                undo.pop_all()
            try:
                yield
            finally:
                for lock in self._execution_locks:
                    lock.release()
        finally:
            self._changing.release()

    def acquire_lock(self, lock: Lock, what: str) -> None:
        """Acquire a lock; `what` describes its holder in the error.

        Raises EngineLost if the lock is not released within LOCK_TIMEOUT_S.
        """
        if not lock.acquire(timeout=LOCK_TIMEOUT_S):
            raise self.mark_lost(
                f"{self.name}: {what}: found it unfinished after {LOCK_TIMEOUT_S:g} s"
            )

    def wait(self, stream: Stream) -> None:
        """Wait for all tasks in a stream of this thread's context.

        Blocks for at most twice the time limit of executions. After an error no task is executing
        any more, unless the device is lost, or a task has failed and the stream cannot be
        synchronized any more. Such a stream must be recreated.

        Raises:
            DriverFault: A task failed, or the device is lost.
            EngineLost: It is unknown whether the tasks have ended.
        """
        # Without a time limit the call would not return if the device hangs.
        timeout_ms = round(self._execution_s * 1e3)
        try:
            self.driver.synchronize_stream(stream, timeout_ms)
        except DriverFault as fault:
            if fault.kind is not FailureKind.LOST:
                self._wait_again(stream, timeout_ms, fault)
            raise

    def _wait_again(self, stream: Stream, timeout_ms: int, fault: DriverFault) -> None:
        """Wait again after a wait that failed with `fault` on a device that is not lost.

        Raises if the second wait reports a more severe failure.
        """
        # A failed task may be reported before later tasks have ended, so the stream may not be
        # done. Any other failure means that the first wait did not take place.
        if fault.kind in (FailureKind.RETRY, FailureKind.MEMORY):
            time.sleep(_RETRY_S)
        try:
            self.driver.synchronize_stream(stream, timeout_ms)
        except DriverFault as again:
            if again.kind is FailureKind.LOST:
                raise
            if fault.kind in _TASK_FAILURES:
                return
            if again.kind in _TASK_FAILURES:
                raise
            text = f"{self.name}: waiting for queued tasks failed: {again}"
            raise self.mark_lost(text) from again

    # -- pinned memory --

    def pin(self, nbytes: int) -> Address:
        """Allocate pinned host memory. Raises MemoryError if there is not enough."""
        self.free_unpinned()
        with self._pinning, self.using():
            address = allocate(self.driver.malloc_host, nbytes)
            self.pinned_blocks += 1
            return address

    def unpin_later(self, address: Address) -> None:
        """Schedule a block of pinned memory to be freed. May be called by `__del__`."""
        self._unpinned.append(address)

    def free_unpinned(self) -> None:
        """Free the pinned memory that is not used any more."""
        with self._pinning:
            while self._unpinned and self.lost is None:
                address = self._unpinned.popleft()  # atomic: `__del__` may append concurrently
                # Counted first: a block that cannot be freed must not keep the device open.
                self.pinned_blocks -= 1
                with self.using():
                    self.driver.free_host(address)

    def close(self) -> bool:
        """Close the device, on which nothing is loaded any more.

        Returns:
            Whether the device was closed. False while pinned memory is in use, because it would be
            freed with the device, and if the device is lost. `close` may be called again.
        """
        with self.releasing():
            self.free_unpinned()
            if self.lost is None and not self.pinned_blocks:
                self.ensure_available()
                # CANN's order: memory and streams first, then the context, then the device.
                self._context.destroy()
                with restoring_context(self.driver):
                    self.driver.reset_device(self.number)
                return True
        return False


def allocate(malloc: Callable[[int], Address], nbytes: int) -> Address:
    """Call `malloc`. Raises MemoryError if there is not enough memory, else DriverFault."""
    try:
        return malloc(nbytes)
    except DriverFault as fault:
        if fault.kind is FailureKind.MEMORY:
            raise MemoryError(str(fault)) from fault
        raise


def _try_to(undo: Callable[..., None], *arguments: int) -> None:
    """Undo a call after a failure. Errors are suppressed, so that the failure is reported."""
    with suppress(DriverFault):
        undo(*arguments)
