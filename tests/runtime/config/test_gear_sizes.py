import pytest
from runtime.support.configs import encoder_config, model_config, pixels_config, tensor
from runtime.support.parsing import assert_fault, faults_of, parse


@pytest.mark.parametrize(
    ("key", "text", "gears"),
    [
        ("gears.tokens", "32", {("tokens",): ((32,),)}),
        ("gears.tokens", "32, 8,16", {("tokens",): ((8,), (16,), (32,))}),
        ("gears.batch", "1, 4", {("batch",): ((1,), (4,))}),
        ("gears.batch,tokens", "8x16, 2 x 32", {("batch", "tokens"): ((2, 32), (8, 16))}),
        ("gears.tokens , batch", "32x2", {("tokens", "batch"): ((32, 2),)}),
        ("gears.tokens", "auto 1", {("tokens",): 1}),
        ("gears.batch,tokens", "auto  100", {("batch", "tokens"): 100}),
    ],
)
def test_gears_are_sizes_or_a_number_to_derive(key, text, gears):
    assert parse(encoder_config({key: text})).gears == gears


def test_axes_may_have_separate_or_joint_gears():
    apart = parse(pixels_config({"gears.height": "8, 16", "gears.width": "16", "gears.batch": "8"}))
    assert apart.gears == {("height",): ((8,), (16,)), ("width",): ((16,),), ("batch",): ((8,),)}
    joint = parse(pixels_config({"gears.height,width": "8x8, 16x16"}))
    assert joint.gears == {("height", "width"): ((8, 8), (16, 16))}


def test_gears_need_not_hold_the_largest_where_there_is_a_fallback():
    config = parse(encoder_config({"gears.tokens": "8, 16", "oversize": "fallback"}))
    assert (config.gears, config.oversize) == ({("tokens",): ((8,), (16,))}, "fallback")


def test_no_fallback_is_suggested_for_compiled_graphs():
    config = encoder_config({"gears.tokens": "8, 16", "devices": "npu:0"})
    (fault,) = faults_of(config)
    assert fault.endswith("as the limit allows requests of that size")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            model_config(
                [tensor("x", "FP32", [-1])],
                [tensor("y", "FP32", [1])],
                {"axes.x": "n", "limit.n": "4", "gears.batch": "1"},
                batch=0,
            ),
            "parameter 'gears.batch': found 'batch', expected axes only: with max_batch_size 0 "
            "requests are executed one by one",
        )
    ],
)
def test_invalid_gears_are_refused(config, expected):
    assert_fault(config, expected)


# -- reproducible answers ----------------------------------------------------------------------

BITS = {"reproducible": "true"}
SIZES = {"gears.tokens": "8, 32", "gears.batch": "4"}


@pytest.mark.parametrize(
    "parameters",
    [
        SIZES,
        {"gears.batch,tokens": "8x8, 2x32"},
        {"gears.batch": "1"},  # each row alone, at a size of its own
        {**SIZES, "oversize": "fallback"},
    ],
)
def test_reproducible_answers_take_one_number_of_rows_for_each_size(parameters):
    assert parse(encoder_config({**BITS, **parameters})).reproducible
    assert not parse(encoder_config(parameters)).reproducible


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"reproducible": "yes"}, "found 'yes', expected 'false' or 'true'"),
        ({**BITS, "gears.tokens": "32"}, "found no gears of rows, expected 'gears.batch', one"),
        ({**BITS, **SIZES, "gears.batch": "1, 4"}, "found 'gears.batch: 1, 4', expected one"),
        ({**BITS, "gears.batch,tokens": "2x8, 4x32, 8x32"}, "found 'gears.batch,tokens: 2x8,"),
        ({**BITS, "gears.batch": "4"}, "found axis 'tokens' without gears, expected gears for"),
        ({**BITS, **SIZES, "gears.tokens": "auto 2"}, "found 'gears.tokens: auto 2', expected"),
        ({**BITS, **SIZES, "offsets.cu": "tokens"}, "found graph input 'cu', expected no such"),
        ({**BITS, "gears.batch": "4", "packing": "tokens"}, "found 'packing', expected no"),
    ],
)
def test_reproducible_refuses_dependence_on_other_requests(parameters, expected):
    assert_fault(encoder_config(parameters), f"parameter 'reproducible': {expected}")


def test_reproducible_refuses_counts_over_all_requests():
    kinds = {"BATCH_ELEMENT_COUNT": "counts", "BATCH_ITEM_SHAPE": "shapes"}
    config = encoder_config({**BITS, **SIZES})
    config["batch_input"] = [
        {
            "kind": kind,
            "target_name": [target],
            "data_type": "TYPE_INT64",
            "source_input": ["input_ids"],
        }
        for kind, target in kinds.items()
    ]
    (fault,) = faults_of(config)
    assert "graph input 'counts'" in fault
