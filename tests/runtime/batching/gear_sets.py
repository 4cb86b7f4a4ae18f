"""Gear sets of all kinds for property tests, small enough to try every size and every partition."""

from hypothesis import strategies as st

from ge_runtime.batching.cost import CostModel
from ge_runtime.batching.gears import ROWS, Gears

LIMIT = 9
ROW_LIMIT = 8


def tables(axes):
    """Tables over some of `axes` and the rows: of one axis, joint, or none.

    Half of them hold every size up to the limits.
    """
    largest = {ROWS: ROW_LIMIT, **dict.fromkeys(axes, LIMIT)}

    def points(key):
        point = st.tuples(*(st.integers(1, largest[axis]) for axis in key))
        last = [tuple(largest[axis] for axis in key)]
        some = st.lists(point, min_size=1, max_size=4)
        return st.builds(lambda drawn, whole: drawn + last * whole, some, st.booleans())

    def split(order, cuts):
        """Split the axes in this order into the keys of tables; the last part stays free."""
        ends = sorted(cuts)
        return [tuple(order[a:b]) for a, b in zip([0, *ends], ends, strict=False) if a < b]

    names = [ROWS, *axes]
    cuts = st.lists(st.integers(0, len(names)), max_size=3)
    keys = st.builds(split, st.permutations(names), cuts)
    return keys.flatmap(lambda keys: st.fixed_dictionaries({key: points(key) for key in keys}))


def gear_sets(axes, equal=()):
    limits = dict.fromkeys(axes, LIMIT)
    return tables(axes).map(lambda drawn: Gears(axes, limits, ROW_LIMIT, drawn, equal))


def costs(*terms):
    """Draw models whose parts have similar weight at these sizes; each part may be 0."""
    launch = st.integers(0, 100).map(lambda units: units * 1e-3)
    element = st.integers(0, 4).map(lambda units: units * 0.5e-3)
    element2 = st.integers(0, 4).map(lambda units: units * 0.05e-3)
    growth = st.integers(0, 4).map(lambda units: units * 0.2e-3)
    return st.builds(CostModel, launch, element, element2, st.just(terms), growth)
