"""Contexts of a card, which each thread has to make its own before it calls anything else."""

from __future__ import annotations

import threading
from typing import Final

from ge_runtime.ascend.driver import Context, Driver

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
