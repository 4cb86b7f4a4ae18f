"""Numbers in texts, as C reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.core.numerals import leading_integer


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
def test_what_leads_a_text_counts(text, number):
    assert leading_integer(text) == number


@given(st.integers(-(2**63), 2**64), st.text("xyz .,", max_size=3))
def test_a_number_is_read_whatever_follows(number, rest):
    assert leading_integer(f"{number}{rest}") == number


def test_of_a_number_without_end_twenty_digits_count():
    assert leading_integer("9" * 5000) == 10**20 - 1
