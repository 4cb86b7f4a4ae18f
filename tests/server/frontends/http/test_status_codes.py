"""Status lines, and the body of errors."""

import pytest

from reference_server.core.errors import Code
from reference_server.frontends.http import status_codes


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.UNKNOWN, b"400 Bad Request"),
        (Code.INTERNAL, b"500 Internal Server Error"),
        (Code.NOT_FOUND, b"404 Not Found"),
        (Code.INVALID_ARG, b"400 Bad Request"),
        (Code.UNAVAILABLE, b"503 Service Unavailable"),
        (Code.UNSUPPORTED, b"501 Not Implemented"),
        (Code.ALREADY_EXISTS, b"400 Bad Request"),
        (Code.CANCELLED, b"400 Bad Request"),
    ],
)
def test_each_code_has_a_status(code, status):
    assert status_codes.STATUS[code] == status


def test_every_code_has_a_status():
    assert status_codes.STATUS.keys() == set(Code)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ("Not Found", b'{"error":"Not Found"}'),
        ('a "b"\n', rb'{"error":"a \"b\"\n"}'),
        ("数", '{"error":"数"}'.encode()),
        ("", b'{"error":""}'),
    ],
)
def test_body(message, body):
    assert status_codes.body(message) == body
