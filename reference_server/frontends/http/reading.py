"""Parses the requests of one HTTP/1.1 connection, with llhttp.

The reader is always in one of three phases. `Phase` names what the client has to send next:

| Phase | Received bytes go to | Ends with |
| --- | --- | --- |
| REQUEST | llhttp; `KnownHeads` if this port has parsed the head before | the head's first byte |
| HEAD | llhttp | the empty line after the headers |
| BODY | llhttp; the rest of a long body into its own memory (`Body.place`) | the body's last byte |

A long body bypasses llhttp, so that tensors are views of the memory into which the body was
received. llhttp cannot continue after such a body. It also stops at some requests that Triton
accepts (`_resume`). In both cases the reader starts a new parser.
"""

from __future__ import annotations

import re
from typing import Protocol

import httptools

from reference_server.codecs.inference import LONGEST_KEY, RequestCache
from reference_server.core.backlog import Intake
from reference_server.frontends.connections import Phase, Wait
from reference_server.frontends.http.request import Body, Request, RequestHead, RequestRejected

# Local names, because Python 3.11 takes 0.1 us to look up a member of an enum.
_REQUEST, _HEAD, _BODY = Phase.REQUEST, Phase.HEAD, Phase.BODY
#: A body bypasses llhttp if at least this many bytes are missing after the first read.
_IN_PLACE_BYTES = 8192
#: Limit in bytes for a request's head, and for trailers and chunk headers between two pieces of a
#: body. Triton limits each header to 8 KiB, and not the number of headers.
_MAX_HEAD = 1 << 20
#: Each header counts this much in addition to its bytes, as in HTTP/2 (RFC 9113, section 6.5.2).
_HEADER_COST = 32
#: Bytes passed to the parser at a time while it is inside a body.
_BODY_PORTION = 1 << 14
#: The limit of chunks with data in one body. Parsing a chunk costs far more than its bytes.
_MAX_CHUNKS = 65536
#: The method of an otherwise correct request line.
_METHOD = re.compile(rb"[A-Z]+(?= \S+ HTTP/1\.[01]\r\n)")
#: A method that llhttp knows and no operation supports.
_UNSUPPORTED_METHOD = b"TRACE"
#: A head after which llhttp parses chunks. llhttp cannot be started inside a message.
_CHUNKED_HEAD = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
_UNREADABLE = "failed to read the HTTP request"
#: llhttp's errors for requests that Triton's library accepts, and that an intermediary may parse
#: differently. They are answered; other malformed requests only end the connection.
_AMBIGUOUS = {
    "Duplicate Content-Length",
    "Invalid HTTP version",
    "Invalid header field char",
    "Invalid header value char",
    "Invalid `Transfer-Encoding` header value",
    "Unexpected space after start line",
}
_END_OF_HEAD = b"\r\n\r\n"
#: Heads with these headers are parsed each time. The first three change how the body is read or the
#: request is answered; with `origin`, the reply depends on the connection, too.
_NOT_REMEMBERED = (b"transfer-encoding", b"expect", b"upgrade", b"origin")
#: Parsed heads, by their bytes, with the size of the body that each announces.
KnownHeads = RequestCache[tuple[RequestHead, int]]


class Receiver(Protocol):
    """The connection that gets the parsed requests, in order."""

    @property
    def is_closing(self) -> bool:
        """True if further bytes are to be ignored."""

    def begin(self, head: RequestHead | None = None) -> Request:
        """Return a new request. Without `head`, the caller fills in its head."""

    def send_continue(self) -> None:
        """Ask the client for the body, with status 100."""

    def complete(self, request: Request) -> None:
        """Accept a request whose head and body are complete."""

    def reject(self, request: Request, reason: str) -> None:
        """Answer `request` with an error after earlier replies, then end the connection."""

    def malformed(self, reason: str) -> None:
        """End the connection after earlier replies: the bytes are not an HTTP request."""


