"""The load check: real graphs that are loaded or refused, and scripted executions."""

import re

import numpy as np
import pytest
from runtime.support.configs import (
    edges_config,
    encoder_config,
    model_config,
    pixels_config,
    tensor,
    without,
)
from runtime.support.graphs import EDGES, ENCODER, PIXELS
from runtime.support.parsing import parse
from runtime.testing.models import BLIND, MIXING, SOUND

from ge_runtime import Runtime
from ge_runtime.batching.gears import Gears
from ge_runtime.counts import Counts
from ge_runtime.errors import ConfigFault, EngineFault
from ge_runtime.verification.load_check import LoadCheck

COST = {"cost": "launch_us=100, element_ns=100, element2_ns=0"}
NEUTRAL = {"padding.height": "neutral", "padding.width": "neutral"}
MASK_ONLY = {
    **without(encoder_config(COST), "axis_length.tokens"),
    "input": [tensor("input_ids", "INT64", [-1])],
}


@pytest.fixture
def load(version_dir):
    """Return a function: graph, configuration -> the line of the load check in the report."""

    def load(graph, config):
        config = {**config, "parameters": {**config["parameters"]}}
        runtime = Runtime.open(version_dir(graph, "onnxruntime"), config, instance_name="m_0")
        try:
            return next(line for line in runtime.report if "load check: " in line)
        finally:
            runtime.close()

    return load


def fault_of(load, graph, config):
    with pytest.raises(ConfigFault) as raised:
        load(graph, config)
    (fault,) = raised.value.faults
    return fault


@pytest.mark.brute_force
@pytest.mark.parametrize("model", SOUND, ids=str)
def test_sound_models_are_loaded(load, model):
    line = load(model.graph, model.config)
    assert ": load check: " in line
    assert ": load check: 0 of " not in line
    assert "not checked" not in line


def test_padding_is_not_neutral_for_a_convolution(load):
    config = edges_config({**COST, "padding.width": "neutral"})
    fault = fault_of(load, EDGES, {**config, "output": config["output"][:1]})
    assert re.sub(r"-?\d+\.\d+(e-\d+)?|\d+e-\d+", "#", fault) == (
        "parameter 'padding.width': found a request of one row of height 2, width 1 whose answer "
        "changes when it is padded, executed as 4 row(s), height 2, width 2: output 'edges': "
        "found # at [0, 0, 0, 0], expected #, distance #; 2 of 2 element(s) differ, and rounding "
        "changes it by 0; expected padding that changes no answer. Cure, tried: with "
        "'padding.width: equal' it loads"
    )


def test_padding_is_not_neutral_for_a_mean_of_all_pixels(load):
    config = edges_config({**COST, **NEUTRAL, "gears.height,width": "4x4, 16x16"})
    config["output"] = config["output"][1:]
    del config["parameters"]["axes.edges"]
    fault = fault_of(load, EDGES, config)
    assert fault.startswith("parameter 'padding.height', 'padding.width': found a request of one ")
    assert "output 'mean': found" in fault
    assert "executed as 4 row(s), height 4, width 4" in fault


def test_a_graph_that_ignores_its_mask_is_refused(load):
    fault = fault_of(load, BLIND, MASK_ONLY)
    assert fault.startswith("parameter 'mask.attention_mask': found a request of one row of ")
    assert fault.endswith(
        "expected a graph that uses its mask or lengths to ignore padding. Cure, tried: with "
        "'padding.tokens: equal' it loads"
    )


def test_a_graph_whose_rows_depend_on_each_other_is_refused(load):
    fault = fault_of(load, MIXING, MASK_ONLY)
    assert fault.startswith("load check: found a request of one row of tokens 1 whose answer ")
    assert fault.endswith(
        "expected rows that are independent of each other. Cure, tried: with 'gears.batch: 1' it "
        "loads"
    )
    load(MIXING, {**MASK_ONLY, "max_batch_size": 1})


def test_the_check_can_be_turned_off(load):
    line = load(EDGES, edges_config({**COST, **NEUTRAL, "load_check": "off"}))
    assert line == "m_0: load check: off, by config.pbtxt"


def test_a_graph_with_neutral_padding_or_a_mask_is_loaded(load):
    assert "; answers do not depend on " in load(PIXELS, pixels_config({**COST, **NEUTRAL}))
    line = load(ENCODER, encoder_config(COST))
    assert line.startswith("m_0: load check: 4 of 4 trial(s); ")
    assert "answers do not depend on the values of other requests" in line


class Scripted:
    """An executor whose answers are computed by `answer` from the blocks and their gear."""

    def __init__(self, answer):
        self.answer = answer
        self.calls = []

    def execute(self, blocks, gear):
        self.calls.append((len(blocks), gear))
        rows = [self.answer(block, blocks, gear, len(self.calls)) for block in blocks]
        zero = np.zeros((1, 1), np.float32)
        return [{"y": np.float32([[row]]), "z": zero} for row in rows], Counts()

    def end_batch(self):
        pass


