"""The registry of families: their order, and what of them is shown for how long.

What names, labels and operations are refused is tested where models meet it, in the backends.
"""

import gc
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.core.telemetry import FamilyHead, MetricKind, Sample
from reference_server.observability.metric_registry import Histogram, MetricRegistry

COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
BUILT_IN = FamilyHead("nv_count", "built in", COUNTER)


def names(registry, **built_in):
    return [family.head.name for family in registry.read(built_in)]


def values(registry):
    return {
        (family.head.name, *sample.labels): sample.value
        for family in registry.read({})
        for sample in family.samples
    }


def test_families_are_sorted_by_type_and_then_by_age():
    registry = MetricRegistry([BUILT_IN, FamilyHead("nv_gauge", "", GAUGE)])
    for name, kind in (("h", HISTOGRAM), ("z", GAUGE), ("a", GAUGE), ("c", COUNTER)):
        registry.hold(name, "", kind)
    assert names(registry) == ["nv_count", "c", "nv_gauge", "z", "a", "h"]


def test_a_family_keeps_its_position_and_its_description():
    registry = MetricRegistry()
    first = registry.hold("first", "one", GAUGE)
    registry.hold("second", "two", GAUGE)
    first.release()
    registry.hold("first", "other", GAUGE).series({}, ())
    assert [family.head.description for family in registry.read({})] == ["one", "two"]
    assert values(registry) == {("first",): 0}


def test_a_family_can_have_series_of_the_server_and_of_models():
    registry = MetricRegistry([BUILT_IN])
    hold = registry.hold("nv_count", "ignored", COUNTER)
    hold.series({"a": "b"}).increment(1)
    (family,) = registry.read({"nv_count": [Sample((), 7)]})
    assert family.head is BUILT_IN
    assert list(family.samples) == [Sample((), 7), Sample((("a", "b"),), 1)]


def test_a_series_is_shown_until_its_last_hold_is_released():
    registry = MetricRegistry()
    holds = [registry.hold("x", "", GAUGE) for _ in range(2)]
    for hold in holds:
        hold.series({}).increment(1)
    holds[0].release()
    assert values(registry) == {("x",): 2}
    holds[1].release()
    assert values(registry) == {}


class Doomed:
    """An object that holds a series until the garbage collector frees it."""

    def __init__(self, registry):
        self.itself = self
        self._hold = registry.hold("x", "", GAUGE)
        self._hold.series({"of": "doomed"})

    def __del__(self):
        self._hold.release()


@pytest.mark.brute_force
def test_the_collector_may_release_while_a_family_is_read():
    registry = MetricRegistry()
    hold = registry.hold("x", "", GAUGE)
    for number in range(100):
        hold.series({"of": str(number)})
    threshold = gc.get_threshold()
    gc.set_threshold(1)  # a collection at nearly every step, even while locks are held
    try:
        for _ in range(50):
            Doomed(registry)
            assert len(values(registry)) in (100, 101)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert len(values(registry)) == 100


def test_families_may_be_made_while_the_page_is_read():
    registry = MetricRegistry()
    kept = []

    def make(number):
        for index in range(200):
            hold = registry.hold(f"family_{number}_{index}", "", COUNTER)
            hold.series({"a": "b"}).increment(1)
            kept.append(hold)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert set(values(registry).values()) <= {0, 1}
    for thread in threads:
        thread.join()
    assert len(values(registry)) == 600


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), unique=True).map(sorted),
    st.lists(st.floats(allow_nan=False)),
)
def test_each_bucket_counts_the_values_up_to_its_bound(bounds, observed):
    histogram = Histogram(bounds)
    for value in observed:
        histogram.observe(value)
    read = histogram.read()
    assert read.buckets == tuple(
        (bound, sum(value <= bound for value in observed)) for bound in bounds
    )
    assert read.count == len(observed)
