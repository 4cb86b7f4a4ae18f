"""The cost model: the time of an execution of given rows and sizes."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.batching.gear_sets import costs

from ge_runtime.batching.calibration import RELIABLE_WEIGHT
from ge_runtime.batching.cost import BATCH, MOST_GROWING, TRIAL, CostEvidence, CostModel, LiveCost

TERMS = [(), ((),), (("a",),), (("a",), ("a", "b")), (("a", "b"), ("b",), ())]
extent = st.integers(1, 4096)


@pytest.mark.parametrize(
    ("terms", "elements"),
    [((), 1), (((),), 1), ((("a",),), 3), ((("a",), ("a", "b")), 18), ((("a", "b"), ()), 16)],
)
def test_elements_add_up_the_products_of_the_terms(terms, elements):
    assert CostModel(0.0, 0.0, 0.0, terms).elements({"a": 3, "b": 5}) == elements


def test_seconds_are_the_launch_and_each_row_by_elements_their_square_and_the_rows():
    cost = CostModel(100.0, 10.0, 1.0, (("a",),))
    assert cost.seconds(4, {"a": 3}) == 100 + 4 * (10 * 3 + 1 * 9)
    growing = CostModel(100.0, 10.0, 1.0, (("a",),), growth_s=5.0)
    assert growing.seconds(4, {"a": 3}) == 100 + 4 * (10 * 3 + 1 * 9 + 5 * 2 * 3)


def test_a_graph_without_padding_computes_valid_elements_and_padded_pairs():
    cost = CostModel(100.0, 10.0, 1.0, (("a",),), growth_s=5.0)
    seconds = 100 + 7 * (10 + 5 * 2) + 4 * 3 * 3 * 1
    assert cost.seconds(4, {"a": 3}, valid=7) == seconds
    assert cost.seconds_many(np.array([4]), {"a": np.array([3])}, np.array([7])) == seconds


def test_rows_do_not_become_more_expensive_above_a_number():
    cost = CostModel(0.0, 0.0, 0.0, (), growth_s=1.0)
    most = cost.seconds(MOST_GROWING, {}) / MOST_GROWING
    assert cost.seconds(3 * MOST_GROWING, {}) == 3 * MOST_GROWING * most
    assert cost.seconds_many(np.array([3 * MOST_GROWING]), {}) == 3 * MOST_GROWING * most


@pytest.mark.brute_force
@given(
    st.sampled_from(TERMS).flatmap(lambda terms: costs(*terms)),
    st.lists(st.tuples(st.integers(1, 64), extent, extent), min_size=1),
)
def test_arrays_cost_the_same_as_their_elements(cost, sizes):
    rows, a, b = np.array(sizes).T
    many = cost.seconds_many(rows[:, None], {"a": a[:, None], "b": b})
    many = np.broadcast_to(many, (len(sizes), len(sizes)))
    for i, j in np.ndindex(many.shape):
        extents = {"a": sizes[i][1], "b": sizes[j][2]}
        assert many[i, j] == pytest.approx(cost.seconds(sizes[i][0], extents), rel=1e-12)


@pytest.mark.brute_force
@given(costs(("a",), ("a", "b")), st.integers(1, 64), extent, extent)
def test_more_rows_or_elements_never_take_less(cost, rows, a, b):
    least = cost.seconds(rows, {"a": a, "b": b})
    assert least >= cost.launch_s
    assert cost.seconds(rows + 1, {"a": a, "b": b}) >= least
    assert cost.seconds(rows, {"a": a + 1, "b": b}) >= least
    assert cost.seconds(rows, {"a": a, "b": b + 1}) >= least


TOKENS = (("tokens",),)
CALIBRATED = CostModel(1e-3, 1e-5, 0.0, TOKENS)
SIZES = [(rows, tokens) for rows in (1, 2, 8, 32) for tokens in (16, 64, 256)]


def evidence_of(cost):
    rows, tokens = zip(*SIZES, strict=True)
    seconds = [cost.seconds(n, {"tokens": count}) for n, count in SIZES]
    evidence = CostEvidence()
    evidence.add(rows, tokens, seconds, weight=RELIABLE_WEIGHT / len(SIZES))
    return evidence


def calibrated(cost=CALIBRATED):
    return LiveCost(cost, evidence_of(cost))


def serve(live, cost, batches, sizes=SIZES, noise=0.0, seed=0):
    """Observe executions with the times of `cost` and noise; return how often the model changed."""
    rng = np.random.default_rng(seed)
    changes = 0
    for number in range(batches * BATCH):
        rows, tokens = sizes[number % len(sizes)]
        seconds = cost.seconds(rows, {"tokens": tokens}) * math.exp(noise * rng.normal())
        changes += live.observe(rows, {"tokens": tokens}, seconds, shared=rows > 1)
    return changes


def gain_of_two(cost, tokens):
    """Return the time of two rows together divided by that of both alone."""
    return 2 * cost.seconds(1, {"tokens": tokens}) / cost.seconds(2, {"tokens": tokens})


def test_valid_elements_correct_the_model_of_a_graph_without_padding():
    served = CostModel(1e-3, 3e-5, 2e-7, TOKENS)
    live = calibrated()
    for number in range(60 * BATCH):
        rows, tokens = SIZES[number % len(SIZES)]
        valid = rows * tokens // (1 + number // len(SIZES) % 3)
        seconds = served.seconds(rows, {"tokens": tokens}, valid)
        live.observe(rows, {"tokens": tokens}, seconds, shared=rows > 1, valid=valid)
    for rows, tokens in SIZES:
        expected = served.seconds(rows, {"tokens": tokens}, rows * tokens // 2)
        found = live.cost.seconds(rows, {"tokens": tokens}, rows * tokens // 2)
        assert found == pytest.approx(expected, rel=0.1)


def test_a_given_cost_does_not_change():
    live = LiveCost(CALIBRATED)
    assert serve(live, CALIBRATED.scaled(3), 3) == 0
    assert live.cost is CALIBRATED
    assert not live.learned
    assert live.as_json() is None


def test_the_model_is_fitted_after_each_batch_of_executions():
    live = calibrated()
    assert serve(live, CALIBRATED, 3) == 3
    assert live.learned
    assert live.drift == pytest.approx(1.0)
    for rows, tokens in SIZES:
        expected = CALIBRATED.seconds(rows, {"tokens": tokens})
        assert live.cost.seconds(rows, {"tokens": tokens}) == pytest.approx(expected, rel=1e-4)


def test_a_slower_machine_is_followed_and_changes_no_comparison():
    live = calibrated()
    # Only one of all sizes: the prediction of the others must not change relative to it.
    serve(live, CALIBRATED.scaled(2.5), 12, sizes=[(32, 16)])
    assert live.drift == pytest.approx(2.5, rel=0.05)
    assert live.cost.seconds(32, {"tokens": 16}) == pytest.approx(
        2.5 * CALIBRATED.seconds(32, {"tokens": 16}), rel=0.05
    )
    for tokens in (16, 256):
        assert gain_of_two(live.cost, tokens) == pytest.approx(
            gain_of_two(CALIBRATED, tokens), rel=0.1
        )


def executed_alone(assumed, true, executions, noise=0.1):
    """Plan and observe requests of one size, two at a time, by a model that starts as `assumed`.

    Returns the trials, and when a plan first joined two requests.
    """
    rng, size = np.random.default_rng(0), {"tokens": 64}
    live, trials = calibrated(assumed), 0
    for number in range(executions):
        if gain_of_two(live.cost, 64) > 1:
            return trials, number
        rows = 2 if live.trial_due else 1
        trials += rows - 1
        seconds = true.seconds(rows, size) * math.exp(noise * rng.normal())
        live.observe(rows, size, seconds, shared=rows > 1)
    return trials, None


STEEP = CostModel(5e-5, 0.0, 0.0, TOKENS, 3e-5)
"""A cost by which requests of any size lose by sharing an execution."""


def test_a_calibration_that_leads_to_single_executions_is_tried():
    flat = CostModel(3e-4, 1e-5, 0.0, TOKENS)
    trials, after = executed_alone(STEEP, flat, 20 * TRIAL)
    assert 1 <= trials <= 12
    assert after is not None


def test_requests_that_lose_by_sharing_are_executed_alone_except_in_trials():
    trials, after = executed_alone(STEEP, STEEP, 50 * TRIAL)
    assert after is None
    assert trials == 50 * TRIAL // (TRIAL + 1)


def test_the_real_gain_of_sharing_is_learned():
    true = CostModel(1e-4, 1e-5, 0.0, TOKENS, 4e-6)
    live = calibrated()
    assert gain_of_two(live.cost, 16) > 1.5
    serve(live, true, 48, noise=0.2)
    for tokens in (16, 64, 256):
        found, expected = gain_of_two(live.cost, tokens), gain_of_two(true, tokens)
        assert found == pytest.approx(expected, rel=0.1)


def test_noise_does_not_change_the_model():
    live = calibrated()
    serve(live, CALIBRATED, 200, sizes=[(1, 16), (1, 64)], noise=0.4)
    # Sizes that are not executed any more keep their cost relative to those that are.
    found, expected = gain_of_two(live.cost, 64), gain_of_two(CALIBRATED, 64)
    assert found == pytest.approx(expected, rel=0.15)
    assert 0.7 < live.cost.seconds(1, {"tokens": 64}) / CALIBRATED.seconds(1, {"tokens": 64}) < 1.4


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.integers(1, 512), st.floats(0, 100)),
        min_size=BATCH,
        max_size=BATCH,
    )
)
def test_the_model_stays_valid_for_any_times(executions):
    live = calibrated()
    for rows, tokens, seconds in executions:
        live.observe(rows, {"tokens": tokens}, seconds, shared=rows > 1)
    cost = live.cost
    parts = (cost.launch_s, cost.element_s, cost.element2_s, cost.growth_s)
    assert all(0 <= part < math.inf for part in parts)
    assert 0 < cost.seconds(64, {"tokens": 512}) < math.inf


def test_evidence_survives_a_file():
    live = calibrated()
    serve(live, CostModel(1e-4, 1e-5, 0.0, TOKENS, 4e-6), 10)
    kept = LiveCost.of_json(json.loads(json.dumps(live.as_json())), TOKENS)
    # The speed of the machine is measured again.
    assert kept.drift == 1.0
    assert kept.cost.scaled(live.drift) == live.cost
    assert not kept.learned


@pytest.mark.parametrize(
    "changes",
    [
        {"calibration": None},
        {"calibration": {}},
        {"served": {"products": [[1]], "sums": [1], "weight": 1}},
        {"calibration": {"products": "x", "sums": [1], "weight": 1}},
        {"calibration": CostEvidence().as_json()},
        {"served": {**CostEvidence().as_json(), "weight": math.nan}},
        {"served": {**CostEvidence().as_json(), "sums": [-1, 0, 0, 0]}},
        {"served": {**CostEvidence().as_json(), "sums": [math.inf, 0, 0, 0]}},
        {"served": {**CostEvidence().as_json(), "weight": None}},
    ],
)
def test_a_file_that_holds_something_else_is_refused(changes):
    with pytest.raises(ValueError, match="found"):
        LiveCost.of_json({**calibrated().as_json(), **changes}, TOKENS)
