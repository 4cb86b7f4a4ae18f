"""The pure parts of a load: levels, times, sequences, windows, statistics, metadata."""

import contextlib
import itertools
import random
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_replay.errors import ReplayError
from triton_replay.loading.levels import (
    CONCURRENCY,
    RATE,
    SHARES,
    Level,
    Range,
    Running,
    SequencePlan,
    Sequences,
    doubling,
    evenly,
    parse_range,
    poisson,
    read_intervals,
    repeated,
    shares_of,
)
from triton_replay.loading.statistics import between, of_one_request, read_page, read_statistics
from triton_replay.loading.tensors import model_of
from triton_replay.loading.windows import Stability, Streams, Window

SECOND = 10**9


def visited(levels, meets):
    """Return the levels that are tried if `meets` decides about the threshold."""
    values = []
    try:
        level = next(levels)
        while True:
            values.append(level.value)
            level = levels.send(meets(level.value))
    except StopIteration:
        return values


@pytest.mark.parametrize(
    ("text", "mode", "values"),
    [
        ("3", CONCURRENCY, [3]),
        ("1:4", CONCURRENCY, [1, 2, 3, 4]),
        ("1:8:3", CONCURRENCY, [1, 4, 7]),
        ("0.1:0.3:0.1", RATE, [0.1, 0.2, 0.3]),
    ],
)
def test_a_range_is_tried_up_to_its_end(text, mode, values):
    levels = parse_range(text, "--x", mode).linear()
    assert visited(levels, lambda _: True) == pytest.approx(values)


@pytest.mark.parametrize("text", ["", "x", "1:2:3:4", "0", "2:1", "1:2:0", "1.5", "-1", "1:nan"])
def test_an_invalid_range_is_reported(text):
    with pytest.raises(ReplayError, match="--x: found"):
        parse_range(text, "--x", CONCURRENCY)


def test_a_range_without_an_end_ends_at_the_threshold():
    levels = parse_range("1:0:2", "--x", CONCURRENCY).linear()
    assert visited(levels, lambda value: value < 6) == [1, 3, 5, 7]


@given(st.integers(1, 50), st.integers(1, 500), st.integers(0, 600))
def test_a_search_finds_the_largest_that_meets_the_threshold(start, more, limit):
    found = visited(
        Range(CONCURRENCY, start, start + more, 1).binary(), lambda value: value <= limit
    )
    met = [value for value in found if value <= limit]
    assert max(met, default=start) == max(min(limit, start + more), start)
    assert len(found) <= 12


def test_doubling_ends_when_the_rate_stops_growing():
    trying = doubling(100)
    tried = [next(trying)]
    with contextlib.suppress(StopIteration):
        while True:
            tried.append(trying.send(min(100 * tried[-1], 500)))
    assert tried == [1, 2, 4, 8, 16]
    trying = doubling(1)
    assert next(trying) == 1
    with pytest.raises(StopIteration):
        trying.send(100)


def test_shares_of_a_capacity_are_below_it():
    rates = visited(shares_of(1234.5), lambda _: True)
    assert rates == pytest.approx([share * 1234.5 for share in SHARES], rel=0.05)


def test_constant_times_do_not_drift():
    assert list(itertools.islice(evenly(3, 7), 4)) == [7, 7 + 333333333, 7 + 666666667, 7 + SECOND]
    assert next(itertools.islice(evenly(3, 0), 3 * 10**5, None)) == 10**5 * SECOND


def test_poisson_times_have_their_rate_and_are_reproducible():
    times = [list(itertools.islice(poisson(100, 5, random.Random(0)), 20000)) for _ in range(2)]
    assert times[0] == times[1] == sorted(times[0])
    assert times[0][-1] == pytest.approx(200 * SECOND, rel=0.03)


def test_intervals_repeat(tmp_path):
    path = tmp_path / "a"
    path.write_text("1000\n\n2.5\n")
    gaps = read_intervals(path)
    assert gaps == [1_000_000, 2500]
    assert list(itertools.islice(repeated(gaps, 1), 4)) == [1, 1000001, 1002501, 2002501]


@pytest.mark.parametrize("text", ["", "1\nx\n", "0\n", "-5\n", "inf\n"])
def test_invalid_intervals_are_reported_with_their_line(tmp_path, text):
    path = tmp_path / "a"
    path.write_text(text)
    with pytest.raises(ReplayError, match="expected microseconds"):
        read_intervals(path)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=200),
    st.one_of(st.none(), st.integers(1, 9)),
    st.sampled_from([None, 8]),
)
def test_sequences_start_and_end_and_share_no_id(turns, length, end):
    plan = SequencePlan([[0, 1, 2], [3]], length, 0.5, 5, end)
    source = Sequences(plan, random.Random(0))
    slots = [Running(source) for _ in range(3)]
    open_ids = {}
    for turn in turns:
        index, sequence, start, ends = slots[turn].step()
        assert start == (turn not in open_ids)
        assert 5 <= sequence < (end or 10**6)
        assert open_ids.setdefault(turn, sequence) == sequence
        assert len(set(open_ids.values())) == len(open_ids)
        assert index in range(4)
        if ends:
            del open_ids[turn]


