import pytest
from runtime.support.configs import encoder_config, tensor
from runtime.support.parsing import assert_fault, parse

from ge_runtime.config import ValueRange


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
