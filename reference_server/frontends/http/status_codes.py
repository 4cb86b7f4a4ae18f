"""The HTTP status of each internal code. No other module maps them."""

from __future__ import annotations

from reference_server.codecs.json_writer import write_string
from reference_server.core.errors import Code

OK = b"200 OK"
NOT_FOUND = b"404 Not Found"
#: The reason phrase of Triton's HTTP library.
NOT_ALLOWED = b"405 Not Allowed"
BAD_REQUEST = b"400 Bad Request"
FORBIDDEN = b"403 Forbidden"
#: The live page of another server cannot reach that server.
BAD_GATEWAY = b"502 Bad Gateway"

STATUS: dict[Code, bytes] = {
    Code.UNKNOWN: BAD_REQUEST,
    Code.INTERNAL: b"500 Internal Server Error",
    Code.NOT_FOUND: NOT_FOUND,
    Code.INVALID_ARG: BAD_REQUEST,
    Code.UNAVAILABLE: b"503 Service Unavailable",
    Code.UNSUPPORTED: b"501 Not Implemented",
    Code.ALREADY_EXISTS: BAD_REQUEST,
    Code.CANCELLED: BAD_REQUEST,
}


def body(message: str) -> bytes:
    """Return the body of an error reply."""
    return b'{"error":%b}' % write_string(message)
