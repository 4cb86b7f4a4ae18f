"""Bodies of HTTP requests and responses: compression, JSON, and the tensors in bytes after it.

The binary data extension puts JSON first, whose length a header says, and after it the bytes of
those tensors that have a `binary_data_size`, in their order.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

Headers = tuple[tuple[str, str], ...]
Body = bytes | bytearray | memoryview

JSON_LENGTH: Final = "inference-header-content-length"
INFERENCE: Final = re.compile(
    r"^/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?"
    r"/(?P<verb>infer|generate|generate_stream)$"
)
"""The paths whose requests are executed by a model."""


class NotUnderstood(Exception):
    """The body is not what its headers or the protocol say."""


@dataclass(frozen=True)
class TensorBody:
    """A body with JSON first, decompressed."""

    document: dict[str, Any]
    binary: memoryview

    def tensors(self) -> Iterator[tuple[dict[str, Any], memoryview | None]]:
        """Each input or output, and its bytes if they are after the JSON. Raises NotUnderstood."""
        offset = 0
        for key in ("inputs", "outputs"):
            for tensor in _objects(self.document, key):
                size = _object(tensor, "parameters").get("binary_data_size")
                if size is None:
                    yield tensor, None
                    continue
                if type(size) is not int or not 0 <= size <= len(self.binary) - offset:
                    raise NotUnderstood(f"binary_data_size {size!r} is more than there is")
                yield tensor, self.binary[offset : offset + size]
                offset += size


def header(headers: Headers, name: str) -> str:
    """The value of a header, by its name in lower case; empty without one."""
    return next((value for key, value in headers if key.lower() == name), "")


def inflate(headers: Headers, body: Body) -> Body:
    """The body as it was before its compression. Raises NotUnderstood."""
    encoding = header(headers, "content-encoding").strip().lower()
    try:
        if encoding in ("", "identity"):
            return body
        if encoding == "gzip":
            return gzip.decompress(body)
        if encoding == "deflate":
            return zlib.decompress(body)
    except (OSError, EOFError, zlib.error) as error:
        raise NotUnderstood(f"the body is no {encoding}: {error}") from error
    raise NotUnderstood(f"content-encoding {encoding!r} is unknown")


def read_body(headers: Headers, body: Body) -> TensorBody:
    """Read a JSON object and what follows it. Raises NotUnderstood."""
    data = memoryview(inflate(headers, body))
    text = header(headers, JSON_LENGTH).strip()
    try:
        length = int(text) if text.isascii() and text.isdigit() else len(data)
    except ValueError as error:  # thousands of digits
        raise NotUnderstood(f"{JSON_LENGTH} is {text[:20]}...") from error
    if length > len(data) or (text and length == 0):
        raise NotUnderstood(f"{JSON_LENGTH} is {text}, of {len(data)} bytes")
    try:
        document = json.loads(bytes(data[:length]))
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(f"the body is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise NotUnderstood("the body is no JSON object")
    return TensorBody(document, data[length:])


def sequence_of(headers: Headers, body: Body) -> str:
    """The correlation id of a request as text; empty where it is of no sequence."""
    if b'"sequence_id"' not in bytes(body[:4096]) and not header(headers, "content-encoding"):
        return ""
    try:
        found = _object(read_body(headers, body).document, "parameters").get("sequence_id")
    except NotUnderstood:
        return ""
    return "" if found in (None, 0, "") else str(found)


def _objects(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise NotUnderstood(f"{key} is no list of objects")
    return found


def _object(document: dict[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key, {})
    if not isinstance(found, dict):
        raise NotUnderstood(f"{key} is no object")
    return found
