"""Complete configurations, and the errors of each field."""

import copy
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.configs import encoder_config, model_config, pixels_config, tensor, without
from runtime.support.parsing import assert_fault, faults_of, parse

from ge_runtime.config import PaddingRule, Resident, TimeLimits
from ge_runtime.config.axis_sizes import AxisSizes
from ge_runtime.config.sequence_states import SequenceStates
from ge_runtime.config.tensor_rules import BatchAxes
from ge_runtime.errors import ConfigFault
from ge_runtime.specs import UNKNOWN, DType, TensorSpec


def test_encoder_configuration_is_read_whole():
    config = parse(encoder_config({"pad.input_ids": "3", "intra_op_threads": "2"}))
    given = {own.name: getattr(config, own.name) for own in fields(config)}
    assert {name: value for name, value in given.items() if value} == {
        "model": "encoder",
        "engine": "auto",
        "max_batch_size": 8,
        "rows": 8,
        "batched": True,
        "inputs": (
            TensorSpec("input_ids", DType.INT64, ("tokens",)),
            TensorSpec("lengths", DType.INT32, (1,)),
        ),
        "outputs": (TensorSpec("embedding", DType.FP32, (4,)),),
        "axis_sizes": AxisSizes({"tokens": 32}, {"tokens": 1}, {"tokens": 1}),
        "axis_lengths": {"tokens": "lengths"},
        "masks": {"attention_mask": ("tokens",)},
        "states": SequenceStates(),
        "batch_axes": BatchAxes(),
        "marked_axes": {"tokens"},
        "padding": {"tokens": PaddingRule.MASKED},
        "pads": {"input_ids": 3},
        "oversize": "error",
        "cost_cache": "auto",
        "warmup": "gears",
        "torch_compiler": "ge",
        "intra_op_threads": 2,
        "devices": ("cpu",),
        "io_buffers": 1,
        "resident": Resident(),
        "time_limits": TimeLimits(),
        "early_answers": True,
        "load_check": True,
    }


def test_dims_are_those_the_model_sees():
    config = model_config(
        [tensor("x", "FP32", [1], reshape={"shape": []})],
        [tensor("y", "FP32", [4], reshape={"shape": [2, 2]})],
    )
    assert parse(config).inputs[0].dims == ()
    assert parse(config).outputs[0].dims == (2, 2)


def test_parameters_in_upper_case_belong_to_the_server():
    assert parse(encoder_config({"EXECUTION_ENV_PATH": "/env", "FORCE_CPU_ONLY_INPUT_TENSORS": ""}))


@pytest.mark.parametrize(
    ("groups", "cores", "threads"),
    [
        (None, 8, 8),
        ([{"count": 2}], 8, 4),
        ([{"count": 2}, {"count": 1}], 8, 2),
        ([{"count": 1, "gpus": [0, 1]}], 8, 4),
        ([{"count": 16}], 8, 1),
    ],
)
def test_instances_share_the_cores(groups, cores, threads):
    config = encoder_config(instance_group=groups)
    parsed = parse(config, cores=cores)
    assert (parsed.intra_op_threads, parsed.adapts_threads) == (threads, True)


def test_an_output_may_have_an_unnamed_size_if_requests_are_executed_alone():
    config = model_config(
        [tensor("x", "FP32", [-1])],
        [tensor("where", "INT64", [1, -1])],
        {"axes.x": "n", "limit.n": "4"},
        batch=0,
    )
    assert parse(config).outputs[0].dims == (1, UNKNOWN)
    assert (parse(config).rows, parse(config).batched) == (1, False)


def test_fields_that_auto_complete_adds_change_nothing():
    written = encoder_config(
        batch_input=[], batch_output=[], instance_group=[], optimization={}, model_warmup=[]
    )
    written["input"] = [
        {**entry, "optional": False, "is_shape_tensor": False, "format": "FORMAT_NONE"}
        for entry in written["input"]
    ]
    assert parse(written) == parse(encoder_config())


def test_axes_may_have_names_that_are_words_of_python():
    config = encoder_config({"axes.input_ids": "in", "limit.in": "32", "axis_length.in": "lengths"})
    config = without(config, "limit.tokens", "axis_length.tokens", "mask.attention_mask")
    config["output"] = [tensor("embedding", "FP32", [-1])]
    config["parameters"]["axes.embedding"] = {"string_value": "in"}
    assert parse(config).outputs == (TensorSpec("embedding", DType.FP32, ("in",)),)


def test_max_batch_size_is_0_by_default():
    config = parse({**encoder_config(), "max_batch_size": 0})
    absent = encoder_config()
    del absent["max_batch_size"]
    assert parse(absent) == config


def test_derived_outputs_are_separate_and_may_be_bytes_of_any_size():
    config = encoder_config()
    config["output"].append(tensor("label", "STRING", [-1]))
    parsed = parse(config, derived=["label"])
    assert [spec.name for spec in parsed.outputs] == ["embedding"]
    assert parsed.derived == (TensorSpec("label", DType.BYTES, (UNKNOWN,)),)


