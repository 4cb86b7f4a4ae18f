"""Verdicts on paired latencies: what chance explains is not claimed, what it does not is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_replay.comparing.paired import MIN_REQUESTS, STATISTICS, Sample, holm, judge

pytestmark = pytest.mark.brute_force

MS = 1e6


def asks(random, requests, count=4):
    """Latencies of one server that drift and stall: [requests, asks], in random order."""
    drift = np.exp(0.02 * random.standard_normal(requests).cumsum())[:, None]
    times = 2 * MS * drift * np.exp(0.15 * random.standard_normal((requests, count)))
    stalls = random.random((requests, count)) < 0.02
    return times + stalls * random.uniform(2 * MS, 20 * MS, (requests, count))


def sample(random, requests, change=lambda times: times):
    times = asks(random, requests)
    return Sample(times[:, :2], change(times[:, 2:]), times[:, :2])


def verdicts(samples, at_least=0.05):
    return {
        (name, effect.statistic): effect.verdict
        for name, effects in judge(samples, at_least).items()
        for effect in effects
        if effect.verdict
    }


@pytest.mark.brute_force
def test_a_server_does_not_differ_from_itself():
    random = np.random.default_rng(7)
    claims = [verdicts({f"m{i}": sample(random, 40) for i in range(5)}) for _ in range(6)]
    assert sum(map(bool, claims)) <= 1


@pytest.mark.brute_force
def test_a_constant_slowdown_is_found_and_a_speedup_as_well():
    random = np.random.default_rng(1)
    samples = {
        "slower": sample(random, 300, lambda times: 1.2 * times),
        "faster": sample(random, 300, lambda times: 0.8 * times),
        "equal": sample(random, 300),
    }
    found = verdicts(samples)
    assert found["slower", "p50"] == "slower"
    assert found["faster", "p50"] == "faster"
    assert not {name for name, _ in found} - {"slower", "faster"}
    (median, *_) = judge(samples, 0.05)["slower"]
    assert median.ratio == pytest.approx(1.2, abs=0.05)
    assert median.low < median.ratio < median.high
    assert median.b == pytest.approx(median.ratio * median.a)


@pytest.mark.brute_force
def test_rare_stalls_are_found_in_the_tail_only():
    random = np.random.default_rng(3)
    stalls = (np.arange(2000) % 75 == 0)[:, None] * 30 * MS
    calm = 2 * MS * np.exp(0.15 * random.standard_normal((1000, 4)))
    one = Sample(calm[:, :2], calm[:, 2:] + stalls[::2], calm[:, :2])
    assert set(verdicts({"m": one})) == {("m", "p99"), ("m", "slowest 0.5 %")}


@pytest.mark.parametrize("seed", [1, 27])
def test_stalls_of_less_than_one_percent_are_found_among_shorter_ones(seed):
    random = np.random.default_rng(seed)
    times = asks(random, 2000, 3)
    stalls = 30 * MS * (random.random((2000, 1)) < 1 / 150)
    one = Sample(times[:, :1], times[:, 1:2] + stalls, times[:, ::2])
    assert ("m", "slowest 0.5 %") in verdicts({"m": one})


def test_a_change_below_the_smallest_one_is_not_claimed():
    random = np.random.default_rng(1)
    samples = {"m": sample(random, 300, lambda times: 1.2 * times)}
    assert ("m", "p50") not in verdicts(samples, at_least=0.3)


def test_a_difference_between_two_copies_of_a_is_not_claimed_for_b():
    random = np.random.default_rng(1)
    times = asks(random, 400)
    a, second, b = times[:, :1], 1.2 * times[:, 1:2], 1.2 * times[:, 2:3]
    noisy = Sample(a, b, np.concatenate([a, second], axis=1))
    assert verdicts({"m": noisy}) == {}
    (median, *_) = judge({"m": noisy}, 0.05)["m"]
    assert median.noise == pytest.approx(1.2, abs=0.05)
    assert median.noise_bound > 1.2
    quiet = Sample(a, b, np.concatenate([a, times[:, 1:2]], axis=1))
    assert ("m", "p50") in verdicts({"m": quiet})


def test_a_difference_from_a_but_not_from_its_copy_is_not_claimed():
    random = np.random.default_rng(1)
    times = asks(random, 400, 3)
    slow, copy, b = 1.5 * times[:, :1], times[:, 1:2], times[:, 2:]
    assert ("m", "p50") in verdicts({"m": Sample(slow, b, np.concatenate([slow, slow], axis=1))})
    of_pair = Sample(slow, b, np.concatenate([slow, copy], axis=1))
    # Further models without noise, so that the usual difference of two servers is small.
    equal = {f"m{i}": Sample(copy, copy, np.repeat(copy, 2, axis=1)) for i in range(40)}
    assert verdicts({"m": of_pair, **equal}) == {}


def test_few_requests_have_no_verdict():
    random = np.random.default_rng(1)
    few = sample(random, MIN_REQUESTS - 1, lambda times: 10 * times)
    enough = sample(random, MIN_REQUESTS, lambda times: 10 * times)
    assert judge({"few": few}, 0.05) == {}
    assert [one.statistic for one in judge({"enough": enough}, 0.05)["enough"]] == [*STATISTICS]
    assert ("enough", "p50") in verdicts({"enough": enough})


@given(st.lists(st.floats(0, 1), max_size=20))
def test_corrected_probabilities_keep_the_order_and_bound_bonferroni(chances):
    corrected = holm(chances)
    assert all(p <= q <= min(1, p * len(chances)) for p, q in zip(chances, corrected, strict=True))
    order = sorted(range(len(chances)), key=chances.__getitem__)
    assert [corrected[at] for at in order] == sorted(corrected)


def test_the_correction_is_that_of_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
