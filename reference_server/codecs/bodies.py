"""HTTP bodies: their size limit, and their compressed forms (RFC 9110, section 8.4)."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from reference_server.core.errors import ServerError, invalid_arg, unsupported

_CURE = "Use --http-max-input-size to increase the limit."


@dataclass(frozen=True, slots=True)
class InputLimit:
    """The limit of `--http-max-input-size`: `most` bytes; None is no limit.

    It applies to JSON, to raw bodies, and to the tensors that are made from JSON. Binary tensors
    after the JSON of an uncompressed request are not limited. All methods raise ServerError
    INVALID_ARG with Triton's texts.
    """

    most: int | None = None

    def check_json(self, size: int) -> None:
        """Refuse JSON of more than `most` bytes."""
        if self.most is not None and size > self.most:
            raise invalid_arg(
                f"request JSON size of {size} bytes exceeds the maximum allowed input size of "
                f"{self.most} bytes. {_CURE}"
            )

    def check_raw(self, size: int) -> None:
        """Refuse a raw body of more than `most` bytes."""
        if self.most is not None and size > self.most:
            raise invalid_arg(
                f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value "
                f"of {self.most} bytes. {_CURE}"
            )

    def check_tensor(self, name: str, size: int) -> None:
        """Refuse a JSON input whose tensor has more than `most` bytes."""
        if self.most is not None and size > self.most:
            raise invalid_arg(
                f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum "
                f"allowed value of {self.most} bytes. {_CURE}"
            )

    def check_sum(self, before: int, name: str, size: int) -> None:
        """Refuse an input of generate that, with all earlier inputs, has more than `most` bytes."""
        if self.most is not None and before + size > self.most:
            raise invalid_arg(
                f"request size of {before} bytes with input '{name}' of size {size} bytes exceeds "
                f"the maximum allowed input size of {self.most}. {_CURE}"
            )

    def decompressed_too_large(self) -> ServerError:
        """Return the error for a body that decompresses to more than `most` bytes."""
        return invalid_arg(
            f"Decompressed data size exceeds the maximum allowed value of {self.most} bytes. "
            f"{_CURE}"
        )


UNLIMITED = InputLimit()


CODINGS = ("gzip", "deflate")
UNSUPPORTED_CODING = "Unsupported compression type"
_GZIP_WINDOW = zlib.MAX_WBITS | 16
#: Makes zlib detect whether the data is gzip or zlib.
_ANY_WINDOW = zlib.MAX_WBITS | 32
#: Any body may decompress to this size; a longer body to this multiple of its own size.
_FREE_BYTES = 1 << 28
_LARGEST_RATIO = 32
#: The largest output and input of one call of zlib, which copies the unused input.
_PIECE = 1 << 18
_PACKED_PIECE = 1 << 16


class Unpacker(Protocol):
    """The part of the interface of `zlib.decompressobj` that is used here."""

    @property
    def eof(self) -> bool:
        """True if the stream has ended."""

    @property
    def unconsumed_tail(self) -> bytes:
        """The input that was not decompressed yet."""

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes:
        """Decompress to at most `max_length` bytes. Raises zlib.error."""


def most_bytes(packed: int) -> int:
    """Return the most bytes that a body of `packed` bytes may decompress to.

    zlib compresses zeros by a factor of 1000, so without a bound a megabyte takes a gigabyte of the
    server's memory. Real tensors are far from this factor.
    """
    return max(_FREE_BYTES, _LARGEST_RATIO * packed)


def unpack(unpacker: Unpacker, packed: bytes | memoryview, most: int) -> bytes | memoryview:
    """Decompress `packed`, up to its first `most` bytes. Raises zlib.error.

    The output is decompressed in pieces: zlib joins the output of one call while it holds the GIL,
    a quarter of a second for 256 MiB.
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
    # All input is consumed, but zlib may still hold output.
    while size < most and not unpacker.eof:
        pieces.append(unpacker.decompress(b"", min(_PIECE, most - size)))
        size += len(pieces[-1])
        if not pieces[-1]:
            break
    if len(pieces) == 1:
        return pieces[0]
    plain = np.empty(size, np.uint8)
    end = 0
    while pieces:  # NumPy copies each piece without the GIL; then the piece is freed
        piece = pieces.popleft()
        start, end = end, end + len(piece)
        plain[start:end] = np.frombuffer(piece, np.uint8)
    return plain.data


def decompress(coding: str | None, body: memoryview, limit: InputLimit = UNLIMITED) -> memoryview:
    """Decompress the body of a request.

    As in Triton, a truncated stream gives its readable part, and a body without a readable first
    byte gives nothing.

    Args:
        coding: The value of `Content-Encoding`.
        body: The compressed body.
        limit: Limits the decompressed size; without a limit, `most_bytes` does. Decompression stops
            beyond it.

    Raises:
        ServerError: UNSUPPORTED for an unknown coding; INVALID_ARG for an empty body, for a stream
            that is damaged after its first bytes (which Triton executes), or if the decompressed
            body exceeds the limit.
    """
    if coding in (None, "identity"):
        return body
    if coding not in CODINGS:
        raise unsupported(UNSUPPORTED_CODING)
    if not body:
        raise invalid_arg("nothing to be decompressed")
    # As in Triton, each coding accepts both formats, gzip and zlib.
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
    """Return whether at least one byte can be decompressed."""
    try:
        return bool(zlib.decompressobj(_ANY_WINDOW).decompress(body, 1))
    except zlib.error:
        return False


def compress(coding: str, parts: Iterable[memoryview | bytes]) -> bytes:
    """Compress `parts` to one stream."""
    window = _GZIP_WINDOW if coding == "gzip" else zlib.MAX_WBITS
    encoder = zlib.compressobj(wbits=window)
    chunks = [encoder.compress(part) for part in parts]
    return b"".join((*chunks, encoder.flush()))


def accepted(header: str) -> str:
    """Return the coding that an `Accept-Encoding` header prefers, or "" for no compression.

    Of equal weights, the first coding wins. A weight counts only in the form `;q=`.
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
