"""The heads of replies: lines and their order as those of Triton's HTTP library."""

from __future__ import annotations

from collections.abc import Sequence

Header = tuple[bytes, bytes]


def head(
    version: str,
    keep_alive: bool,
    status: bytes,
    content_type: bytes | None,
    headers: Sequence[Header],
    length: int,
) -> bytes:
    """The head of a reply with `length` bytes; `headers` stand between the type and the length.

    Without a `content_type` the type is plain text and goes last.
    """
    old = version == "1.0"
    lines = [b"HTTP/%b %b" % (version.encode(), status)]
    if content_type is not None:
        lines.append(b"Content-Type: " + content_type)
    lines.extend(b"%b: %b" % header for header in headers)
    if length:
        lines.append(b"Content-Length: %d" % length)
    if keep_alive is old:  # each version names what is not its default
        lines.append(b"Connection: keep-alive" if old else b"Connection: close")
    if not length and (keep_alive or not old):
        lines.append(b"Content-Length: 0")
    if content_type is None:
        lines.append(b"Content-Type: text/plain")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def chunked(version: str, keep_alive: bool, status: bytes, content_type: bytes) -> bytes:
    """The head of a reply that comes in chunks; also, as in Triton, to a client of HTTP/1.0."""
    old = version == "1.0"
    lines = [
        b"HTTP/%b %b" % (version.encode(), status),
        b"Content-Type: " + content_type,
        b"Transfer-Encoding: chunked",
    ]
    if keep_alive is old:
        lines.append(b"Connection: keep-alive" if old else b"Connection: close")
    return b"\r\n".join([*lines, b"", b""])
