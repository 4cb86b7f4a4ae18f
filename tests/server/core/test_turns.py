"""Long work in pieces, between which other threads run."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.core import turns

LISTS = st.lists(st.lists(st.integers(), max_size=9), max_size=30)


@pytest.fixture
def small_turns(monkeypatch):
    monkeypatch.setattr(turns, "ELEMENTS", 4)


@pytest.mark.parametrize("size", [0, 3, 4, 5, 8, 41])
def test_parts_follow_each_other(small_turns, size):
    items = list(range(size))
    parts = list(turns.slices(items))
    assert [one for part in parts for one in part] == items
    assert max(map(len, parts)) <= 4


@pytest.mark.parametrize("size", [0, 3, 4, 5, 41])
def test_names_are_sorted_however_many(small_turns, size):
    names = {str(number): number for number in range(size)}
    assert list(turns.ordered(names)) == sorted(names)


def test_each_of_very_many_comes_once():
    items = list(range(5_000))
    assert list(turns.spread(items)) == items
    assert turns.spread(items[:5]) == items[:5]


def test_lists_are_joined(small_turns):
    @given(LISTS)
    def joined(lists):
        assert turns.joined([*lists]) == [one for some in lists for one in some]

    joined()


def test_what_is_let_go_is_empty_where_it_was_long(small_turns):
    rows, numbers, short = [[1], [2, 3]] * 9, list(range(99)), [1, 2]
    turns.let_go({"a": rows, "b": {"c": numbers}, "d": short, "e": "text", "f": None})
    assert (rows, len(numbers) <= 4, short) == ([], True, [1, 2])


def test_the_collector_waits_for_the_last_who_makes_many_objects(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(turns.time, "monotonic", lambda: now_s[0])
    assert gc.isenabled()
    first, second = turns.uncollected(), turns.uncollected()
    for some in (first, second):
        some.__enter__()
    assert not gc.isenabled()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    with turns.uncollected():
        now_s[0] = 11.0
    assert gc.isenabled()  # it has waited for long
    second.__exit__(None, None, None)
    assert gc.isenabled()
