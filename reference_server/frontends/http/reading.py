"""Reads the requests of one HTTP/1.1 connection. The grammar is llhttp's.

Bodies that do not fit the first read are received straight into the memory that tensors will view.
A head that was read before, byte for byte, is not read again.
"""

from __future__ import annotations

import re
from typing import Protocol

import httptools

from reference_server.codecs.request_cache import LONGEST_KEY, RequestCache
from reference_server.core.intake import Intake
from reference_server.frontends.connections import Phase, Wait
from reference_server.frontends.http.bodies import Body, NoRoom
from reference_server.frontends.http.request import Request, RequestHead, may_be_larger

#: Bytes of a body still to come from which it is received in place.
_IN_PLACE_BYTES = 8192
#: More bytes than any body has.
_UNLIMITED = 1 << 64
#: Bytes of a request's head, or of trailers and whatever else stands between the chunks of a body.
#: Triton bounds each header by 8 KiB, and not their number.
_MAX_HEAD = 1 << 20
#: What a header counts beside its bytes, as in HTTP/2 (RFC 9113, section 6.5.2).
_HEADER_COST = 32
#: Bytes of a body that come at once where only the parser knows its end.
_BODY_PORTION = 1 << 14
#: The method of a request line that is in order but for llhttp not knowing the method.
_METHOD = re.compile(rb"[A-Z]+(?= \S+ HTTP/1\.[01]\r\n)")
_UNREADABLE = "failed to read the HTTP request"
#: What llhttp says of requests that Triton's library takes, and that another may read differently.
_AMBIGUOUS = {
    "Duplicate Content-Length",
    "Invalid HTTP version",
    "Invalid header field char",
    "Invalid header value char",
    "Invalid `Transfer-Encoding` header value",
    "Unexpected space after start line",
}
_END_OF_HEAD = b"\r\n\r\n"
#: Headers of requests that are not told by their head alone: where they end, or what is answered.
_READ_ANEW = (b"transfer-encoding", b"expect", b"upgrade")
#: Heads that a port has read, with the sizes of the bodies that they announce.
KnownHeads = RequestCache[tuple[RequestHead, int]]
#: A head whose body llhttp reads, in place of one whose body it leaves alone.
_CHUNKS_FOLLOW = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
#: Any method that llhttp knows and no operation answers to.
_REFUSED_METHOD = b"TRACE"


class Receiver(Protocol):
    """Whose bytes are read: it takes the requests, in order."""

    @property
    def is_closing(self) -> bool:
        """Whether what else has come is of no use."""

    def begin(self, head: RequestHead | None = None) -> Request:
        """A request of which something has come, or its whole head."""

    def invite_body(self) -> None:
        """The client waits to be told to send its body."""

    def complete(self, request: Request) -> None:
        """All of it is there."""

    def refuse_body(self, request: Request, reason: str) -> None:
        """All of it is there but its body, which will not be read."""

    def not_http(self, reason: str) -> None:
        """What comes is no request."""


#: Chunks with data that a body may come in; each costs its reader far more than its bytes.
_MOST_CHUNKS = 65536


class _TooManyChunks(Exception):
    """A body in more chunks than are read."""


class _Unreadable(Exception):
    """A request whose end nobody can tell."""


