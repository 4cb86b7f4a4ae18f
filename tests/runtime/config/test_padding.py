import numpy as np
import pytest
from runtime.support.configs import encoder_config, model_config, tensor
from runtime.support.parsing import assert_fault, assert_refused, faults_of, parse

from ge_runtime.config import ValueRange


def padded(data_type, text):
    return model_config(
        [tensor("x", data_type, [-1])],
        [tensor("y", "FP32", [1])],
        {"axes.x": "n", "limit.n": "4", "pad.x": text},
    )


def optional_types(parameters=None, **changes):
    """Return an encoder with optional token types."""
    config = encoder_config({"axes.types": "tokens", **(parameters or {})})
    types = tensor("types", "INT8", [-1], optional=True) | changes
    config["input"].append(types)
    return config


def optional_lengths(data_type="INT32", parameters=None):
    config = encoder_config(parameters)
    config["input"][1] = tensor("lengths", data_type, [1], optional=True)
    return config


@pytest.mark.parametrize(
    ("data_type", "text", "value"),
    [
        ("BOOL", "true", True),
        ("BOOL", "0", False),
        ("UINT8", "255", 255),
        ("INT64", "-7", -7),
        ("FP16", "-65504", -65504.0),
        ("BF16", "3.38e38", 3.38e38),
        ("FP32", "-inf", -np.inf),
    ],
)
def test_pad_is_a_value_of_the_inputs_type(data_type, text, value):
    pad = parse(padded(data_type, text)).pads["x"]
    assert (pad, type(pad)) == (value, type(value))


@pytest.mark.parametrize(
    ("data_type", "text"),
    [("BOOL", "2"), ("INT8", "128"), ("INT8", "1.0"), ("FP16", "65520"), ("BF16", "3.4e38")],
)
def test_pad_of_another_type_or_beyond_it_is_refused(data_type, text):
    assert faults_of(padded(data_type, text)) == [
        f"parameter 'pad.x': found '{text}', expected a value of type {data_type}"
    ]


def test_inputs_without_axes_may_be_padded_by_rows():
    assert parse(encoder_config({"gears.batch": "8", "pad.lengths": "2"})).pads == {"lengths": 2}
    assert_fault(
        encoder_config({"gears.tokens": "32", "pad.lengths": "2"}),
        "parameter 'pad.lengths': found no -1 in dims [1], expected an input with axes",
    )


@pytest.mark.parametrize(
    ("config", "defaults"),
    [
        (optional_types(), {"types": 0}),
        (optional_types({"default.types": "-3"}), {"types": -3}),
        (optional_types({"default.types": "1.5"}, data_type="TYPE_FP16"), {"types": 1.5}),
        (optional_lengths(), {"lengths": 0}),
        (optional_lengths("INT8", {"limit.tokens": "127"}), {"lengths": 0}),
    ],
)
def test_optional_inputs_have_a_default(config, defaults):
    assert parse(config).defaults == defaults


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            model_config([tensor("x", "FP32", [1], optional=True)], [tensor("y", "FP32", [1])]),
            "input: found only optional inputs, expected an input that every request has",
        ),
        (
            model_config(
                [tensor("x", "FP32", [1]), tensor("z", "FP32", [-1], optional=True)],
                [tensor("y", "FP32", [1])],
            ),
            "parameter 'axes.z': found nothing, expected 1 name(s), one per -1 of dims [-1]",
        ),
        (
            model_config(
                [tensor("x", "FP32", [1]), tensor("note", "STRING", [1])],
                [tensor("y", "FP32", [1]), tensor("back", "STRING", [1])],
                {"pass.back": "note", "pad.note": "a", "gears.batch": "8"},
            ),
            "parameter 'pad.note': found input 'note' BYTES[1], expected an input of numbers",
        ),
        (optional_lengths(parameters={"default.lengths": "4"}), "parameter 'default.lengths':"),
        (optional_lengths("INT8", {"limit.tokens": "128"}), "parameter 'axis_length.tokens':"),
        (
            optional_lengths(parameters={"axis_length.words": "lengths"}),
            "found 'lengths' for other axes as well, expected one axis, as the input is optional",
        ),
    ],
)
def test_invalid_pads_and_lengths_are_refused(config, expected):
    assert_fault(config, expected)


def packed(parameters=None, inputs=(), outputs=(), **changes):
    return model_config(
        [tensor("ids", "INT64", [-1]), *inputs],
        [tensor("pooled", "FP32", [4]), *outputs],
        {
            "packing": "tokens",
            "axes.ids": "tokens",
            "limit.tokens": "32",
            "offsets.cu": "tokens",
            **(parameters or {}),
        },
        **changes,
    )


PICTURE = {"axes.picture": "height", "limit.height": "8"}


