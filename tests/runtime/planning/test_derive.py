from hypothesis import given
from hypothesis import strategies as st
from runtime.planning import brute

from ge_runtime.planning.demand import Demand
from ge_runtime.planning.derive import ENOUGH, derive
from ge_runtime.planning.histogram import Histogram
from ge_runtime.planning.optimum import optimum

LIMITS = {"tokens": 512, "batch": 64, "height": 300, "width": 100}


def test_without_a_histogram_gears_are_powers_of_two_up_to_the_limit():
    derived = derive(["tokens"], LIMITS, 4, None)
    assert derived.gears == ((64,), (128,), (256,), (512,))
    assert derived.how == (
        'gears.tokens = "64, 128, 256, 512": powers of two, because there is no histogram'
    )


def test_joint_axes_grow_together():
    assert derive(["batch", "tokens"], LIMITS, 3, None).gears == ((16, 128), (32, 256), (64, 512))
    assert derive(["height", "width"], LIMITS, 2, None).gears == ((128, 64), (300, 100))


def test_gears_are_planned_from_a_histogram():
    histogram = brute.histogram_of({(20,): 90, (70,): 30, (513,): 1}, ["tokens"])
    derived = derive(["tokens"], LIMITS, 3, histogram)
    assert derived.gears == ((20,), (70,), (512,))
    assert derived.how == (
        'gears.tokens = "20, 70, 512": 0.0% padding expected of 120 recorded sizes'
    )


def test_the_histogram_may_have_more_axes():
    histogram = brute.histogram_of({(1, 30): 60, (40, 200): 2}, ["batch", "tokens"])
    assert derive(["tokens"], LIMITS, 2, histogram).gears == ((200,), (512,))
    assert derive(["batch"], LIMITS, 2, histogram).how.endswith(
        "the histogram holds 62 sizes within the limit, fewer than 100"
    )


def test_too_few_sizes_are_not_planned_from():
    histogram = brute.histogram_of({(20,): ENOUGH - 1}, ["tokens"])
    derived = derive(["tokens"], LIMITS, 2, histogram)
    assert derived.gears == ((256,), (512,))
    assert derived.how.endswith(
        "powers of two, because the histogram holds 99 sizes within the limit, fewer than 100"
    )


def test_a_histogram_of_other_axes_is_named_in_the_reason():
    derived = derive(["tokens"], LIMITS, 2, Histogram(["height"]))
    assert derived.gears == ((256,), (512,))
    assert derived.how.endswith("found no axis 'tokens', expected one of: height")


@given(
    st.dictionaries(st.tuples(st.integers(1, 512)), st.integers(1, 99), max_size=20),
    st.integers(1, 6),
)
def test_the_largest_gear_is_the_limit(counted, count):
    derived = derive(["tokens"], LIMITS, count, brute.histogram_of(counted, ["tokens"]))
    assert derived.gears[-1] == (512,)
    assert len(derived.gears) <= count


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 300), st.integers(1, 100)), st.just(50), min_size=2, max_size=9
    )
)
def test_two_axes_are_planned_together(counted):
    histogram = brute.histogram_of(counted, ["height", "width"])
    assert derive(["height", "width"], LIMITS, 3, histogram).gears == optimum(
        Demand.of(histogram, limits=LIMITS), 3
    )
