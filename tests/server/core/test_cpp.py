"""The order of hash tables of libstdc++, compared with a C++ program, and leading integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.core.cpp import arranged, leading_integer

NAMES = st.lists(st.text(max_size=24), unique=True, max_size=60).map(tuple)


@pytest.mark.parametrize(
    ("inserted", "listed"),
    [
        ("", ""),
        ("INPUT0 INPUT1", "INPUT1 INPUT0"),
        ("INPUT1 INPUT0", "INPUT0 INPUT1"),
        ("input_ids attention_mask token_type_ids", "token_type_ids attention_mask input_ids"),
        # Thirteen buckets become 29 with the fourteenth name.
        ("a b c d e f g h i j k l m n o p", "o a b p h n d k c i f g e j l m"),
        (
            "start end ready corrid x y z 0 1 2 3 4 5 6",
            "6 start end 2 ready 3 5 corrid x y z 1 0 4",
        ),
    ],
)
def test_names_have_the_order_of_the_table(inserted, listed):
    assert arranged(tuple(inserted.split())) == tuple(listed.split())


@given(names=NAMES)
def test_names_can_be_added_to_a_listing(names):
    """The result is that of one table into which all names are inserted."""
    half = len(names) // 2
    assert arranged(names[half:], onto=arranged(names[:half])) == arranged(names)


@given(names=NAMES.filter(lambda names: len(names) <= 2))
def test_two_names_keep_their_order_through_two_tables(names):
    assert arranged(arranged(names)) == names


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        (" \t5 ", 5),
        ("5x", 5),
        ("0x10", 0),
        ("", None),
        ("-", None),
        ("- 5", None),
        ("٣", None),
    ],
)
def test_the_number_at_the_start_is_parsed(text, number):
    assert leading_integer(text) == number


def test_only_twenty_digits_are_used():
    assert leading_integer("9" * 5000) == 10**20 - 1
