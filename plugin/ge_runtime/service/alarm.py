"""What a thread waits on that watches a connection, and what wakes it."""

from __future__ import annotations

import contextlib
import os
import select

from ge_runtime.service.channel import Channel


class Alarm:
    """Rung by any thread, until `close`; waited for by one."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def ring(self) -> None:
        """End the wait: this one, or the next."""
        os.eventfd_write(self._wake, 1)

    def wait(self, seconds: float, channel: Channel | None = None) -> bool:
        """Wait until it rings, for so long at most; whether the channel's other side has gone."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if channel is not None:
            poll.register(channel, select.POLLRDHUP)
        ready = dict(poll.poll(seconds * 1e3))
        self.silence()
        return channel is not None and channel.fileno() in ready

    def silence(self) -> None:
        """Have the next wait not end for what was rung until now."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._wake)
