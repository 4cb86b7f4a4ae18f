"""Long work in pieces, between which other threads run."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.core import gil

LISTS = st.lists(st.lists(st.integers(), max_size=9), max_size=30)


@pytest.fixture
def small_slices(monkeypatch):
    monkeypatch.setattr(gil, "SLICE", 4)


@pytest.mark.parametrize("size", [0, 3, 4, 5, 8, 41])
def test_slices_are_consecutive(small_slices, size):
    items = list(range(size))
    parts = list(gil.slices(items))
    assert [item for part in parts for item in part] == items
    assert max(map(len, parts)) <= 4


@pytest.mark.parametrize("size", [0, 3, 4, 5, 41])
def test_any_number_of_names_is_sorted(small_slices, size):
    names = {str(number): number for number in range(size)}
    assert list(gil.sorted_names(names)) == sorted(names)


def test_each_of_many_items_is_yielded_once():
    items = list(range(5_000))
    assert list(gil.with_pauses(items)) == items
    assert gil.with_pauses(items[:5]) == items[:5]


def test_lists_are_concatenated(small_slices):
    @given(LISTS)
    def check(lists):
        assert gil.concatenate([*lists]) == [item for part in lists for item in part]

    check()


def test_free_empties_long_lists(small_slices):
    rows, numbers, short = [[1], [2, 3]] * 9, list(range(99)), [1, 2]
    gil.free({"a": rows, "b": {"c": numbers}, "d": short, "e": "text", "f": None})
    assert (rows, len(numbers) <= 4, short) == ([], True, [1, 2])


def test_gc_resumes_after_the_last_user_or_a_long_pause(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(gil.time, "monotonic", lambda: now_s[0])
    assert gc.isenabled()
    first, second = gil.without_gc(), gil.without_gc()
    for user in (first, second):
        user.__enter__()
    assert not gc.isenabled()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    with gil.without_gc():
        now_s[0] = 11.0
    assert gc.isenabled()  # after a long pause, though `second` is still in use
    second.__exit__(None, None, None)
    assert gc.isenabled()