def own_sum(block):
    return float(block.tensors["x"].sum())


def scripted_model(parameters=None, *, output="FP32", beside=False):
    """Return configuration and gears. beside: add an output of floats that are always 0."""
    config = parse(
        model_config(
            [tensor("x", "FP32", [-1])],
            [tensor("y", output, [1]), *([tensor("z", "FP32", [1])] if beside else [])],
            {"axes.x": "n", "limit.n": "16", "padding.n": "neutral", **(parameters or {})},
            name="scripted",
        )
    )
    return config, Gears(("n",), config.limits, config.rows, config.gears, config.equal_axes)


def check_of(answer, parameters=None, *, output="FP32", beside=False, **more):
    """Return the executor and the check; for the other arguments see `scripted_model`."""
    executor = Scripted(answer)
    model = scripted_model(parameters, output=output, beside=beside)
    return executor, LoadCheck(executor, *model, **more)


def padded(block, gear):
    return gear.extents["n"] > block.sizes["n"]


def by_chance(block, blocks, gear, call):
    return own_sum(block) + (call % 2) * 1e-6


def by_odd_bits(block, blocks, gear, call):
    (bits,) = block.tensors["x"][0, :1].view(np.int32).tolist()
    sign = 1 - 2 * (bits % 2)  # nudged inputs have the other one
    return own_sum(block) * (1 + 2e-4 * sign * padded(block, gear))


def sensitive(block, blocks, gear, call):
    """Padding changes the answer about as much as the last bits of the inputs do."""
    exact = block.tensors["x"].astype(np.float64).sum()
    return np.sin(1e5 * exact + 0.01 * padded(block, gear))


