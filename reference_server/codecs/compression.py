"""Compressed bodies, both ways: which coding a header asks for, and its bytes."""

from __future__ import annotations

import zlib

from reference_server.core.errors import invalid_arg, unsupported

CODINGS = ("gzip", "deflate")
UNSUPPORTED_CODING = "Unsupported compression type"
_GZIP_WINDOW = zlib.MAX_WBITS | 16
#: Tells zlib to see for itself whether the data is gzip or zlib.
_ANY_WINDOW = zlib.MAX_WBITS | 32


def decompress(coding: str | None, body: memoryview) -> memoryview:
    """The plain body that a request's `Content-Encoding` hides.

    A stream that is cut gives what there is of it. Raises ServerError UNSUPPORTED for a coding that
    is not known, and INVALID_ARG for an empty body, and for one that is damaged or not compressed.
    """
    if coding in (None, "identity"):
        return body
    if coding not in CODINGS:
        raise unsupported(UNSUPPORTED_CODING)
    if not body:
        raise invalid_arg("nothing to be decompressed")
    decoder = zlib.decompressobj(_ANY_WINDOW)
    try:
        return memoryview(decoder.decompress(body))
    except zlib.error as error:
        raise invalid_arg(f"failed to decompress the {coding} request body: {error}") from None


def compress(coding: str, parts: list[memoryview | bytes]) -> bytes:
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
