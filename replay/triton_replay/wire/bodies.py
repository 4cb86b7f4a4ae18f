"""Bodies of HTTP requests and responses: compression, JSON, and binary tensor data.

In the binary data extension the body starts with JSON, whose length is in a header. The bytes of
the tensors that have a `binary_data_size` follow, in the order of the tensors.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

Headers = tuple[tuple[str, str], ...]
Body = bytes | bytearray | memoryview

JSON_LENGTH: Final = "inference-header-content-length"
INFERENCE: Final = re.compile(
    r"^/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?"
    r"/(?P<verb>infer|generate|generate_stream)$"
)
"""Paths of requests that a model executes."""


MAX_UNPACKED: Final = 256 * 2**20
"""Default limit of the decompressed size of a body, in bytes."""
_PIECE: Final = 2**20


class NotUnderstood(Exception):
    """A body does not match its headers or the protocol."""


@dataclass(frozen=True)
class TensorBody:
    """A decompressed body: its JSON object and the bytes after it."""

    document: dict[str, Any]
    binary: memoryview

    def tensors(self) -> Iterator[tuple[dict[str, Any], memoryview | None]]:
        """Yield the JSON of each input or output with its binary data, or with None.

        Raises:
            NotUnderstood: The JSON or a `binary_data_size` is invalid.
        """
        offset = 0
        for key in ("inputs", "outputs"):
            for tensor in _objects(self.document, key):
                size = _object(tensor, "parameters").get("binary_data_size")
                if size is None:
                    yield tensor, None
                    continue
                left = len(self.binary) - offset
                if type(size) is not int or not 0 <= size <= left:
                    raise NotUnderstood(f"binary_data_size: found {size!r}, expected 0 to {left}")
                yield tensor, self.binary[offset : offset + size]
                offset += size


def header(headers: Headers, name: str) -> str:
    """Return the value of a header, or "" if it is missing. `name` must be lower case."""
    return next((value for key, value in headers if key.lower() == name), "")


def inflate(headers: Headers, body: Body, limit: int = MAX_UNPACKED) -> Body:
    """Decompress a body by its Content-Encoding: identity, gzip or deflate.

    Args:
        headers: The headers of the body.
        body: The body as on the wire.
        limit: Largest decompressed size in bytes.

    Raises:
        NotUnderstood: The encoding is unknown or wrong, or the decompressed body is too large.
    """
    encoding = header(headers, "content-encoding").strip().lower()
    if encoding in ("", "identity"):
        return body
    try:
        if encoding == "gzip":
            return _gunzip(body, limit)
        if encoding == "deflate":
            return decompress(body, zlib.MAX_WBITS, limit)
    except (OSError, EOFError, zlib.error) as error:
        raise NotUnderstood(f"the body is not {encoding}: {error}") from error
    raise NotUnderstood(f"content-encoding: found {encoding!r}, expected identity, gzip or deflate")


def decompress(data: Body, window: int, limit: int) -> bytes:
    """Decompress one stream of zlib.

    Args:
        data: The stream.
        window: `wbits` of zlib.
        limit: Largest decompressed size in bytes.

    Raises:
        NotUnderstood: The decompressed data is too large.
        zlib.error: The data is invalid or incomplete.
    """
    stream = zlib.decompressobj(window)
    found = stream.decompress(data, limit + 1)
    if len(found) > limit:
        raise _too_large(limit)
    if not stream.eof:
        raise zlib.error("incomplete data")
    return found


def _gunzip(body: Body, limit: int) -> bytearray:
    """Decompress all members of a gzip body in linear time."""
    found = bytearray()
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
        while piece := file.read(_PIECE):
            found += piece
            if len(found) > limit:
                raise _too_large(limit)
    return found


def _too_large(limit: int) -> NotUnderstood:
    return NotUnderstood(f"the decompressed body has more than {limit} bytes")


def read_body(headers: Headers, body: Body, limit: int = MAX_UNPACKED) -> TensorBody:
    """Decompress a body, up to `limit` bytes, and parse its JSON object.

    Raises:
        NotUnderstood: The body cannot be decompressed or does not start with a JSON object.
    """
    data = memoryview(inflate(headers, body, limit))
    text = header(headers, JSON_LENGTH).strip()
    try:
        length = int(text) if text.isascii() and text.isdigit() else len(data)
    except ValueError as error:  # thousands of digits
        raise NotUnderstood(f"{JSON_LENGTH}: found {text[:20]}..., expected a length") from error
    if length > len(data) or (text and length == 0):
        raise NotUnderstood(f"{JSON_LENGTH}: found {text}, expected 1 to {len(data)}")
    try:
        document = json.loads(bytes(data[:length]))
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise NotUnderstood("the body is not a JSON object")
    return TensorBody(document, data[length:])


def tensor_body(document: dict[str, Any], binary: Sequence[bytes]) -> tuple[Headers, bytes]:
    """Return a body of JSON and binary data, and the headers that describe it."""
    text = json.dumps(document).encode()
    length = ("Inference-Header-Content-Length", str(len(text)))
    return (*content_type((length,)), length), text + b"".join(binary)


def content_type(headers: Headers) -> Headers:
    """Return the Content-Type that the protocol demands for a body; empty if `headers` has one.

    Args:
        headers: All other headers of the request; they show whether the body has binary data.
    """
    if header(headers, "content-type"):
        return ()
    binary = bool(header(headers, JSON_LENGTH))
    return (("Content-Type", "application/octet-stream" if binary else "application/json"),)


def head_lines(method: str, target: str, server: object, headers: Headers) -> list[str]:
    """Return the first lines of an HTTP request. `Host` is `server` unless `headers` has it."""
    host = () if header(headers, "host") else (("Host", server),)
    fields = (f"{name}: {value}" for name, value in (*host, *headers))
    return [f"{method} {target} HTTP/1.1", *fields]


def json_of(headers: Headers, data: Body) -> bytes:
    """Return the JSON at the start of a decompressed body, without the binary data."""
    length = header(headers, JSON_LENGTH).strip()
    end = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None
    return bytes(data[:end])


def sequence_of(headers: Headers, body: Body, limit: int = MAX_UNPACKED) -> str:
    """Return the correlation id of a request as text, or "" if it belongs to no sequence."""
    if not header(headers, "content-encoding"):
        # This search costs less than parsing, and skips the binary data.
        text = json_of(headers, body)
        if b'"sequence_id"' not in text and b"\\u" not in text:
            return ""
    try:
        found = _object(read_body(headers, body, limit).document, "parameters").get("sequence_id")
    except NotUnderstood:
        return ""
    return "" if found in (None, 0, "") else str(found)


def _objects(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise NotUnderstood(f"{key}: expected a list of objects")
    return found


def _object(document: dict[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    if found is None:  # KServe writes null for no parameters
        return {}
    if not isinstance(found, dict):
        raise NotUnderstood(f"{key}: expected an object")
    return found
