"""Request smuggling: requests whose framing two HTTP parsers may read differently.

Each form hides a request for the model `smuggled` in bytes that RFC 9112 defines as a body, or in
an invalid request. A correct server rejects the form or reads it as one body; a vulnerable server
sends a response for `smuggled`.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.attack.ground import Ground
from benchmarks.attack.mutators import Harm, exchange

HIDDEN = b"GET /v2/models/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
CANARY = b"GET /v2/models/canary HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_LINE = b"POST /v2/models/identity_0/infer HTTP/1.1\r\nHost: x\r\n"
_SIZE = b"%d" % len(HIDDEN)
_CHUNK = b"%x" % len(HIDDEN)
_CHUNKED = _CHUNK + b"\r\n" + HIDDEN + b"\r\n0\r\n\r\n"

LENGTHS = (
    *(b"Content-Length: " + _SIZE, b"content-length:\t" + _SIZE + b" "),
    *(b"Content-Length: " + _SIZE + b"\r\nContent-Length: " + _SIZE,),
    *(b"Content-Length: 0\r\nContent-Length: " + _SIZE,),
    *(b"Content-Length: " + _SIZE + b"\r\nContent-Length: 0",),
    *(b"Content-Length: " + sign + _SIZE for sign in (b"+", b"-", b"0x", b"00", b"0,", b"\x0b")),
    *(b"Content-Length: " + _SIZE + tail for tail in (b",0", b";0", b".0", b"e0", b" 0", b"\x00")),
    *(b"Content-Length : " + _SIZE, b"Content-Length\t: " + _SIZE, b" Content-Length: " + _SIZE),
    *(b"Content-Length:\r\n " + _SIZE, b"X: y\r\n z\r\nContent-Length: " + _SIZE),
    *(b"X: y\nContent-Length: " + _SIZE, b"X: y\rContent-Length: " + _SIZE),
    *(b"X\r\nContent-Length: " + _SIZE, b": y\r\nContent-Length: " + _SIZE),
    *(b"X\x00: y\r\nContent-Length: " + _SIZE, b"X: \x00\r\nContent-Length: " + _SIZE),
    *(b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: " + _SIZE,),
    *(b"Upgrade: websocket\r\nConnection: upgrade\r\nContent-Length: " + _SIZE,),
    *(b"Expect: 100-continue\r\nContent-Length: " + _SIZE,),
)
CODINGS = (
    *(b"Transfer-Encoding: " + value for value in (b"chunked", b"CHUNKED", b"\tchunked ")),
    *(b"Transfer-Encoding: " + value for value in (b"chunked, chunked", b"identity, chunked")),
    *(b"Transfer-Encoding: " + value for value in (b"gzip, chunked", b"chunked, identity")),
    *(b"Transfer-Encoding: " + value for value in (b"xchunked", b"chunkedx", b"\x0bchunked")),
    *(b"Transfer-Encoding: " + value for value in (b'"chunked"', b"chunked;q=1", b"chun ked")),
    *(b"Transfer-Encoding : chunked", b" Transfer-Encoding: chunked"),
    *(b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: chunked\r\n X: y"),
    *(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",),
    *(b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",),
    *(b"Content-Length: 0\r\nTransfer-Encoding: chunked",),
    *(b"Transfer-Encoding: chunked\r\nContent-Length: 0",),
    *(b"Transfer-Encoding: chunked\r\nContent-Length: 4",),
    *(b"Upgrade: h2c\r\nConnection: Upgrade\r\nTransfer-Encoding: chunked",),
)
CHUNKS = (
    *(sign + _CHUNK + b"\r\n" for sign in (b"+", b"-", b"0x", b"000", b" ", b"\t")),
    *(_CHUNK + tail for tail in (b" \r\n", b";a=b\r\n", b';a="\n"\r\n', b"\n", b"\r", b"x\r\n")),
    *(b"1000000000000000" + _CHUNK + b"\r\n", b"ffffffffffffffff\r\n"),
)


def forms() -> Iterator[bytes]:
    """Yield every form as a whole request."""
    for lines in LENGTHS:
        yield _LINE + lines + b"\r\n\r\n" + HIDDEN
    for lines in CODINGS:
        yield _LINE + lines + b"\r\n\r\n" + _CHUNKED
    for size in CHUNKS:
        head = _LINE + b"Transfer-Encoding: chunked\r\n\r\n"
        yield head + size + HIDDEN + b"\r\n0\r\n\r\n"


def smuggling(ground: Ground) -> str:
    """Ambiguous request framing, each form with a request hidden in its body."""
    refused = read = 0
    for form in forms():
        received = exchange(ground.server.http, form + CANARY)
        if b"smuggled" in received:
            raise Harm("http", form + CANARY, "the server read a body as a request")
        if b"canary" in received:
            read += 1
        else:
            refused += 1
    return f"{refused} forms rejected, {read} read as one body"
