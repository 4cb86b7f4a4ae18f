"""Generated captures: reproducible, with sizes by the histogram and arrivals by the rate."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_replay.__main__ import main
from triton_replay.capture.files import read_capture
from triton_replay.generating import Arrivals, Sizes, parse_input
from triton_replay.replaying.plan import plan_replay
from triton_replay.wire.answers import read_inputs

INPUTS = ("--input=ids:INT64:1,tokens=0..99", "--input=lengths:INT32:1,1=tokens")


@pytest.fixture
def sizes(tmp_path):
    path = tmp_path / "sizes.csv"
    path.write_text("tokens,count\n3,7\n500,0\n40,1\n")
    return path


def generate(output, *options):
    """Run the command; return its exit code."""
    return main(["generate", f"--output={output}", "--model=m", *options])


def test_a_seed_determines_all_bytes(tmp_path, sizes):
    a, b, c = (tmp_path / f"{name}.trc" for name in "abc")
    more = (*INPUTS, f"--sizes={sizes}", "--burst=3", "--swing=0.5")
    assert [generate(a, *more), generate(b, *more), generate(c, *more, "--seed=1")] == [0, 0, 0]
    assert a.read_bytes() == b.read_bytes() != c.read_bytes()


@pytest.mark.brute_force
def test_sizes_follow_the_histogram(tmp_path, sizes):
    path = tmp_path / "a.trc"
    assert generate(path, *INPUTS, f"--sizes={sizes}", "--rate=200") == 0
    capture = read_capture(path)
    assert capture.complaint == ""
    seen = Counter()
    for exchange in capture.exchanges:
        inputs = read_inputs(exchange.request.headers, exchange.request.body)
        (tokens,) = inputs["lengths"].values.ravel()
        assert inputs["ids"].shape == (1, tokens)
        assert inputs["ids"].values.min() >= 0
        assert inputs["ids"].values.max() <= 99
        seen[int(tokens)] += 1
    assert set(seen) == {3, 40}
    assert seen[3] / seen.total() == pytest.approx(7 / 8, abs=0.03)


def test_a_generated_capture_can_be_replayed(tmp_path):
    path = tmp_path / "a.trc"
    assert generate(path, "--input=t:BYTES:1=1..9", "--input=x:FP16:2,2", "--input=b:BOOL:1") == 0
    exchanges = read_capture(path).exchanges
    assert len(plan_replay(exchanges, 1.0).steps) == len(exchanges) > 50


@given(
    rate=st.floats(1, 500),
    burst=st.floats(1, 20),
    swing=st.floats(0, 1),
    period=st.floats(0.1, 100),
    seed=st.integers(0, 2**64),
)
@settings(deadline=None)
def test_arrivals_are_ordered_within_the_time_and_reproducible(rate, burst, swing, period, seed):
    arrivals = Arrivals(rate, burst, swing, period)
    times = list(arrivals.times(2.0, random.Random(seed)))
    assert times == sorted(times) == list(arrivals.times(2.0, random.Random(seed)))
    assert all(0 <= time <= 2_000_000_000 for time in times)


@pytest.mark.parametrize(("burst", "swing"), [(1, 0), (5, 0), (1, 0.9), (5, 0.9)])
def test_the_mean_rate_holds_and_the_peak_is_in_the_middle_of_a_period(burst, swing):
    arrivals = Arrivals(50, burst, swing, 100)
    times = np.array(list(arrivals.times(100, random.Random(1)))) / 1e9
    assert len(times) / 100 == pytest.approx(50, rel=0.1)
    assert len(times) / len(set(times)) == pytest.approx(burst, rel=0.1)
    peak = np.count_nonzero((times > 25) & (times < 75)) / len(times)
    # The integral of 1 - swing cos over the half around the peak.
    assert peak == pytest.approx(0.5 + swing / np.pi, abs=0.06)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any), st.integers(0, 2**32))
def test_a_size_with_count_zero_is_never_drawn(counts, seed):
    sizes = Sizes(("n",), tuple((n,) for n in range(len(counts))), tuple(counts))
    assert counts[sizes.draw(random.Random(seed))["n"]] > 0


@given(st.integers(0, 127), st.integers(0, 127), st.integers(0, 2**32))
def test_integers_are_within_their_bounds(one, other, seed):
    low, high = sorted((one, other))
    plan = parse_input(f"x:INT8:4,3={low}..{high}", ())
    described, data = plan.make({}, random.Random(seed))
    values = np.frombuffer(data, np.int8)
    assert described["shape"] == [4, 3]
    assert values.size == 12
    assert low <= values.min() <= values.max() <= high


@pytest.mark.parametrize(
    ("option", "reported"),
    [
        ("--input=x", "expected NAME:DATATYPE:DIM"),
        ("--input=x:FP7:1", "expected NAME:DATATYPE:DIM"),
        ("--input=x:FP32:tokens", "found 'tokens', expected a number or an axis"),
        ("--input=x:INT8:1=300", "found 300, expected at most 127"),
        ("--input=x:INT8:1=9..2", "found 9 as LOW, expected at most 2"),
        ("--rate=0", "--rate: found 0"),
        ("--burst=0.5", "--burst: found 0.5"),
        ("--swing=2", "--swing: found 2"),
        ("--sizes=nowhere.csv", "nowhere.csv: cannot be read"),
    ],
)
def test_invalid_options_are_reported(option, reported, tmp_path, capsys):
    options = ["--input=y:FP32:1", option]
    assert generate(tmp_path / "a.trc", *options) == 2
    assert reported in capsys.readouterr().err


def test_an_invalid_histogram_is_reported_with_its_line(tmp_path, capsys):
    path = tmp_path / "sizes.csv"
    for text, reported in (
        ("3\n4\n", "expected a header"),
        ("tokens,count\n3,x\n", "line 2: found '3,x'"),
        ("tokens\n", "found no sizes"),
    ):
        path.write_text(text)
        assert generate(tmp_path / "a.trc", "--input=y:FP32:1", f"--sizes={path}") == 2
        assert reported in capsys.readouterr().err
