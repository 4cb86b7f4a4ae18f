import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.planning.histogram import LARGEST, Histogram, HistogramFault

sizes = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=40)


def histogram_of(entries, axes=("height", "width"), **options):
    histogram = Histogram(axes, **options)
    for entry in entries:
        histogram.add(entry)
    return histogram


@pytest.mark.parametrize(
    ("size", "count"), [((1, 2), 1), ((), 1), ((0,), 1), ((LARGEST + 1,), 1), ((3,), 0)]
)
def test_invalid_sizes_are_refused(size, count):
    with pytest.raises(ValueError, match="expected a size from 1 to 2147483647 for each of tokens"):
        Histogram(["tokens"]).add(size, count)


@given(sizes, st.integers(1, 12))
def test_more_sizes_than_capacity_are_rounded_up_to_steps(entries, capacity):
    histogram = histogram_of(entries, capacity=capacity)
    assert histogram.total == len(entries)
    assert len(histogram.counts()) <= capacity
    steps = histogram.steps
    rounded = [
        tuple(-(-size // step) * step for size, step in zip(entry, steps, strict=True))
        for entry in entries
    ]
    assert histogram.counts() == Counter(rounded)


def test_the_axis_with_more_sizes_is_rounded_first():
    histogram = histogram_of([(size, 5) for size in range(1, 101)], capacity=60)
    assert histogram.steps == (2, 1)


def test_threads_lose_no_counts():
    histogram = Histogram(["tokens"], capacity=50)
    start = threading.Barrier(4)

    def record():
        start.wait()
        for size in range(1, 1001):
            histogram.add((size,))

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert histogram.total == 4000


@given(sizes, sizes)
def test_merge_equals_adding_all_sizes_to_one(left, right):
    merged = histogram_of(left)
    merged.merge(histogram_of(right))
    assert merged.counts() == Counter(left + right)


def test_merge_uses_the_coarser_steps_and_keeps_to_the_capacity():
    coarse = histogram_of([(size,) for size in range(1, 9)], axes=["tokens"], capacity=2)
    merged = histogram_of([(3,), (6,)], axes=["tokens"])
    merged.merge(coarse)
    assert merged.steps == (4,)
    assert merged.counts() == {(4,): 5, (8,): 5}
    coarse.merge(histogram_of([(9,)], axes=["tokens"]))
    assert coarse.counts() == {(8,): 8, (16,): 1}


def test_merge_with_itself_doubles_the_counts():
    histogram = histogram_of([(7,)], axes=["tokens"])
    histogram.merge(histogram)
    assert histogram.counts() == {(7,): 2}


def test_projection_keeps_axes_in_order_and_steps():
    histogram = Histogram(["height", "width", "depth"])
    histogram.add((2, 3, 4), 5)
    histogram.add((2, 9, 4), 1)
    assert histogram.project(["depth", "height"]).counts() == {(4, 2): 6}
    histogram = histogram_of([(size, 7) for size in range(1, 9)], capacity=4)
    assert histogram.project(["width", "height"]).steps == (1, 2)


def test_projection_without_batch_counts_each_row():
    histogram = Histogram(["batch", "tokens"])
    histogram.add((4, 10), 2)
    histogram.add((1, 10))
    assert histogram.project(["tokens"]).counts() == {(10,): 9}
    assert histogram.project(["batch"]).counts() == {(4,): 2, (1,): 1}


def test_other_axes_are_refused():
    with pytest.raises(HistogramFault, match=r"found no axis 'c', expected one of: a, b"):
        Histogram(["a", "b"]).project(["c"])
    for compare in (Histogram.merge, Histogram.drift):
        with pytest.raises(HistogramFault, match=r"found axes \['b'\], expected \['a'\]"):
            compare(Histogram(["a"]), Histogram(["b"]))


@given(sizes, sizes)
def test_drift_is_a_distance(left, right):
    a, b = histogram_of(left), histogram_of(right)
    assert 0 <= a.drift(b) <= 1
    assert a.drift(b) == b.drift(a)
    assert a.drift(histogram_of(left * 3)) == pytest.approx(0)


def test_drift_is_the_largest_difference_of_cumulative_shares():
    planned = histogram_of([(1,), (2,), (3,), (4,)], axes=["tokens"])
    assert histogram_of([(9,)], axes=["tokens"]).drift(planned) == 1
    assert histogram_of([(1,), (2,), (3,), (9,)], axes=["tokens"]).drift(planned) == 0.25
    assert histogram_of([(3,), (4,)], axes=["tokens"]).drift(planned) == 0.5


def test_drift_detects_changed_combinations_of_axes():
    planned = histogram_of([(1, 9), (9, 1)])
    observed = histogram_of([(1, 1), (9, 9)])
    assert observed.drift(planned) == 0.5  # of 1 and 81 elements instead of twice 9


def test_an_empty_histogram_has_no_drift():
    planned = histogram_of([(1,)], axes=["tokens"])
    assert Histogram(["tokens"]).drift(planned) == 0
    assert planned.drift(Histogram(["tokens"])) == 0


def test_rounding_causes_no_drift():
    entries = [(size,) for size in range(1, 65)]
    exact = histogram_of(entries, axes=["tokens"])
    coarse = histogram_of(entries, axes=["tokens"], capacity=8)
    assert coarse.drift(exact) == 0
    assert exact.drift(coarse) == 0


@given(sizes, st.integers(1, 12))
def test_save_and_load(entries, capacity):
    histogram = histogram_of(entries, capacity=capacity)
    with tempfile.TemporaryDirectory() as folder:
        histogram.save(Path(folder, "histogram.json"))
        loaded = Histogram.load(Path(folder, "histogram.json"))
    assert (loaded.axes, loaded.steps) == (histogram.axes, histogram.steps)
    assert loaded.counts() == histogram.counts()


def test_a_save_replaces_the_file_and_a_failed_one_keeps_it(tmp_path, monkeypatch):
    path = tmp_path / "histogram.json"
    histogram = histogram_of([(3, 4)])
    histogram.save(path)
    histogram.add((5, 6))
    histogram.save(path)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        histogram_of([(5, 6)]).save(path)
    assert Histogram.load(path).counts() == {(3, 4): 1, (5, 6): 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "found list, expected an object"),
        ("{", "not a histogram"),
        ('{"axes": []}', r"axes: found \[\], expected a list of names"),
        ('{"axes": ["a"], "steps": [0]}', r"steps: found \[0\], expected one for each of \['a'\]"),
        ('{"axes": ["a"]}', "counts: found None, expected a list"),
        (
            '{"axes": ["a"], "counts": [[1, 2], [1.5, 2]]}',
            r"counts\[1\]: found \[1.5, 2\], expected the sizes of \['a'\] and a count",
        ),
        ('{"axes": ["a"], "counts": [[9999999999, 1]]}', "expected a size from 1 to"),
    ],
)
def test_another_file_is_refused(tmp_path, text, message):
    path = tmp_path / "histogram.json"
    path.write_text(text)
    with pytest.raises(HistogramFault, match=message) as caught:
        Histogram.load(path)
    assert str(path) in str(caught.value)
