"""The executions that a load check tries."""

from hypothesis import given
from hypothesis import strategies as st
from runtime.batching.gear_sets import LIMIT, ROW_LIMIT, tables
from runtime.support.configs import edges_config, encoder_config, model_config, tensor
from runtime.support.parsing import parse

from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.verification.plan import MOST_FLOPS, Trial, plan_of, served_gear

AXES = ("height", "width")
RULES = st.sampled_from(["equal", "neutral"])


def model_of(config):
    config = parse(config)
    gears = Gears(tuple(config.limits), config.limits, config.rows, config.gears, config.equal_axes)
    return config, gears


def plan(config, flops=lambda gear: None):
    return plan_of(*model_of(config), flops)


@given(tables(AXES), st.tuples(RULES, RULES))
def test_every_trial_is_an_execution_of_serving(drawn, rules):
    written = {
        ",".join(axes): ",".join("x".join(map(str, point)) for point in {*points})
        for axes, points in drawn.items()
    }
    config, gears = model_of(
        edges_config(
            {f"padding.{axis}": rule for axis, rule in zip(AXES, rules, strict=True)}
            | {f"limit.{axis}": str(LIMIT) for axis in AXES}
            | {f"gears.{axes}": points for axes, points in written.items()}
            | {"oversize": "fallback"},
            batch=ROW_LIMIT,
        )
    )
    found = plan_of(config, gears)
    assert found == plan_of(config, gears)
    for trial in found.trials:
        assert served_gear(config, gears, trial.requests) == trial.gear
        assert len(trial.requests) <= trial.gear.rows


def test_free_axes_are_tried_at_five_sizes_with_odd_requests():
    found = plan(encoder_config({"limit.tokens": "128"}))
    assert not found.reduced
    assert [trial.gear.extents["tokens"] for trial in found.trials] == [4, 16, 41, 64, 128]
    probes = {sizes["tokens"] for trial in found.trials for sizes in trial.probes}
    assert {1, 127} <= probes
    assert probes & {7, 19, 31, 61}


def test_one_row_and_free_axes_are_not_padded():
    found = plan(encoder_config({"gears.batch": "1"}))
    assert found.trials
    for trial in found.trials:
        assert len(trial.requests) == 1
        assert not trial.padded


def test_one_row_in_a_gear_is_padded():
    (trial, *_) = plan(encoder_config({"gears.batch": "1", "gears.tokens": "32"})).trials
    assert trial == Trial(Gear(1, {"tokens": 32}), ({"tokens": 1},))
    assert trial.padded


def test_a_reduced_plan_keeps_within_its_work_and_names_the_rest():
    found = plan(encoder_config(), lambda gear: gear.rows * gear.extents["tokens"] * 45 * 10**6)
    assert found.reduced
    assert 0 < found.flops <= MOST_FLOPS
    assert found.left_out == ("4 row(s), tokens 16 (work)",)


def test_unknown_operations_are_estimated_from_weights_and_positions():
    config = encoder_config({"limit.tokens": "128"})
    model, gears = model_of(config)
    found = plan_of(model, gears, weights_bytes=400)
    assert not found.analysed
    assert found.flops == 200 * plan(config).flops
    assert plan(config, lambda gear: 1).analysed
    assert not plan_of(model, gears, weights_bytes=10**9).analysed


def test_more_gears_than_fit_a_plan_are_named():
    gears = {"gears.tokens": ", ".join(map(str, range(1, 33)))}
    found = plan(encoder_config(gears))
    assert found.left_out == ("24 gear(s) between these",)
    assert {1, 31, 32} <= {trial.gear.extents["tokens"] for trial in found.trials}


def test_sizes_obey_min_and_align():
    config = model_config(
        [tensor("x", "FP32", [-1])],
        [tensor("y", "FP32", [-1])],
        {"axes.x": "n", "axes.y": "n", "limit.n": "96", "min.n": "20", "align.n": "32"}
        | {"padding.n": "neutral"},
    )
    for trial in plan(config).trials:
        assert trial.gear.extents["n"] % 32 == 0
        assert all(sizes["n"] >= 20 for sizes in trial.probes)


def test_probes_are_large_enough_for_every_output_to_have_a_size():
    config = model_config(
        [tensor("x", "FP32", [-1])],
        [tensor("y", "FP32", [-1])],
        {"axes.x": "n", "limit.n": "64", "axes.y": "n // 8 - 1", "padding.n": "neutral"},
    )
    assert all(sizes["n"] >= 16 for trial in plan(config).trials for sizes in trial.probes)
