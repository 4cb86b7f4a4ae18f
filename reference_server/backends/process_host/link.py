"""One process's end of what connects it with the other: messages, and memory in both directions."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reference_server.backends.process_host.channel import Channel, Message
from reference_server.backends.process_host.memory import Incoming, Outgoing
from reference_server.core.errors import internal

log = logging.getLogger(__name__)

Handler = Callable[..., None]


class Link:
    """Sends and receives messages, and keeps the books of the memory on the way.

    Each message takes along which blocks this side has finished with. If there is no room for a
    tensor, the other side is asked for what it has not told yet; that is why `run` answers by
    itself. Any thread may send; `run` belongs to one.
    """

    def __init__(self, channel: Channel, outgoing: Outgoing, incoming: Incoming) -> None:
        self._channel = channel
        self._outgoing = outgoing
        self._incoming = incoming
        self._later: deque[Message] = deque()
        self._receiver: threading.Thread | None = None
        self._collecting = threading.Lock()
        self._collected = threading.Event()
        self._is_over = False

    def send(self, *message: Any) -> None:  # noqa: ANN401 - JSON's values
        """Send one message. Never blocks."""
        messages: list[Message] = []
        while self._later:
            try:
                messages.append(self._later.popleft())
            except IndexError:  # another thread was faster
                break
        if ended := self._incoming.ended():
            messages.append(("free", ended))
        self._channel.send(*messages, message)

    def send_later(self, *message: Any) -> None:  # noqa: ANN401 - JSON's values
        """Send one message before the next. Takes no lock: the garbage collector may call it."""
        self._later.append(message)

    def put(self, data: memoryview) -> tuple[int, int]:
        """Copy `data` to where the other side can see it: offset and size.

        Raises ServerError if there is no room for it. Blocks for the other side's books at most.
        """
        if not data:
            return 0, 0
        offset = self._outgoing.put(data)
        if offset is None and self._collects():
            offset = self._outgoing.put(data)
        if offset is None:
            raise internal(
                f"no room for a tensor of {len(data)} bytes in the memory that is shared with the "
                "model's process"
            )
        return offset, len(data)

    def view(self, offset: int, size: int) -> memoryview:
        """What the other side has put there; it may be written to."""
        return self._incoming.view(offset, size) if size else memoryview(bytearray())

    def take_back(self, offsets: Sequence[int]) -> None:
        """Free blocks of which the other side was never told."""
        self._outgoing.give_back(offsets)

    def _collects(self) -> bool:
        """Have the other side tell what it has finished with; False if this thread cannot wait."""
        if threading.current_thread() is self._receiver:
            return False
        with self._collecting:
            self._collected.clear()
            if self._is_over:
                return False
            self.send("collect")
            self._collected.wait()
        return True

    def run(self, handlers: Mapping[str, Handler]) -> None:
        """Receive until the other side is gone, calling the handler of each message's kind."""
        self._receiver = threading.current_thread()
        own: dict[str, Handler] = {
            "free": self._outgoing.give_back,
            "collect": lambda: self.send("collected"),
            "collected": self._collected.set,
        }
        table = {**handlers, **own}
        while (message := self._channel.receive()) is not None:
            kind, *parts = message
            try:
                table[kind](*parts)
            except Exception:  # a defect must not leave the other side without its receiver
                log.exception("a message of kind %s was lost", kind)
            del message, parts
        self._is_over = True
        self._collected.set()

    def shut(self) -> None:
        """Let both sides find the other gone."""
        self._channel.shut()

    def close(self) -> None:
        """Give the socket and the memory back, when `run` has returned. Views stay as they are."""
        self._channel.close()
        self._outgoing.close()
        self._incoming.close()
