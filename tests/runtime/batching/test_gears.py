import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.batching.gear_sets import LIMIT, ROW_LIMIT, tables

from ge_runtime.batching.gears import ROWS, Gear, Gears

AXES = ("a", "b")
# One more than the limits: no gear may hold these.
sizes = st.tuples(st.integers(1, ROW_LIMIT + 1), *(st.integers(1, LIMIT + 1) for _ in AXES))


def gears_of(drawn, equal=()):
    return Gears(AXES, dict.fromkeys(AXES, LIMIT), ROW_LIMIT, drawn, equal)


def elements(gear):
    return gear.rows * math.prod(gear.extents.values())


def all_that_hold(drawn, rows, extents, equal=()):
    """Find the gear by its definition: all combinations of points, free axes as requested."""
    limits = {ROWS: ROW_LIMIT, **dict.fromkeys(AXES, LIMIT)}
    asked = {ROWS: rows, **extents}
    for points in product(*drawn.values()):
        declared = {
            axis: size
            for key, point in zip(drawn, points, strict=True)
            for axis, size in zip(key, point, strict=True)
        }
        exact = all(extents[axis] == declared.get(axis, extents[axis]) for axis in equal)
        if exact and all(size <= declared.get(axis, limits[axis]) for axis, size in asked.items()):
            chosen = {**asked, **declared}
            yield Gear(chosen.pop(ROWS), chosen)


equal_axes = st.sampled_from([(), ("a",), ("b",), AXES])
"""Subsets of axes that are not padded."""


@given(tables(AXES), sizes, equal_axes)
def test_fit_returns_the_holding_gear_with_the_fewest_elements(drawn, size, equal):
    rows, *own = size
    extents = dict(zip(AXES, own, strict=True))
    fitted = gears_of(drawn, equal).fit(rows, extents)
    holding = list(all_that_hold(drawn, rows, extents, equal))
    assert (fitted in holding) if holding else (fitted is None)
    if holding:
        assert elements(fitted) == min(map(elements, holding))


@pytest.mark.brute_force
@given(
    tables(AXES), equal_axes, st.lists(sizes, min_size=1, max_size=5), st.lists(sizes, min_size=1)
)
def test_fit_many_agrees_with_fit_for_arrays_that_broadcast(drawn, equal, across, down):
    gears = gears_of(drawn, equal)
    rows = np.array([[size[0]] for size in down])
    extents = {
        "a": np.array([[size[1] for size in across]]),
        "b": np.array([[size[2]] for size in down]),
    }
    fitted = gears.fit_many(rows, extents)
    shape = (len(down), len(across))
    held = np.broadcast_to(fitted.held, shape)
    found = [np.broadcast_to(part, shape) for part in (fitted.rows, *fitted.extents.values())]
    for i, j in np.ndindex(shape):
        gear = gears.fit(down[i][0], {"a": across[j][1], "b": down[i][2]})
        assert held[i, j] == (gear is not None)
        if gear is not None:
            assert [part[i, j] for part in found] == [gear.rows, *gear.extents.values()]


@pytest.mark.brute_force
@given(tables(AXES))
def test_every_lists_all_combinations_and_each_fits_itself(drawn):
    gears = gears_of(drawn)
    every = gears.every()
    assert len(every) == math.prod(len(set(points)) for points in drawn.values())
    assert [elements(gear) for gear in every] == sorted(map(elements, every))
    for gear in every:
        fitted = gears.fit(gear.rows, gear.extents)
        assert fitted is not None
        assert elements(fitted) == elements(gear)


@pytest.mark.brute_force
@given(tables(AXES))
def test_gears_are_fixed_when_tables_name_rows_and_all_axes(drawn):
    named = {axis for key in drawn for axis in key}
    assert gears_of(drawn).fixed == (named == {ROWS, *AXES})


def test_a_label_names_the_declared_sizes_of_a_gear():
    gears = Gears(AXES, {"a": 64, "b": 64}, 8, {(ROWS,): [(1,), (8,)], ("b",): [(16,), (64,)]})
    assert gears.label(Gear(8, {"a": 5, "b": 16})) == "batch 8, b 16"
    assert gears.label(Gear(8, {"a": 5, "b": 17})) is None
    assert Gears(AXES, {"a": 64, "b": 64}, 8, {}).label(Gear(8, {"a": 5, "b": 16})) is None


@pytest.mark.parametrize(
    ("rows", "sizes", "axis", "found", "expected"),
    [
        (1, (20, 5), "a", "a 20", "a size of gears.batch,a (16, 64): nothing is padded along it "
         "(padding.a: equal)"),
        (1, (16, 99), "b", "b 99", "1 to 64 (the largest of all gears)"),
        (4, (64, 5), ROWS, "4 rows of a 64, b 5",
         "at most 2 of that size: no gear of gears.batch,a holds more"),
        (9, (16, 5), ROWS, "9 rows", "1 to 8 (the largest of gears.batch,a)"),
    ],
)  # fmt: skip
def test_a_size_between_gears_of_an_axis_that_is_not_padded_is_explained(
    rows, sizes, axis, found, expected
):
    gears = Gears(AXES, dict.fromkeys(AXES, 64), 8, {(ROWS, "a"): [(8, 16), (2, 64)]}, ("a",))
    extents = dict(zip(AXES, sizes, strict=True))
    assert gears.fit(rows, extents) is None
    assert gears.explain_overflow(rows, extents) == (axis, found, expected)


def test_sizes_that_are_gears_only_separately_are_explained():
    gears = Gears(AXES, dict.fromkeys(AXES, 9), 8, {("a", "b"): [(4, 9), (9, 4)]}, AXES)
    assert gears.explain_overflow(1, {"a": 4, "b": 4}) == (
        "a",
        "a 4, b 4",
        "sizes that one gear of gears.a,b holds together without padding "
        "(padding.a: equal, padding.b: equal)",
    )


@given(st.integers(LIMIT, ROW_LIMIT * LIMIT), st.sampled_from([(), ("a",)]))
def test_a_total_limits_rows_times_size(total, equal):
    gears = Gears(("a",), {"a": LIMIT}, ROW_LIMIT, {}, equal, totals={"a": total})
    every = gears.every()
    rows, extents = np.arange(1, ROW_LIMIT + 1)[:, None], np.arange(1, LIMIT + 1)[None]
    held = gears.fit_many(rows, {"a": extents}).held
    for count, size in product(range(1, ROW_LIMIT + 1), range(1, LIMIT + 1)):
        fits = count * size <= total
        assert gears.fit(count, {"a": size}) == (Gear(count, {"a": size}) if fits else None)
        assert held[count - 1, size - 1] == fits
        if not fits:
            axis, found, expected = gears.explain_overflow(count, {"a": size})
            assert (axis, found) == ("a", f"{count} row(s) of a {size}, {count * size} in total")
            assert expected == f"at most {total} in total (limit.total.a)"

        def terms(gear):
            return gear.rows, elements(gear), gear.rows * gear.extents["a"] ** 2

        # Memory that grows with rows, elements and squared elements is planned.
        for memory in product((0, 1, 7), repeat=3):
            needs = [
                sum(map(math.prod, zip(memory, terms(g), strict=True)))
                for g in (*every, Gear(count, {"a": size}))
            ]
            assert not fits or needs[-1] <= max(needs[:-1])
