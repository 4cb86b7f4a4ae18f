import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.planning import brute

from ge_runtime.planning.demand import Demand
from ge_runtime.planning.rivals import RIVALS, powers_of_two


def demand_of(counted, axes=("tokens",), **options):
    return Demand.of(brute.histogram_of(counted, axes), **options)


LENGTHS = {(size,): 1 for size in range(1, 101)}


@pytest.mark.parametrize(
    ("name", "gears"),
    [
        ("linear", ((32,), (56,), (80,), (104,))),
        ("quantiles", ((32,), (56,), (80,), (104,))),
        ("powers of two", ((16,), (32,), (64,), (104,))),
    ],
)
def test_gears_are_spread_and_aligned(name, gears):
    assert RIVALS[name](demand_of(LENGTHS, align=8), 4) == gears


def test_quantiles_hold_equal_shares():
    demand = demand_of({(5,): 50, (9,): 25, (40,): 25})
    assert RIVALS["quantiles"](demand, 2) == ((5,), (40,))
    assert RIVALS["quantiles"](demand, 4) == ((5,), (9,), (40,))


def test_several_axes_grow_together():
    demand = demand_of({(1, 30): 1, (4, 10): 1}, ("batch", "tokens"), align=8)
    assert RIVALS["linear"](demand, 2) == ((2, 16), (4, 32))
    assert RIVALS["quantiles"](demand, 2) == ((1, 16), (4, 32))
    assert RIVALS["powers of two"](demand, 3) == ((1, 8), (2, 16), (4, 32))


@given(st.integers(1, 5000), st.integers(1, 8))
def test_powers_of_two_halve_from_the_limit_down(limit, count):
    *smaller, largest = powers_of_two((limit,), count)
    assert largest == (limit,)
    assert len(smaller) < count
    assert all(size & (size - 1) == 0 and size < limit for (size,) in smaller)
    if smaller:  # none is so near to the limit that it would hardly be used
        assert limit / 3 < smaller[-1][0] < limit * 0.75


@given(
    st.dictionaries(st.tuples(st.integers(1, 99)), st.integers(1, 9), min_size=1),
    st.integers(1, 6),
    st.sampled_from((1, 8)),
    st.integers(0, 20),
)
def test_every_rival_has_the_limit_and_no_more_gears_than_asked_for(counted, count, align, spare):
    limit = max(counted)[0] + spare
    demand = demand_of(counted, limits={"tokens": limit}, align=align)
    for choose in RIVALS.values():
        *others, largest = choose(demand, count)
        assert largest == (limit,)
        assert len(others) < count
        assert all(size % align == 0 for (size,) in others)