BESIDE, WHEN_PADDED = (
    "load check: .* beside other requests",
    "whose answer changes when it is padded",
)
# Without a second arithmetic, nudged inputs show rounding.
SCRIPTS = {
    "leakage": (
        lambda block, blocks, gear, call: (
            own_sum(block) + 1e-6 * own_sum(blocks[0]) * (len(blocks) > 1)
        ),
        "changes with the values of another request",
    ),
    "the number of rows": (lambda block, blocks, gear, call: own_sum(block) / gear.rows, BESIDE),
    # It is not attributed to padding.
    "the number of requests": (
        lambda block, blocks, gear, call: (
            own_sum(block) + 0.1 * (len({id(other) for other in blocks}) > 1)
        ),
        BESIDE,
    ),
    "padding": (
        lambda block, blocks, gear, call: own_sum(block) + 0.01 * padded(block, gear),
        WHEN_PADDED,
    ),
    "padding beyond rounding": (
        lambda block, blocks, gear, call: own_sum(block) * (1 + 2e-4 * padded(block, gear)),
        WHEN_PADDED,
    ),
    "padding within rounding": (
        lambda block, blocks, gear, call: own_sum(block) * (1 + 2e-6 * padded(block, gear)),
        "",
    ),
    "another change by nudged inputs": (by_odd_bits, ""),
    "a sensitive answer": (sensitive, ""),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_changed_answer_is_refused_beyond_rounding(name):
    answer, refused = SCRIPTS[name]
    _, check = check_of(answer)
    if refused:
        with pytest.raises(ConfigFault, match=refused):
            check.run()
    else:
        check.run()


def test_differences_between_equal_executions_are_no_leakage():
    _, check = check_of(by_chance)
    checked = check.run()
    assert re.search(r"change answers by at most (1e-06|9.5e-07)", checked.measured)
    assert "; equal executions differ, so answers cannot be compared to the bit; " in checked.report


def test_a_request_is_executed_alone_once():
    alone = []

    def watched(block, blocks, gear, call):
        if len(blocks) == gear.rows == 1:
            alone.append((block.tensors["x"].tobytes(), gear.extents["n"]))
        return own_sum(block)

    _, check = check_of(watched)
    assert "GFLOP by weights and positions: " in check.run().report
    assert len(alone) == len({*alone}) > 1


class OtherRoundings:
    """An engine whose variants are counted; they execute nothing."""

    def __init__(self):
        self.opened = self.closed = 0

    def perturbed(self, seed):
        self.opened += 1
        return self

    def close(self):
        self.closed += 1


def test_cures_are_tried_with_the_same_second_arithmetics():
    gears = {"gears.n": "8, 16"}
    executor, check = check_of(
        lambda block, blocks, gear, call: (
            own_sum(block) + 0.1 * padded(block, gear) + 0.1 * gear.rows
        ),
        gears,
        reconfigure=lambda cure: scripted_model({**gears, **cure}),
    )
    executor.engine = engine = OtherRoundings()
    executor.variant = lambda engine: executor
    with pytest.raises(
        ConfigFault, match=r"with 'gears\.batch: 1' and 'padding\.n: equal' it loads"
    ):
        check.run()
    assert (engine.opened, engine.closed) == (2, 2)


def test_a_change_by_rows_as_large_as_by_padding_is_rounding():
    _, check = check_of(lambda block, blocks, gear, call: own_sum(block) + 1e-5 * gear.rows)
    assert "change answers by at most 3e-05" in check.run().measured


def test_integer_outputs_are_compared_only_if_there_are_no_float_outputs():
    def turned(block, blocks, gear, call):
        return float(gear.extents["n"])  # by sizes alone, as an argmax near a tie

    _, alone = check_of(turned, output="INT64")
    with pytest.raises(ConfigFault, match="output 'y': found"):
        alone.run()
    _, beside = check_of(turned, output="INT64", beside=True)
    assert "not checked" not in beside.run().report


def fails(condition, text="too wide"):
    """Return answers of a graph that executes no gear of this condition."""

    def answer(block, blocks, gear, call):
        if condition(gear):
            raise EngineFault(text)
        return own_sum(block)

    return answer


def test_a_graph_of_fixed_sizes_is_executed_only_at_its_gears():
    fixed = fails(lambda gear: (gear.rows, gear.extents["n"]) not in [(4, 8), (4, 16)])
    executor, check = check_of(fixed, {"gears.batch": "4", "gears.n": "8, 16"})
    assert check.run().report.startswith("7 of 7 trial(s); ")
    assert sum(gear.rows != 4 for _, gear in executor.calls) == 1


def test_sizes_that_the_graph_cannot_execute_are_reported_as_not_checked():
    _, check = check_of(fails(lambda gear: gear.extents["n"] > 4))
    assert check.run().report.endswith("not checked: 4 row(s), n 16: too wide")
    _, check = check_of(fails(lambda gear: True))
    assert "answers" not in check.run().report


REPRODUCIBLE = {"reproducible": "true", "gears.batch": "4", "gears.n": "8, 16"}


def test_equal_bits_at_all_places_are_reported(load):
    gears = {"gears.tokens": "8, 32", "gears.batch": "4", "reproducible": "true"}
    line = load(ENCODER, encoder_config({**COST, **gears, "devices": "cpu, cpu"}))
    assert line.endswith("; equal to the bit at all places of 2 gear(s)")


def test_each_request_is_executed_alone_and_at_each_place_of_each_gear():
    places = set()

    def watched(block, blocks, gear, call):
        at = [id(other) for other in blocks].index(id(block))
        places.add((gear.extents["n"], at, block.sizes["n"], len(blocks)))
        return own_sum(block)

    _, check = check_of(watched, REPRODUCIBLE)
    assert "; equal to the bit at all places of 2 gear(s)" in check.run().report
    for gear, sizes in [(8, (1, 3, 8)), (16, (15, 16))]:
        for size in sizes:
            assert (gear, 0, size, 1) in places
            # Two of the four places may hold the same block, and the first counts.
            assert {(gear, at, size, 4) for at in range(2)} <= places


def by_place(block, blocks, gear, call):
    at = [other is block for other in blocks].index(True)
    return own_sum(block) + (at == 2) * 1e-6


def test_a_graph_whose_rows_depend_on_their_place_is_refused():
    _, sound = check_of(by_place, {**REPRODUCIBLE, "reproducible": "false"})
    sound.run()
    _, check = check_of(by_place, REPRODUCIBLE)
    with pytest.raises(ConfigFault) as raised:
        check.run()
    (fault,) = raised.value.faults
    assert re.sub(r"-?\d+\.\d+(e-\d+)?|\d+e-\d+", "#", fault) == (
        "parameter 'reproducible': found a request of one row of n 8 whose answer has different "
        "bits in row 2 beside other requests and alone, executed as 4 row(s), n 8: output 'y': "
        "found # at [0, 0], expected #, distance #; 1 of 1 element(s) differ; expected the same "
        "bits. Possible cure: 'gears.batch: 1'"
    )
    _, alone = check_of(by_place, {**REPRODUCIBLE, "gears.batch": "1"})
    alone.run()


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (by_chance, "bits in equal executions, .* expected an engine"),
        (
            fails(lambda gear: gear.extents["n"] > 8),
            r"found a failed execution of 4 row\(s\), n 16: too wide",
        ),
    ],
)
def test_an_engine_without_equal_bits_in_each_gear_is_refused(answer, refused):
    _, check = check_of(answer, REPRODUCIBLE)
    with pytest.raises(ConfigFault, match=refused):
        check.run()


def test_all_executors_are_compared_with_the_first():
    other = Scripted(lambda block, *_: own_sum(block) + 1e-6)
    _, check = check_of(lambda block, *_: own_sum(block), REPRODUCIBLE, others=[other])
    with pytest.raises(ConfigFault, match="different bits in row 0"):
        check.run()
