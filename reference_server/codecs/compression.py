"""Compressed HTTP bodies (RFC 9110, section 8.4): the coding that a header asks for, both ways."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from reference_server.codecs.input_limit import UNLIMITED, InputLimit
from reference_server.core.errors import invalid_arg, unsupported

CODINGS = ("gzip", "deflate")
UNSUPPORTED_CODING = "Unsupported compression type"
_GZIP_WINDOW = zlib.MAX_WBITS | 16
#: Tells zlib to see for itself whether the data is gzip or zlib.
_ANY_WINDOW = zlib.MAX_WBITS | 32
# What a few bytes may become, and above that how many times as much as was sent.
_FREE_BYTES = 1 << 28
_LARGEST_RATIO = 32
#: What is unpacked in one go, and out of how much: zlib copies what it has not come to.
_PIECE = 1 << 18
_PACKED_PIECE = 1 << 16


class Unpacker(Protocol):
    """The side of `zlib.decompressobj` that is used here."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def unconsumed_tail(self) -> bytes:
        """What it has not come to."""

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes:
        """At most so many bytes of the plain form; raises zlib.error."""


def most_bytes(packed: int) -> int:
    """How long the plain form of so many compressed bytes may be.

    zlib packs zeros a thousandfold: without a bound a megabyte takes a gigabyte of the server's
    memory. Tensors that are worth sending are far from it.
    """
    return max(_FREE_BYTES, _LARGEST_RATIO * packed)


def unpack(unpacker: Unpacker, packed: bytes | memoryview, most: int) -> bytes | memoryview:
    """The plain form of `packed`, or its first `most` bytes. Raises zlib.error.

    In pieces: what zlib gives at once it puts together with the interpreter's lock held, 256 MiB
    for a quarter of a second.
    """
    pieces: deque[bytes] = deque()
    size = 0
    for start in range(0, len(packed), _PACKED_PIECE):
        left: bytes | memoryview = memoryview(packed)[start : start + _PACKED_PIECE]
        while left and size < most and not unpacker.eof:
            pieces.append(unpacker.decompress(left, min(_PIECE, most - size)))
            size += len(pieces[-1])
            left = unpacker.unconsumed_tail
        if size == most or unpacker.eof:
            break
    # It may have taken all, and not have given all that became of it.
    while size < most and not unpacker.eof:
        pieces.append(unpacker.decompress(b"", min(_PIECE, most - size)))
        size += len(pieces[-1])
        if not pieces[-1]:
            break
    if len(pieces) == 1:
        return pieces[0]
    plain = np.empty(size, np.uint8)
    end = 0
    while pieces:  # each is freed once it is copied, which NumPy does without the lock
        piece = pieces.popleft()
        start, end = end, end + len(piece)
        plain[start:end] = np.frombuffer(piece, np.uint8)
    return plain.data


def decompress(coding: str | None, body: memoryview, limit: InputLimit = UNLIMITED) -> memoryview:
    """The plain body that a request's `Content-Encoding` hides.

    A stream that is cut gives what there is of it; what is no stream from its first byte on gives
    nothing, as in Triton. Raises ServerError UNSUPPORTED for a coding that is not known, and
    INVALID_ARG for an empty body, for one that is damaged further on, which Triton executes, and
    for one whose plain form is longer than `limit`, or without one than `most_bytes`: no more than
    that is ever unpacked.
    """
    if coding in (None, "identity"):
        return body
    if coding not in CODINGS:
        raise unsupported(UNSUPPORTED_CODING)
    if not body:
        raise invalid_arg("nothing to be decompressed")
    # Either framing under either name, as in Triton.
    decoder = zlib.decompressobj(_ANY_WINDOW)
    most = most_bytes(len(body)) if limit.most is None else limit.most
    try:
        plain = unpack(decoder, body, most + 1)
    except zlib.error as error:
        if not _begins(body):
            return memoryview(b"")
        raise invalid_arg(f"failed to decompress the {coding} request body: {error}") from None
    if len(plain) > most:
        if limit.most is not None:
            raise limit.decompressed_too_large()
        raise invalid_arg(
            f"the {coding} request body of {len(body)} bytes decompresses to more than {most} bytes"
        )
    return memoryview(plain)


def _begins(body: memoryview) -> bool:
    """Whether anything comes out of it before it is found to be damaged."""
    try:
        return bool(zlib.decompressobj(_ANY_WINDOW).decompress(body, 1))
    except zlib.error:
        return False


def compress(coding: str, parts: Iterable[memoryview | bytes]) -> bytes:
    """`parts`, one after the other, as one compressed stream."""
    window = _GZIP_WINDOW if coding == "gzip" else zlib.MAX_WBITS
    encoder = zlib.compressobj(wbits=window)
    chunks = [encoder.compress(part) for part in parts]
    return b"".join((*chunks, encoder.flush()))


def accepted(header: str) -> str:
    """The coding that an `Accept-Encoding` header prefers: `gzip`, `deflate`, or none ("").

    Of equal weights the first wins; a weight counts only in the form `;q=`.
    """
    best, best_weight = "", 0.0
    for item in header.split(","):
        coding, _, weight_text = item.lstrip(" ").partition(";q=")
        if coding not in (*CODINGS, "identity"):
            continue
        try:
            weight = float(weight_text.partition(";")[0]) if weight_text else 1.0
        except ValueError:
            continue
        if weight > best_weight:
            best, best_weight = coding, weight
    return "" if best == "identity" else best