def window(*latencies, seconds=1, failures=0):
    end = seconds * SECOND
    count = len(latencies)
    return Window(0, end, 0, count + failures, np.array(latencies, np.int64), failures)


def test_windows_are_stable_if_three_in_a_row_agree():
    rule = Stability(0.1, None, 0, 10)
    calm = [window(100, 100)] * 3
    assert rule.agree(calm)
    assert rule.agree([window(900), *calm])
    assert not rule.agree(calm[:2])
    assert not rule.agree([*calm, window(100, 100, 100)])  # requests per second
    assert not rule.agree([*calm, window(130, 130)])  # latency
    assert not rule.agree([*calm, window()])


def test_windows_can_be_compared_by_a_percentile():
    loud = [*[window(1, 1, 1, 9)] * 2, window(1, 1, 1, 90)]
    assert not Stability(0.1, None, 0, 10).agree(loud)
    assert Stability(0.1, 50, 0, 10).agree(loud)


def test_a_threshold_is_exceeded_by_three_windows_in_a_row():
    rule = Stability(0.1, None, 50, 10)
    assert rule.exceed([window(60)] * 3)
    assert not rule.exceed([window(60), window(60), window(40)])
    assert not Stability(0.1, None, 0, 10).exceed([window(60)] * 3)


def test_goodput_counts_requests_within_all_limits():
    starts, responses = [0, 0, 100], [[10, 20, 60], [30], [110, 120, 130]]
    streams = Streams.of(starts, [array("q", times) for times in responses])
    assert streams.last.tolist() == [60, 30, 30]
    assert sorted(streams.between) == [10, 10, 10, 40]
    latencies = np.array([10, 30, 10])
    for goals, good in (
        ({"first": 10}, 2),
        ({"last": 30}, 2),
        ({"between": 10}, 2),
        ({"between": 25, "first": 10}, 2),
        ({"between": 24, "first": 10}, 1),
        ({"last": 60}, 3),
    ):
        assert streams.good(goals, latencies) == good
    single = Streams.of(starts, [])
    assert single.good({"last": 10, "between": 1}, latencies) == 2
    assert single.good({"between": 1}, latencies) == 3
    assert len(single.last) == 0


def test_a_level_is_named_by_its_mode():
    assert next(Range(RATE, 5, 5, 1).linear()) == Level(RATE, 5)


# -- the server's statistics, metrics and metadata


def document(name, count, queue=0, infer=0):
    """Return statistics in the form of HTTP; with gRPC numbers are texts."""
    parts = {"success": queue + infer, "queue": queue, "compute_infer": infer}
    inferences = {part: {"count": count, "ns": str(1000 * ns)} for part, ns in parts.items()}
    stats = {"inference_count": count, "execution_count": str(count), "inference_stats": inferences}
    return {"model_stats": [{"name": name, "version": "1", **stats}]}


def test_statistics_are_microseconds_per_request():
    before = read_statistics([document("m", 10, queue=100, infer=50)])
    after = read_statistics([document("m", 14, queue=300, infer=90)])
    (side,) = between(before, after)
    assert (side.inferences, side.executions, side.successes) == (4, 4, 4)
    assert (side.parts["queue"], side.parts["compute_infer"], side.total) == (50, 10, 60)
    assert side.overhead == 0
    assert between(after, after) == []
    assert read_statistics([{}]) == {}


def test_an_ensemble_has_the_parts_of_all_its_steps():
    looks = [
        read_statistics([document("e", n), document("s", 2 * n, queue=6 * n, infer=4 * n)])
        for n in (1, 2)
    ]
    parts = of_one_request("e", between(*looks), ["s"])
    assert (parts["queue"], parts["compute_infer"]) == (6, 4)
    assert of_one_request("x", between(*looks), []) is None


def test_only_metrics_of_devices_are_read():
    page = """# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-2"} NaNa
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1e9
nv_cpu_utilization 1
nv_inference_count{model="m"} 3
"""
    assert read_page(page) == {
        "nv_gpu_utilization": {"GPU-1": 0.5},
        "nv_gpu_memory_used_bytes": {"GPU-1": 1e9},
    }


def test_a_model_without_a_configuration_has_no_batch_axis():
    metadata = {"inputs": [{"name": "X", "datatype": "FP32", "shape": ["-1", 2]}]}
    found = model_of("m", "3", metadata, {})
    assert found.inputs[0].shape == (-1, 2)
    assert (found.path, found.is_decoupled, found.steps) == ("/v2/models/m/versions/3", False, ())


@pytest.mark.parametrize("metadata", [{}, {"inputs": [{}]}, {"inputs": 3}])
def test_metadata_without_inputs_are_reported(metadata):
    with pytest.raises(ReplayError, match="-m m: metadata: expected inputs"):
        model_of("m", "", metadata, {})