class RequestReader:
    """Reads for one connection, on the loop's thread.

    max_input: bytes of JSON or of a raw tensor; a body that has more is read to its end, and only
    counted. heads: those that the port has read so far. intake: what long bodies hold.
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
        self._max_input = _UNLIMITED if max_input is None else max_input
        self._parser = self._new_parser()
        self._incoming = receiver.begin()  # the request being read
        self._body = Body(self._intake)
        self._chunk_count, self._in_new_chunk = 0, False  # of those with data
        self._head_bytes = 0  # since anything but a header or a chunk's size has come
        self._headers_done = False
        self._whole = True  # nothing of a request has come that is not complete
        self._begun = 0  # requests
        self._completed = 0  # messages that ended within the bytes being read

    @property
    def lacks(self) -> Wait:
        """What the client is to send next."""
        if self._whole:
            return Wait(Phase.REQUEST, self._begun)
        if not self._headers_done:
            return Wait(Phase.HEAD, self._begun)
        return Wait(Phase.BODY, self._begun, self._body.received)

    @property
    def body_buffer(self) -> memoryview | None:
        """Where the next bytes are wanted, if these are a long body's."""
        return self._body.rest

    def filled(self, nbytes: int) -> None:
        """So many bytes have come into what `body_buffer` gave last."""
        try:
            self._body.filled(nbytes)
        except NoRoom as lack:
            self._refuse_body(lack)
        else:
            self._check_filled()

    def end(self) -> None:
        """Keep nothing of what has come: nothing follows."""
        self._body = Body(self._intake)

    def plain(self) -> int:
        """How many of the next bytes are a body's, of which little is to be understood."""
        if self._body.lacks:
            return self._body.lacks
        return _BODY_PORTION if self._headers_done and not self._whole else 0

    def take(self, data: memoryview) -> None:
        """Read bytes, which are no longer needed afterwards."""
        rest = self._body.rest
        if rest is not None:
            piece = data[: len(rest)]
            rest[: len(piece)] = piece
            data = data[len(piece) :]
            self.filled(len(piece))
        is_first = self._whole and self._incoming.keep_alive and len(data) <= LONGEST_KEY
        if is_first and self._take_known(data):
            return
        unread: bytes | memoryview = data
        while unread and not self._receiver.is_closing:
            self._completed = 0
            try:
                self._parser.feed_data(unread)
            except httptools.HttpParserUpgrade as upgrade:
                self._parser = self._new_parser()
                unread = self._past_upgrade(unread[upgrade.args[0] :])
            except httptools.HttpParserInvalidMethodError:
                self._parser = self._new_parser()
                unread = self._with_refused_method(unread)
            except httptools.HttpParserError as error:
                self._refuse_unreadable(error)
                return
            else:
                self._count_head(len(unread))
                if self._headers_done and not self._whole:
                    self._receive_in_place()
                elif is_first and self._completed == 1:
                    self._remember(bytes(unread))
                return
            is_first = False

    def _take_known(self, data: memoryview) -> bool:
        """Take a request whose head is known, if that is what has come, whole and alone."""
        plain = bytes(data)
        begin = plain.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        known = self._heads.find(plain[:begin])
        if known is None or known[1] != len(plain) - begin or self._receiver.is_closing:
            return False
        self._begun += 1
        request = self._incoming = self._receiver.begin(known[0])
        request.body = memoryview(plain)[begin:]
        self._receiver.complete(request)
        return True

    def _remember(self, plain: bytes) -> None:
        """Keep the head of the one request that has come, if that tells all but the body."""
        request = self._incoming
        size = len(request.body)
        head = plain[: len(plain) - size]
        if (
            request.keep_alive
            and not request.dropped
            and plain.find(_END_OF_HEAD) + len(_END_OF_HEAD) == len(head)
            and not any(name in request.headers for name in _READ_ANEW)
        ):
            self._heads.keep(head, (request.head, size))

    def _count_head(self, size: int) -> None:
        """Refuse a request whose head, or what stands between its chunks, does not end."""
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD:
            reason = f"its head, or what stands between its chunks, has more than {_MAX_HEAD} bytes"
            self._receiver.refuse_body(self._incoming, f"{_UNREADABLE}: {reason}")

    # -- llhttp's calls

    def on_message_begin(self) -> None:
        self._begun += 1
        self._incoming = self._receiver.begin()
        self._body = Body(self._intake)
        self._chunk_count = 0
        self._in_new_chunk = False
        self._head_bytes = 0
        self._headers_done = False
        self._whole = False

    def on_url(self, url: bytes) -> None:
        self._incoming.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers.setdefault(name.lower(), value)
        self._incoming.fields.append((name, value))
        self._head_bytes += _HEADER_COST

    def on_headers_complete(self) -> None:
        request = self._incoming
        request.method = self._parser.get_method().decode("latin-1")
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        coding = request.headers.get(b"transfer-encoding", b"chunked")
        if coding.lower() != b"chunked":
            # llhttp would take all that ever comes for the body.
            raise _Unreadable(
                f"found Transfer-Encoding '{coding.decode('latin-1')}', expected chunked"
            )
        self._headers_done = True
        # RFC 9110, section 10.1.1: such a client holds its body back until it is told, or for long.
        if request.headers.get(b"expect", b"").lower() == b"100-continue":
            self._receiver.invite_body()

    def on_chunk_header(self) -> None:
        self._in_new_chunk = True

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if self._in_new_chunk:
            self._in_new_chunk, self._chunk_count = False, self._chunk_count + 1
            if self._chunk_count > _MOST_CHUNKS:
                raise _TooManyChunks
        if self._body.received + len(body) <= self._max_input or self._may_be_larger():
            self._body.add(body)
        else:
            self._body.drop(len(body))

    def on_message_complete(self) -> None:
        headers = self._incoming.headers
        if self._parser.should_upgrade() and (
            b"content-length" in headers or b"transfer-encoding" in headers
        ):
            return  # see _past_upgrade
        self._whole = True
        self._completed += 1
        if self._body.received > self._max_input and not self._may_be_larger():
            self._incoming.dropped = self._body.received
            self._receiver.complete(self._incoming)
            return
        body = self._body.whole()
        if (length := int(headers.get(b"content-length", len(body)))) != len(body):
            # Of chunks that are longer Triton reads no further, of others it misses the rest; with
            # length 0 it takes all for a raw tensor.
            if length > len(body) or length == 0:
                reason = f"found Content-Length {length} and chunks of {len(body)} bytes"
                self._receiver.refuse_body(self._incoming, f"{_UNREADABLE}: {reason}")
                return
            body = body[:length]
        self._incoming.body = body
        self._receiver.complete(self._incoming)

    # -- bodies past the parser

    def _receive_in_place(self) -> None:
        """Read the rest of a long body past the parser, straight to where it will be used."""
        headers = self._incoming.headers
        if b"transfer-encoding" in headers:  # chunks, whose sizes only the parser knows
            return
        length = int(headers.get(b"content-length", b"0"))
        if length > self._max_input and not self._may_be_larger():
            return  # nothing of it is kept
        if length - self._body.received >= _IN_PLACE_BYTES:
            self._place_body(length)

    def _place_body(self, length: int) -> None:
        """Go on reading the body in memory of its own, where what has come of it is put first."""
        headers = self._incoming.headers
        try:
            self._body.place(length, _number(headers.get(b"inference-header-content-length")))
        except NoRoom as lack:
            self._refuse_body(lack)
        else:
            self._check_filled()

    def _refuse_body(self, lack: NoRoom) -> None:
        self.end()
        self._receiver.refuse_body(self._incoming, str(lack))

    def _check_filled(self) -> None:
        if self._body.is_full:
            self._incoming.body = self._body.whole()
            self._whole = True
            self._parser = self._new_parser()
            self._receiver.complete(self._incoming)

    def _may_be_larger(self) -> bool:
        return may_be_larger(self._incoming.headers, self._max_input)

    # -- what llhttp stops at, and Triton does not

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Chunks with a Content-Length: the chunks count, as RFC 9112, section 6.3, has it.
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return parser

    def _refuse_unreadable(self, error: httptools.HttpParserError) -> None:
        """Say why, where Triton would have read the request in one of two ways; else just end."""
        if isinstance(error.__context__, NoRoom):
            self._refuse_body(error.__context__)
            return
        if isinstance(error.__context__, _TooManyChunks):
            self._receiver.refuse_body(
                self._incoming,
                f"Chunked request body exceeds maximum of {_MOST_CHUNKS} non-empty chunks. Send "
                "fewer or larger HTTP chunks.",
            )
            return
        reason = error.__context__ if isinstance(error.__context__, _Unreadable) else error
        if reason is error and str(error) not in _AMBIGUOUS:
            self._receiver.not_http(str(error))
            return
        self._receiver.refuse_body(self._incoming, f"{_UNREADABLE}: {reason}")

    def _past_upgrade(self, data: memoryview | bytes) -> memoryview | bytes:
        """What follows a request that offers another protocol: Triton never takes the offer.

        llhttp ends such a request with its headers; a body is read here. Returns what lies behind.
        """
        if self._whole:
            return data
        if b"transfer-encoding" in self._incoming.headers:
            request = self._incoming  # whose head has been read
            self._parser.feed_data(_CHUNKS_FOLLOW)
            self._incoming = request
            return data
        length = int(self._incoming.headers[b"content-length"])
        if length > self._max_input and not self._may_be_larger():
            reason = f"found an Upgrade with a body of {length} bytes"
            self._receiver.refuse_body(self._incoming, f"{_UNREADABLE}: {reason}")
            return b""
        try:
            self._body.add(bytes(data[:length]))
        except NoRoom as lack:
            self._refuse_body(lack)
            return b""
        self._place_body(length)
        return data[length:]

    def _with_refused_method(self, data: bytes | memoryview) -> bytes:
        """`data` with a known method in place of one that llhttp stops at; Triton answers both.

        Nothing, and the connection ends, if `data` does not begin with such a request.
        """
        found = _METHOD.match(data)
        if found is None or self._completed:
            self._receiver.not_http("no request begins so")
            return b""
        return _REFUSED_METHOD + data[found.end() :]


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else 0