class RequestReader:
    """The parser of one connection. Used on the event loop's thread.

    Args:
        receiver: gets the requests.
        max_input: the limit in bytes for a body of JSON or of one raw tensor; None is no limit. A
            longer body is read to its end and only counted.
        heads: the heads that this port has parsed so far.
        intake: the memory budget that long bodies are charged to.
    """

    def __init__(
        self,
        receiver: Receiver,
        max_input: int | None,
        heads: KnownHeads,
        intake: Intake | None = None,
    ) -> None:
        self._intake = intake or Intake()
        self._receiver = receiver
        self._heads = heads
        self._max_input = max_input
        self._parser = self._new_parser()
        self._phase = _REQUEST
        self._request = receiver.begin()  # the current or last request
        self._body = Body(self._intake, self._max_input)
        self._head_bytes = 0  # since the last piece of a body, or the request's start
        self._completed = 0  # number of completed requests

    @property
    def missing(self) -> Wait:
        """The next step that the client has to take."""
        return Wait(self._phase, self._completed, self._body.received)

    @property
    def body_buffer(self) -> memoryview | None:
        """The memory for the next bytes if they belong to a long body, else None."""
        return self._body.rest

    def filled(self, nbytes: int) -> None:
        """Count `nbytes` received into `body_buffer`."""
        try:
            self._body.filled(nbytes)
        except RequestRejected as error:
            self._reject(str(error))
        else:
            self._check_filled()

    def end(self) -> None:
        """Release the incomplete body: the connection ends."""
        self._body = Body(self._intake, self._max_input)

    def opaque_bytes(self) -> int:
        """Return the number of upcoming bytes that belong to a body and need little parsing."""
        if self._body.missing:
            return self._body.missing
        return _BODY_PORTION if self._phase is _BODY else 0

    def take(self, data: memoryview) -> None:
        """Parse received bytes; the memory of `data` may be reused afterwards."""
        rest = self._body.rest
        if rest is not None:
            piece = data[: len(rest)]
            rest[: len(piece)] = piece
            data = data[len(piece) :]
            self.filled(len(piece))
        is_first = self._phase is _REQUEST and self._request.keep_alive and len(data) <= LONGEST_KEY
        if is_first and self._take_known(data):
            return
        unread: bytes | memoryview = data
        while unread and not self._receiver.is_closing:
            completed_before = self._completed
            try:
                self._parser.feed_data(unread)
            except (httptools.HttpParserUpgrade, httptools.HttpParserInvalidMethodError) as stop:
                is_pipelined = self._completed > completed_before
                unread = self._resume(stop, unread, is_pipelined=is_pipelined)
                is_first = False
            except httptools.HttpParserError as error:
                self._reject_unreadable(error)
                return
            else:
                self._count_head(len(unread))
                if self._phase is _BODY:
                    self._receive_in_place()
                elif is_first and self._completed == completed_before + 1:
                    self._remember(bytes(unread))
                return

    def _take_known(self, data: memoryview) -> bool:
        """Complete a request with a known head. Return False if `data` is not exactly that."""
        plain = bytes(data)
        begin = plain.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        known = self._heads.find(plain[:begin])
        if known is None or known[1] != len(plain) - begin or self._receiver.is_closing:
            return False
        self._completed += 1
        request = self._request = self._receiver.begin(known[0])
        request.body = memoryview(plain)[begin:]
        self._receiver.complete(request)
        return True

    def _remember(self, plain: bytes) -> None:
        """Remember the head of a request if `plain` is exactly this request."""
        request = self._request
        size = len(request.body)
        head = plain[: len(plain) - size]
        if (
            request.keep_alive
            and not request.dropped
            and plain.find(_END_OF_HEAD) + len(_END_OF_HEAD) == len(head)
            and not any(name in request.headers for name in _NOT_REMEMBERED)
        ):
            self._heads.keep(head, (request.head, size))

    def _count_head(self, size: int) -> None:
        """Reject a request whose head, trailers or chunk headers are too long."""
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD:
            self._receiver.reject(
                self._request,
                f"{_UNREADABLE}: found a head, or headers between chunks, of more than "
                f"{_MAX_HEAD} bytes",
            )

    def _complete(self) -> None:
        self._phase = _REQUEST
        self._completed += 1
        self._receiver.complete(self._request)

    # -- llhttp's callbacks

    def on_message_begin(self) -> None:
        self._phase = _HEAD
        self._request = self._receiver.begin()
        self._body = Body(self._intake, self._max_input)
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers.setdefault(name.lower(), value)
        self._request.fields.append((name, value))
        self._head_bytes += _HEADER_COST

    def on_headers_complete(self) -> None:
        request = self._request
        request.method = self._parser.get_method().decode("latin-1")
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        coding = request.headers.get(b"transfer-encoding", b"chunked")
        if coding.lower() != b"chunked":
            # llhttp would read the body until the connection ends.
            raise RequestRejected(
                f"{_UNREADABLE}: found Transfer-Encoding '{coding.decode('latin-1')}', expected "
                "chunked"
            )
        self._phase = _BODY
        # Such a client waits for this status before it sends the body (RFC 9110, section 10.1.1).
        if request.headers.get(b"expect", b"").lower() == b"100-continue":
            self._receiver.send_continue()

    def on_chunk_header(self) -> None:
        self._body.chunks += 1

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if self._body.chunks > _MAX_CHUNKS:  # all have data: an empty chunk ends the body
            raise RequestRejected(
                f"Chunked request body exceeds maximum of {_MAX_CHUNKS} non-empty chunks. Send "
                "fewer or larger HTTP chunks."
            )
        self._body.receive(body, self._request.headers)

    def on_message_complete(self) -> None:
        headers = self._request.headers
        if self._parser.should_upgrade() and (
            b"content-length" in headers or b"transfer-encoding" in headers
        ):
            return  # the body follows, see _past_upgrade
        if self._body.exceeds(headers):
            self._request.dropped = self._body.received
            self._complete()
            return
        body = self._body.whole()
        length = int(headers.get(b"content-length", len(body)))
        if length != len(body):  # chunks, and a Content-Length that differs
            if length > len(body) or length == 0:
                # If Content-Length is larger than the sum of the chunks, Triton stops reading the
                # request. With length 0, Triton reads the whole body as a raw tensor.
                self._phase = _REQUEST
                self._completed += 1
                self._receiver.reject(
                    self._request,
                    f"{_UNREADABLE}: found Content-Length {length} and chunks of {len(body)} bytes",
                )
                return
            body = body[:length]  # Triton ignores the other chunks
        self._request.body = body
        self._complete()

    # -- bodies that bypass llhttp

    def _receive_in_place(self) -> None:
        """Let the rest of a long body bypass llhttp."""
        headers = self._request.headers
        if b"transfer-encoding" in headers:  # the length is not known
            return
        length = int(headers.get(b"content-length", b"0"))
        if self._body.exceeds(headers, length):
            return  # it is only counted
        if length - self._body.received >= _IN_PLACE_BYTES:
            self._place_body(length)

    def _place_body(self, length: int) -> None:
        """Allocate memory for the whole body and move the received bytes there."""
        headers = self._request.headers
        try:
            self._body.place(length, _number(headers.get(b"inference-header-content-length")))
        except RequestRejected as error:
            self._reject(str(error))
        else:
            self._check_filled()

    def _check_filled(self) -> None:
        if self._body.is_full:
            self._request.body = self._body.whole()
            self._parser = self._new_parser()
            self._complete()

    # -- where llhttp stops, and Triton does not

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Chunks take precedence over a Content-Length (RFC 9112, section 6.3).
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return parser

    def _resume(
        self, stop: Exception, unread: memoryview | bytes, *, is_pipelined: bool
    ) -> memoryview | bytes:
        """Prepare a new parser and return the bytes that it has to continue with."""
        self._parser = self._new_parser()
        if isinstance(stop, httptools.HttpParserUpgrade):
            return self._past_upgrade(unread[stop.args[0] :])
        method = None if is_pipelined else _METHOD.match(unread)
        if method is None:
            self._receiver.malformed("malformed request line")
            return b""
        # Triton answers an unknown method like a known method that is not supported.
        return _UNSUPPORTED_METHOD + unread[method.end() :]

    def _past_upgrade(self, data: memoryview | bytes) -> memoryview | bytes:
        """Continue after the head of a request that offers another protocol.

        Triton ignores the offer; llhttp ends such a request with its head. Returns the bytes that
        the parser has to continue with.
        """
        if self._phase is _REQUEST:  # it has no body
            return data
        if b"transfer-encoding" in self._request.headers:
            request = self._request
            self._parser.feed_data(_CHUNKED_HEAD)
            self._request = request
            return data
        length = int(self._request.headers[b"content-length"])
        if self._body.exceeds(self._request.headers, length):
            self._reject(f"{_UNREADABLE}: found an Upgrade with a body of {length} bytes")
            return b""
        try:
            self._body.add(bytes(data[:length]))
        except RequestRejected as error:
            self._reject(str(error))
            return b""
        self._place_body(length)
        return data[length:]

    def _reject_unreadable(self, error: httptools.HttpParserError) -> None:
        """Reject a request because a callback raised an error or llhttp reported one."""
        if isinstance(error.__context__, RequestRejected):
            self._reject(str(error.__context__))
        elif str(error) in _AMBIGUOUS:
            self._reject(f"{_UNREADABLE}: {error}")
        else:
            self._receiver.malformed(str(error))

    def _reject(self, reason: str) -> None:
        self.end()
        self._receiver.reject(self._request, reason)


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else 0
