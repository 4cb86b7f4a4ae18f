"""gRPC connections of a load: concurrent calls on one HTTP/2 connection.

Each slot has one call in flight: a new call of ModelInfer for each request, or one call of
ModelStreamInfer for all its requests. Responses are not kept.
"""

from __future__ import annotations

import select
import time
from array import array
from typing import Final
from urllib.parse import unquote

from triton_replay.wire import http2 as h2
from triton_replay.wire.bodies import Headers
from triton_replay.wire.grpc_messages import FINAL, PREFIX, read_stream_answer
from triton_replay.wire.http2 import NotHttp2
from triton_replay.wire.http2_client import Http2Client, call_fields
from triton_replay.wire.sockets import CLOSED, Connection, Resolved, Slot, Wire

_ERROR: Final = b"\x0a"
"""First byte of a stream's response with an error: the tag of `error_message`."""


class GrpcConnection(Http2Client[Slot], Wire):
    """A connection for concurrent calls of one method.

    Args:
        server: Address to connect to.
        poll: The loop's epoll object.
        by_number: The loop's connections by file descriptor.
        path: Path of the method.
        headers: Metadata of every call.
        slots: Number of concurrent calls.
        streaming: Whether the method has a stream of messages in each direction.
        many: Whether a request may have any number of responses; the last one must have the
            parameter `triton_final_response`.
    """

    def __init__(
        self,
        server: Resolved,
        poll: select.epoll,
        by_number: dict[int, Connection],
        path: str,
        headers: Headers,
        slots: int,
        *,
        streaming: bool = False,
        many: bool = False,
    ) -> None:
        Wire.__init__(self, server, poll, by_number)
        self.slots = [Slot(self) for _ in range(slots)]
        self._fields = call_fields(path, server.address, headers)
        self._streaming = streaming
        self._many = many
        self._later: list[tuple[Slot, bytes]] = []
        """Requests that wait for a new connection, because the server sent GOAWAY."""
        self._done: list[Slot] = []
        Http2Client.__init__(self)

    def _reset(self) -> None:
        super()._reset()
        self._first = self._again = b""
        self._good: Headers | None = None

    def send(self, slot: Slot, request: bytes) -> None:
        if self._is_leaving and self._calls:
            self._later.append((slot, request))
            return
        if self._is_leaving or not self.is_open:
            self.close()
            self._reset()
            self.open()
            self.write((h2.PREFACE + h2.opening(),))
        slot.failure, slot.pending = "", True
        slot.body.clear()
        if self._streaming:
            slot.times = array("q")
        if not slot.stream:
            self._begin(slot)
        self._send_data(slot.stream, request, ends=not self._streaming)

    def flush(self) -> None:
        if self._later and not self._calls:
            later, self._later = self._later, []
            for slot, request in later:
                self.send(slot, request)
        if self._held and self._has_settings:
            self._send_held()
        if self._out:
            self.write(self._out)
            self._out.clear()

    def handle(self, mask: int, done: list[Slot]) -> None:
        data = self.read(mask)
        if data is None:
            return
        self._done = done
        if not data:
            self._over(CLOSED)
            return
        try:
            self._receive(data)
        except NotHttp2 as error:
            self._over(f"the response is not gRPC: {error}")

    def _over(self, reason: str) -> None:
        self.close()
        self._fail(list(self._calls), reason)

    def _block(self, _: Slot) -> bytes:
        if not self._first:
            self._first = self._encoder.encode(self._fields)
            # The block of later calls is shorter, because it refers to HPACK's dynamic table.
            self._again = self._encoder.encode(self._fields)
            return self._first
        return self._again

    def _set(self, name: int, value: int) -> None:
        super()._set(name, value)
        if name == h2.TABLE_SIZE:
            self._first = b""

    def _discards(self, slot: Slot) -> bool:
        return not self._streaming and slot.reply is None

    def _data(self, slot: Slot, data: bytes) -> None:
        body = slot.body
        body += data
        if not self._streaming:
            return
        while len(body) >= PREFIX:
            ends = PREFIX + int.from_bytes(body[1:PREFIX], "big")
            if len(body) < ends:
                return
            message = bytes(body[PREFIX:ends])
            del body[:ends]
            if slot.pending:
                self._message(slot, message)

    def _message(self, slot: Slot, message: bytes) -> None:
        """Process one response of a stream."""
        now = time.perf_counter_ns()
        is_last = not self._many
        if message[:1] == _ERROR or (self._many and FINAL in message):
            failure, is_last, is_empty = read_stream_answer(message, is_last=is_last)
            if failure:
                slot.failure, is_last = failure, True
            if is_empty:
                now = 0
        if now and slot.times is not None:
            slot.first = slot.first or now
            slot.times.append(now)
        if is_last:
            slot.pending = False
            self._done.append(slot)

    def _ended(self, slot: Slot, trailers: Headers, failure: str) -> None:
        if failure:
            slot.failure = failure
        elif trailers is not self._good:
            found = dict(trailers)
            if found.get("grpc-status") == "0":
                self._good = trailers
            else:
                status = found.get("grpc-status", found.get(":status", "no status"))
                text = unquote(found.get("grpc-message", ""))
                slot.failure = f"gRPC status {status}: {text}"
        if self._streaming and not slot.failure:
            slot.failure = "the server ended the stream"
        if slot.pending:
            slot.pending = False
            self._done.append(slot)