@pytest.mark.parametrize(
    "config",
    [
        packed(),
        packed({"mask.mask": "tokens", "positions.at": "tokens"}),
        packed({"axes.hidden": "tokens"}, outputs=[tensor("hidden", "FP32", [-1, 4])]),
        packed(
            {"axes.both": "tokens,height", "limit.height": "8", "gears.height": "8"},
            inputs=[tensor("both", "FP32", [-1, -1])],
        ),
        packed({**PICTURE, "mask.m": "height"}, inputs=[tensor("picture", "FP32", [-1])]),
        packed({"gears.batch": "8"}),
    ],
)
def test_rows_may_be_packed_along_a_first_axis(config):
    assert parse(config).packing == "tokens"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            packed({"axes.x": "tokens"}, inputs=[tensor("x", "FP32", [4, -1])]),
            "parameter 'packing': found input 'x' FP32[4,tokens], expected 'tokens' as its first "
            "dim alone",
        ),
        (
            packed({"axes.x": "tokens,tokens"}, inputs=[tensor("x", "FP32", [-1, -1])]),
            "parameter 'packing': found input 'x' FP32[tokens,tokens]",
        ),
        (
            packed({"axes.y": "tokens * 2"}, outputs=[tensor("y", "FP32", [-1])]),
            "parameter 'packing': found output 'y' FP32[tokens * 2]",
        ),
        (
            packed({"axes.y": "tokens,tokens + 1"}, outputs=[tensor("y", "FP32", [-1, -1])]),
            "parameter 'packing': found output 'y' FP32[tokens,tokens + 1]",
        ),
        (packed({"gears.tokens": "32"}), "parameter 'packing': found gears of axis 'tokens',"),
        (packed({"gears.batch,tokens": "8x32"}), "found gears of axis 'tokens'"),
        (
            packed({**PICTURE, "mask.m": "tokens,height"}, [tensor("picture", "FP32", [-1])]),
            "parameter 'packing': found 'mask.m' of tokens, height, expected masks of 'tokens' "
            "alone: rows have no dimension of their own",
        ),
        (encoder_config({"packing": "tokens"}, batch=0), "parameter 'packing': found"),
    ],
)
def test_packing_that_contradicts_the_tensors_is_refused(config, expected):
    assert_fault(config, expected)


# -- padding rules ---------------------------------------------------------------------------


def rules_of(config):
    return {axis: rule.value for axis, rule in parse(config).padding.items()}


def plain(parameters=None, **more):
    """Return a model of rows of numbers, whose graph does not receive their ends."""
    parameters = {"axes.x": "n", "limit.n": "4", **(parameters or {})}
    return model_config([tensor("x", "FP32", [-1])], [tensor("y", "FP32", [1])], parameters, **more)


def test_axes_are_equal_by_default():
    assert rules_of(plain()) == {"n": "equal"}
    assert rules_of(plain({"positions.p": "n"})) == {"n": "equal"}
    largest = {
        "kind": "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
        "target_name": ["most"],
        "data_type": "TYPE_INT32",
        "source_input": ["x"],
    }
    assert rules_of(plain(batch_input=[largest])) == {"n": "equal"}


@pytest.mark.parametrize(
    "parameters", [{"mask.m": "n"}, {"lengths.l": "n"}, {"offsets.o": "n"}, {"packing": "n"}]
)
def test_axes_with_generated_inputs_are_masked(parameters):
    assert rules_of(plain(parameters)) == {"n": "masked"}


def test_axes_with_a_batch_input_are_masked():
    shapes = {
        "kind": "BATCH_ITEM_SHAPE",
        "target_name": ["shape"],
        "data_type": "TYPE_INT32",
        "source_input": ["x"],
    }
    assert rules_of(plain(batch_input=[shapes])) == {"n": "masked"}


def test_padding_may_be_declared_neutral():
    assert rules_of(plain({"padding.n": "neutral"})) == {"n": "neutral"}
    assert rules_of(plain({"padding.n": "equal", "mask.m": "n"})) == {"n": "equal"}


@pytest.mark.parametrize(
    "row",
    [
        (optional_types, "default.types", "128", "'128', expected a value of type INT8"),
        (optional_types, "axes.types", "words", "axis 'words', expected", {"limit.words": "8"}),
        (packed, "packing", "words", "no axis 'words', expected one"),
        (packed, "packing", "", "no axis ''"),
        (plain, "padding.n", "masked", "'masked', expected 'equal', 'neutral', or an input that"),
        (plain, "padding.n", "natural", "no padding rule 'natural', expected one of: equal,"),
        (plain, "padding.m", "equal", "no axis 'm', expected one of"),
        (plain, "padding.n", "neutral", "'neutral', expected 'masked': rows of", {"packing": "n"}),
    ],
)
def test_invalid_parameters_are_refused(row):
    assert_refused(*row)


def ranged(text, parameters=None):
    return encoder_config({"range.input_ids": text, **(parameters or {})})


def test_a_range_is_read_in_the_type_of_its_input():
    assert parse(ranged("0..30521")).ranges == {"input_ids": ValueRange(0, 30521)}
    assert parse(ranged("-5 .. -2")).ranges == {"input_ids": ValueRange(-5, -2)}


def test_padding_is_the_value_of_the_range_nearest_to_0():
    assert parse(ranged("0..9")).pads == {}
    assert parse(ranged("3..9")).pads == {"input_ids": 3}
    assert parse(ranged("-9..-3")).pads == {"input_ids": -3}
    assert parse(ranged("3..9", {"pad.input_ids": "4"})).pads == {"input_ids": 4}


@pytest.mark.parametrize("text", ["7", "7..", "..7", "7..7", "8..7", "0..1.5", "a..b", "0...9"])
def test_an_invalid_range_is_refused(text):
    expected = "expected two numbers of type INT64, the lower one first, e.g. 0..9"
    assert_fault(ranged(text), f"parameter 'range.input_ids': found '{text}', {expected}")


def test_pads_and_defaults_must_be_in_the_range():
    assert_fault(
        ranged("0..9", {"pad.input_ids": "10"}),
        "parameter 'pad.input_ids': found 10, expected 0 to 9 (range.input_ids)",
    )
    optional = ranged("0..9")
    optional["input"].append(tensor("kinds", "INT32", [2], optional=True))
    optional["parameters"]["range.kinds"] = {"string_value": "1..9"}
    assert_fault(optional, "parameter 'default.kinds': found 0, expected 1 to 9 (range.kinds)")


def test_types_without_order_have_no_range():
    config = encoder_config({"range.flags": "0..1"})
    config["input"].append(tensor("flags", "BOOL", [2]))
    expected = "found input 'flags' BOOL[2], expected an input of numbers, not of BF16"
    assert_fault(config, f"parameter 'range.flags': {expected}")
