"""Errors: how a code stands before a nested text."""

import pytest

from reference_server.core import errors
from reference_server.core.errors import Code, ServerError


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (Code.UNKNOWN, "Unknown"),
        (Code.INTERNAL, "Internal"),
        (Code.NOT_FOUND, "Not found"),
        (Code.INVALID_ARG, "Invalid argument"),
        (Code.UNAVAILABLE, "Unavailable"),
        (Code.UNSUPPORTED, "Unsupported"),
        (Code.ALREADY_EXISTS, "Already exists"),
        (Code.CANCELLED, "Cancelled"),
    ],
)
def test_described_puts_the_name_of_the_code_first(code, name):
    assert ServerError(code, "why").described() == f"{name}: why"


def test_str_is_the_bare_message():
    assert str(errors.internal("why")) == "why"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (errors.invalid_arg, Code.INVALID_ARG),
        (errors.internal, Code.INTERNAL),
        (errors.not_found, Code.NOT_FOUND),
        (errors.unavailable, Code.UNAVAILABLE),
        (errors.unsupported, Code.UNSUPPORTED),
    ],
)
def test_short_names_carry_their_code(make, code):
    assert make("why").code is code
