"""Workspace of a lane that executes one thing at a time: all its users share the same bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ge_runtime.devices import Buffer, Device
from ge_runtime.errors import PlanFault

Memory = TypeVar("Memory")


class SerialArena(Generic[Memory]):
    """As many bytes as the neediest user needs, for one user at a time.

    Users `register` at load, then the lane calls `bind`, then users take turns by `use`. Nothing
    has to be decided while serving, hence no pool: the plan is the largest need. Safe from any
    thread.
    """

    def __init__(self, name: str) -> None:
        """name: of the lane, for people, and the label of the bytes on the device."""
        self._name = name
        self._needs: dict[str, int] = {}
        self._buffer: Buffer[Memory] | None = None
        self._turn = threading.Lock()
        self._holder: tuple[str, int] | None = None  # (user, thread) whose turn it is

    @property
    def nbytes(self) -> int:
        """The largest need that was registered; 0 without any."""
        return max(self._needs.values(), default=0)

    def register(self, user: str, nbytes: int) -> None:
        """`user` needs `nbytes` whenever it executes; of several calls the largest counts.

        Raises PlanFault once the arena is bound: its bytes are planned by then.
        """
        if self._buffer is not None:
            raise PlanFault(f"{self._name}: found {user} registered after bind, expected before")
        self._needs[user] = max(nbytes, self._needs.get(user, 0))

    def bind(self, device: Device[Memory]) -> None:
        """Allocate `nbytes`. Raises OutOfMemory, and PlanFault if the arena is bound already."""
        if self._buffer is not None:
            raise PlanFault(f"{self._name}: found a second bind, expected one")
        self._buffer = device.allocate(self._name, self.nbytes)

    @contextmanager
    def use(self, user: str) -> Iterator[Memory]:
        """The bytes, for `user` alone until the end of `with`; blocks until it is its turn.

        Raises PlanFault if the arena is not bound, if the user did not register, or if this
        thread has the turn already and would wait for itself.
        """
        me, holder = threading.get_ident(), self._holder
        if holder is not None and holder[1] == me:
            raise PlanFault(f"{self!r}: found a use by {user} within another, expected turns")
        if user not in self._needs:
            raise PlanFault(f"{self!r}: found user {user}, expected one that is registered")
        with self._turn:
            if self._buffer is None:
                raise PlanFault(f"{self!r}: found a use by {user} without memory, expected a bind")
            self._holder = (user, me)
            try:
                yield self._buffer.memory
            finally:
                self._holder = None

    def close(self) -> None:
        """Free the bytes, after the turn in progress. Safe to call twice."""
        with self._turn:
            if self._buffer is not None:
                self._buffer.free()
                self._buffer = None

    def __repr__(self) -> str:
        bound = "not bound" if self._buffer is None else "bound"
        holder = self._holder
        used = "free" if holder is None else f"in use by {holder[0]}"
        return (
            f"<SerialArena {self._name}: {self.nbytes:,} bytes for {len(self._needs)} user(s), "
            f"{bound}, {used}>"
        )
