"""Two ends of a connection in one process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from reference_server.backends.process_host import memory
from reference_server.backends.process_host.connection import Connection, MessageChannel
from reference_server.backends.process_host.memory import IncomingMemory, OutgoingMemory

Handler = Callable[..., None]


@contextmanager
def connected(
    one: Mapping[str, Handler] = {}, other: Mapping[str, Handler] = {}, limit: int = 1 << 20
) -> Iterator[list[Connection]]:
    """Yield two connected ends with these handlers and `limit` bytes of memory each way."""
    to_other, to_one = memory.create(limit), memory.create(limit)
    ends = [
        Connection(
            MessageChannel(event), MessageChannel(job), OutgoingMemory(out), IncomingMemory(into)
        )
        for event, job, out, into in zip(
            socket.socketpair(),
            socket.socketpair(),
            (to_other, to_one),
            (to_one, to_other),
            strict=True,
        )
    ]
    os.close(to_other)
    os.close(to_one)
    threads = [
        threading.Thread(target=end.run, args=(handlers,))
        for end, handlers in zip(ends, (one, other), strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield ends
    finally:
        ends[0].shut()
        for thread in threads:
            thread.join()
        for end in ends:
            end.close()