def with_input(**changes):
    config = encoder_config()
    config["input"][0] |= changes
    return config


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (without(encoder_config(), "axes.input_ids"), "parameter 'axes.input_ids': found nothing,"),
        (without(pixels_config(), "axes.inverted"), "parameter 'axes.inverted': found nothing,"),
        (without(encoder_config(), "limit.tokens"), "parameter 'limit.tokens': found nothing,"),
        (with_input(data_type="TYPE_FP8"), "input 'input_ids': data_type: found 'TYPE_FP8',"),
        (with_input(data_type="TYPE_STRING"), "found TYPE_STRING, expected numbers"),
        (with_input(dims=[0]), "input 'input_ids': dims: found [0], expected a list of sizes"),
        (with_input(dims=["-1"]), "dims: found ['-1']"),
        (with_input(optional="yes"), "input 'input_ids': optional: found 'yes', expected true or"),
        (with_input(name="lengths"), "input[1]: name: found 'lengths', expected a name of its own"),
        (with_input(name=None), "input[0]: name: found None"),
        ({**encoder_config(), "input": {}} | {"input": 5}, "input: found 5, expected a list of"),
        ({**encoder_config(), "output": [5]}, "output: found [5], expected a list of tensors"),
        ({**encoder_config(), "parameters": [1]}, "parameters: found [1], expected keys with"),
        ({**encoder_config(), "parameters": {"engine": "auto"}}, "parameter 'engine': found"),
        (encoder_config(batch=-1), "max_batch_size: found -1, expected a whole number of at least"),
        (encoder_config(batch=None), "max_batch_size: found None"),
        (encoder_config(instance_group=5), "instance_group: found 5, expected a list of groups"),
        (encoder_config(instance_group=[{"count": 0}]), "instance_group[0]: count: found 0"),
        (encoder_config(instance_group=[{"gpus": 1}]), "instance_group[0]: gpus: found 1"),
    ],
)
def test_fault_names_place_found_and_expected(config, expected):
    assert_fault(config, expected)


def test_a_model_without_axes_is_reported_so():
    config = model_config([tensor("x", "FP32", [1])], [tensor("y", "FP32", [1])], {"limit.n": "1"})
    assert faults_of(config) == [
        "parameter 'limit.n': found no axis 'n', expected none: this model has no axis"
    ]


def test_derived_output_must_be_declared():
    assert faults_of(encoder_config(), derived=["embeding"]) == [
        "derived outputs: found no output 'embeding', expected one of: embedding; did you mean "
        "'embedding'?"
    ]


def test_all_faults_are_reported_together():
    config = encoder_config(
        {"limit.tokens": "0", "mask.attention_mask": "word", "engine": "x", "foo": ""}, batch=-1
    )
    places = [fault.split(":")[0] for fault in faults_of(config)]
    assert places == [
        "max_batch_size",
        "parameter 'foo'",
        "parameter 'engine'",
        "parameter 'limit.tokens'",
        "parameter 'mask.attention_mask'",
    ]


def test_the_order_of_parameters_changes_nothing():
    """Triton keeps parameters in a hash table."""

    def both_ways(parameters):
        backwards = dict(reversed(parameters.items()))
        return encoder_config(parameters), encoder_config(backwards)

    geared, turned = map(parse, both_ways({"gears.tokens": "16, 32", "gears.batch": "1, 8"}))
    assert [*geared.gears] == [*turned.gears]
    wrong, turned = map(faults_of, both_ways({"pad.b": "1", "pad.a": "1", "mask.m": "b", "c": ""}))
    assert wrong == turned


# -- any mapping either parses or lists its faults -------------------------------------------

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


RICH = model_config(
    [
        tensor("ids", "INT64", [-1]),
        tensor("types", "INT8", [-1], optional=True),
        tensor("note", "STRING", [-1]),
    ],
    [tensor("hidden", "BF16", [-1, 4]), tensor("note_back", "STRING", [-1])],
    {
        "axes.ids": "tokens",
        "axes.types": "tokens",
        "axes.hidden": "(tokens + 1) // 2",
        "limit.tokens": "64",
        "gears.batch,tokens": "8x16, 2x64",
        "mask.mask": "tokens",
        "positions.at": "tokens",
        "offsets.cu": "tokens",
        "default.types": "1",
        "pass.note_back": "note",
        "cost": "launch_us=1, element_ns=2, element2_ns=0",
        "devices": "cpu, cpu",
        "stages": "one, two",
        "histogram": "sizes/histogram.json",
        "workspace_pool_mib": "64",
        "oversize": "fallback",
        "warmup": "none",
    },
    batch_input=[
        {
            "kind": "BATCH_ITEM_SHAPE",
            "target_name": ["shape"],
            "data_type": "TYPE_INT32",
            "source_input": ["ids"],
        }
    ],
)


def paths(value, path=()):
    """Yield the path of every value in nested mappings and lists."""
    yield path
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield from paths(value[key], (*path, key))


def attempt(config):
    try:
        return parse(config)
    except ConfigFault as fault:
        return fault


@pytest.mark.brute_force
@given(st.data())
def test_any_mapping_parses_or_lists_its_faults(data):
    config = copy.deepcopy(data.draw(st.sampled_from([encoder_config(), pixels_config(), RICH])))
    for _ in range(data.draw(st.integers(0, 4))):
        *before, last = data.draw(st.sampled_from([path for path in paths(config) if path]))
        place = config
        for key in before:
            place = place[key]
        place[last] = data.draw(junk)
    result = attempt(config)
    if isinstance(result, ConfigFault):
        assert result.faults
        assert all(": found " in text and ", expected " in text for text in result.faults)
    else:
        axes = {axis for spec in result.sources for axis in spec.axes}
        assert result.limits.keys() == axes
        assert result.intra_op_threads >= 1
