"""The sizes and values that a load check tries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.batching.gear_sets import LIMIT, ROW_LIMIT, tables
from runtime.support.configs import edges_config, encoder_config, model_config, tensor
from runtime.support.parsing import parse

from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.config import PaddingRule
from ge_runtime.specs import ROWS, DType
from ge_runtime.verification.probes import Part, Trial, Values, trials_of

AXES = ("height", "width")
RULES = st.sampled_from(["equal", "neutral"])


def trials(config, **drawn):
    config = parse(config)
    axes = tuple(config.limits)
    return trials_of(
        config, Gears(axes, config.limits, config.rows, drawn or config.gears, config.equal_axes)
    )


@given(tables(AXES), st.tuples(RULES, RULES))
def test_probes_fit_their_execution_and_equal_axes_have_its_size(drawn, rules):
    written = {
        ",".join(axes): ",".join("x".join(map(str, point)) for point in {*points})
        for axes, points in drawn.items()
    }
    config = parse(
        edges_config(
            {f"padding.{axis}": rule for axis, rule in zip(AXES, rules, strict=True)}
            | {f"limit.{axis}": str(LIMIT) for axis in AXES}
            | {f"gears.{axes}": points for axes, points in written.items()}
            | {"oversize": "fallback"},
            batch=ROW_LIMIT,
        )
    )
    gears = Gears(AXES, config.limits, config.rows, config.gears, config.equal_axes)
    found = trials_of(config, gears)
    assert {trial.gear.rows for trial in found} <= {1, 2, 3} | {g.rows for g in gears.every()}
    for trial in found:
        assert trial.mixed == (trial.gear.rows > 1)
        assert len(trial.probes) + trial.mixed <= trial.gear.rows
        for sizes in trial.probes:
            for axis, rule in config.padding.items():
                assert 1 <= sizes[axis] <= trial.gear.extents[axis]
                if rule is PaddingRule.EQUAL:
                    assert sizes[axis] == trial.gear.extents[axis]
    if {ROWS, *AXES} == {axis for key in drawn for axis in key}:
        assert all(gear in [trial.gear for trial in found] for gear in gears.every())


def test_axes_without_gears_are_tried_at_parts_of_their_limits():
    assert trials(encoder_config()) == [
        Trial(Gear(3, {"tokens": 2}), ({"tokens": 1},), mixed=True),
        Trial(Gear(3, {"tokens": 32}), ({"tokens": 1}, {"tokens": 16}), mixed=True),
        Trial(Gear(3, {"tokens": 8}), ({"tokens": 1}, {"tokens": 4}), mixed=True),
    ]


def test_an_execution_of_one_row_has_no_other_request():
    one = trials(encoder_config({"gears.batch": "1", "gears.tokens": "32"}))
    assert one == [Trial(Gear(1, {"tokens": 32}), ({"tokens": 1},), mixed=False)]


def test_probes_are_large_enough_for_every_output_to_have_a_size():
    config = model_config(
        [tensor("x", "FP32", [-1])],
        [tensor("y", "FP32", [-1])],
        {"axes.x": "n", "limit.n": "64", "axes.y": "n // 8 - 1", "padding.n": "neutral"},
    )
    sizes = [[probe["n"] for probe in trial.probes] for trial in trials(config)]
    assert sizes == [[16], [16, 32]]


@pytest.mark.parametrize("name", ["BOOL", "INT8", "INT64", "FP16", "BF16", "FP64"])
def test_equal_seeds_give_equal_values_and_the_halves_of_a_range_differ(name):
    config = parse(model_config([tensor("x", name, [64])], [tensor("y", name, [64])]))
    values = Values(config)
    one, same, other = (values.block({}, (seed,)).tensors["x"] for seed in (1, 1, 2))
    assert one.tobytes() == same.tobytes() != other.tobytes()
    low, high = (values.block({}, (1,), part).tensors["x"] for part in (Part.LOWER, Part.UPPER))
    if name == "BF16":  # bits: the sign is the highest
        low, high = ((array.astype(np.int64) >> 15) * -1 for array in (low, high))
    assert low.max() <= high.min()
    assert low.tobytes() != high.tobytes()


@pytest.mark.parametrize("name", ["FP16", "FP32", "FP64", "BF16"])
def test_nudged_floats_are_neighbouring_values(name):
    dtype = DType[name]
    config = parse(model_config([tensor("x", name, [64])], [tensor("y", name, [64])]))
    values = Values(config)
    block = values.block({}, (1,))
    data, moved = block.tensors["x"], values.nudged(block, (2,)).tensors["x"]
    bits = np.dtype(f"u{dtype.numpy.itemsize}")
    steps = moved.view(bits).astype(np.int64) - data.view(bits).astype(np.int64)
    assert {*steps.ravel().tolist()} == {-1, 1}


def test_integers_are_not_nudged():
    values = Values(parse(encoder_config()))
    assert values.nudged(values.block({"tokens": 3}, (1,)), (2,)) is None


def test_sizes_obey_min_and_align():
    config = model_config(
        [tensor("x", "FP32", [-1])],
        [tensor("y", "FP32", [-1])],
        {"axes.x": "n", "axes.y": "n", "limit.n": "96", "min.n": "20", "align.n": "32"}
        | {"padding.n": "neutral"},
    )
    tried = trials(config)
    assert [(trial.gear.extents["n"], *trial.probes) for trial in tried] == [
        (32, {"n": 20}),
        (96, {"n": 20}, {"n": 48}),
    ]
    block = Values(parse(config)).block({"n": 48}, (1,))
    assert block.needs == {"n": 64}


def test_values_are_within_the_configured_range():
    config = model_config(
        [tensor("x", "INT64", [64])], [tensor("y", "INT64", [64])], {"range.x": "5..8"}
    )
    values = Values(parse(config))
    drawn = {part: values.block({}, (1,), part).tensors["x"] for part in Part}
    assert {*drawn[Part.ALL].ravel().tolist()} == {5, 6, 7, 8}
    assert {*drawn[Part.LOWER].ravel().tolist()} == {5, 6}
    assert {*drawn[Part.UPPER].ravel().tolist()} == {7, 8}


def test_on_devices_integers_without_a_range_are_0_and_1():
    config = model_config(
        [tensor("x", "INT64", [64])], [tensor("y", "INT64", [64])], {"devices": "npu:0"}
    )
    values = Values(parse(config))
    drawn = values.block({}, (1,)).tensors["x"].ravel().tolist()
    assert {*drawn} == {0, 1}
    assert drawn[0] == 1
