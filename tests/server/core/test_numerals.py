"""Numbers at the start of texts, parsed as in C."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.core.cpp import leading_integer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        ("-5", -5),
        ("+5", 5),
        (" \t5 ", 5),
        ("5x", 5),
        ("1.5", 1),
        ("1e3", 1),
        ("0x10", 0),
        ("007", 7),
        ("0", 0),
        ("", None),
        (" ", None),
        ("-", None),
        ("x5", None),
        ("- 5", None),
        ("٣", None),
    ],
)
def test_the_number_at_the_start_is_parsed(text, number):
    assert leading_integer(text) == number


@given(st.integers(-(2**63), 2**64), st.text("xyz .,", max_size=3))
def test_text_after_a_number_is_ignored(number, rest):
    assert leading_integer(f"{number}{rest}") == number


def test_only_twenty_digits_are_used():
    assert leading_integer("9" * 5000) == 10**20 - 1
