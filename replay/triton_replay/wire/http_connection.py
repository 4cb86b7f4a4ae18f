"""HTTP/1 connections of a load. Each sends one request at a time; responses are not kept."""

from __future__ import annotations

import select
from typing import Final

import httptools

from triton_replay.wire.sockets import CLOSED, Connection, Resolved, Slot, Wire

_REPORTED: Final = 200
"""Number of bytes of an error response that are reported."""


class HttpConnection(Wire):
    """A connection with one slot."""

    def __init__(
        self, server: Resolved, poll: select.epoll, by_number: dict[int, Connection]
    ) -> None:
        super().__init__(server, poll, by_number)
        self._slot = Slot(self)
        self.slots = [self._slot]
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._complete = False
        self._stays = True

    def send(self, slot: Slot, request: bytes) -> None:
        if not self.is_open:
            self._parser = httptools.HttpResponseParser(self)
            self._feed = self._parser.feed_data
            self.open()
        self._complete = False
        slot.failure, slot.pending = "", True
        slot.body.clear()
        self.write((request,))

    def flush(self) -> None:
        """Do nothing: `send` sends at once."""

    def handle(self, mask: int, done: list[Slot]) -> None:
        data = self.read(mask)
        if data is None:
            return
        if not data:
            self._over(CLOSED, done)
            return
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                # Ctrl-C during a callback: the parser wraps KeyboardInterrupt in its own error.
                raise error.__context__ from None
            self._over(f"the response is not HTTP: {error}", done)
            return
        slot = self._slot
        if not self._complete or not slot.pending:
            return
        self._complete = False
        status = self._parser.get_status_code()
        if status < 200:  # interim response
            return
        slot.pending = False
        if status != 200:
            slot.failure = f"{status}: {bytes(slot.body[:_REPORTED]).decode(errors='replace')}"
        if not self._stays:
            self.close()
        done.append(slot)

    def on_body(self, data: bytes) -> None:
        slot = self._slot
        if slot.reply is not None or len(slot.body) < _REPORTED:
            slot.body += data

    def on_message_complete(self) -> None:
        self._complete = True
        self._stays = self._parser.should_keep_alive()  # known only at the end of the message

    def _over(self, reason: str, done: list[Slot]) -> None:
        self.close()
        slot = self._slot
        if slot.pending:
            slot.pending = False
            slot.failure = reason
            done.append(slot)
