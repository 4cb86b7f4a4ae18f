"""Valid and invalid values of `aipp.<input>`."""

import pytest
from runtime.support.configs import model_config, tensor
from runtime.support.images import RGB, images_config
from runtime.support.parsing import assert_fault, parse

from ge_runtime.specs import DType, TensorSpec

SOURCE, MADE = [24, 32, 3], [3, 24, 32]
FIELD = "parameter 'aipp.image': found "


def config(text, source=SOURCE, **more):
    return images_config(text, source, MADE, **more)


def test_values_are_rounded_to_fp16():
    aipp = parse(config(RGB)).aipp["image"]
    assert aipp.minimum == (123.6875, 116.25, 103.5)
    assert (aipp.mean, aipp.swaps, aipp.is_dynamic, aipp.crop) == ((0, 0, 0), False, False, None)


def test_one_value_applies_to_all_channels():
    aipp = parse(config("input_format=RGB888_U8, mean_chn=104, var_reci_chn=0.5")).aipp["image"]
    assert (aipp.mean, aipp.factor) == ((104,) * 3, (0.5,) * 3)


def test_crop_and_padding_determine_the_size_of_the_input():
    text = f"{RGB}, load_start_pos_w=4, crop_size_w=20, crop_size_h=24, left_padding_size=2"
    own = parse(config(text))
    made = own.aipp["image"].output(own.inputs[0], DType.FP32)
    assert made == TensorSpec("image", DType.FP32, (3, 24, 22))


def test_a_prepared_tensor_may_be_converted_from_images():
    own = model_config(
        [tensor("jpeg", "STRING", [1])],
        [tensor("made", "FP32", [1, 8, 8])],
        {"prepared.image": "UINT8[8,8,1]", "aipp.image": "input_format=YUV400_U8"},
    )
    assert parse(own).aipp["image"].channels == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("min_chn=1", "no input_format, expected one of: RGB888_U8, YUV400_U8"),
        ("input_format=YUV420SP_U8", "input_format=YUV420SP_U8, expected one of: RGB888_U8,"),
        ("input_format=RGB888_U8, mean=1", "no key of AIPP 'mean', expected one of: aipp_mode, "),
        ("input_format=RGB888_U8, min_chn", "'min_chn', expected min_chn=value once"),
        (f"{RGB}, min_chn=1", "min_chn twice, expected min_chn=value once"),
        ("input_format=YUV400_U8", "'image' UINT8[24,32,3], expected UINT8[height,width,1] for"),
        (f"{RGB}, aipp_mode=both", "aipp_mode=both, expected one of: static, dynamic"),
        (f"{RGB}, mean_chn=1.5", "mean_chn=1.5, expected 3 whole numbers from 0 to 255, one for"),
        ("input_format=RGB888_U8, min_chn=1 2", "min_chn=1 2, expected 3 numbers from 0 to 255,"),
        ("input_format=RGB888_U8, var_reci_chn=nan", "var_reci_chn=nan, expected 3 numbers from"),
        ("input_format=RGB888_U8, var_reci_chn=500", "(255 - 0 - 0) * 500, expected what FP16"),
        (f"{RGB}, crop_size_w=8", "no crop_size_h, expected the size of what is cut out"),
        (f"{RGB}, load_start_pos_w=30, crop_size_w=8, crop_size_h=8", "8 x 8 from 30, 0 on,"),
        (f"{RGB}, top_padding_size=33", "top_padding_size=33, expected a whole number from 0 to"),
    ],
)
def test_invalid_values_are_refused(text, fault):
    assert_fault(config(text), FIELD + fault)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ([8, 1, 3], "'image' UINT8[8,1,3], expected sides from 2 to 4096"),
        ([4097, 8, 3], "'image' UINT8[4097,8,3], expected sides from 1 to 4096"),
    ],
)
def test_sides_outside_of_aipps_limits_are_refused(source, fault):
    assert_fault(config(RGB, source), FIELD + fault)


def test_padding_is_for_images_of_at_most_1080_columns():
    fault = "a width of 1081 with padding, expected at most 1080"
    assert_fault(config(f"{RGB}, left_padding_size=1", [24, 1080, 3]), FIELD + fault)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("crop_size_w=8, crop_size_h=8", "crop_size_w, expected none for images of any size"),
        ("left_padding_size=1", "left_padding_size, expected none for any size"),
        ("aipp_mode=dynamic", "aipp_mode=dynamic of axes, expected sides in numbers"),
    ],
)
def test_images_of_any_size_have_neither_crop_nor_padding_nor_dynamic_aipp(text, fault):
    more = {"axes.image": "height,width", "limit.height": "32", "limit.width": "32"}
    assert_fault(images_config(f"{RGB}, {text}", [-1, -1, 3], [3, 24, 32], more), FIELD + fault)


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"aipp.other": RGB}, "'aipp.other': found no input 'other', expected one of: image"),
        ({"batch_axis.image": "none"}, FIELD + "batch_axis.image: none"),
        (
            {"engine": "ge_session", "devices": "npu:0", "workspace_pool_mib": "64"},
            FIELD + "engine ge_session, expected an .om file on a card, or another device",
        ),
        (
            {"aipp.image": f"{RGB}, aipp_mode=dynamic", "devices": "npu:0", "placement": "service"},
            FIELD + "aipp_mode=dynamic, expected static with placement: service",
        ),
    ],
)
def test_conflicts_with_other_parameters_are_refused(parameters, fault):
    assert_fault(images_config(RGB, SOURCE, MADE, parameters), fault)


def test_one_mode_for_all_and_dynamic_for_one():
    def two(first, second):
        inputs = [tensor("image", "UINT8", SOURCE), tensor("other", "UINT8", SOURCE)]
        texts = {"aipp.image": f"{RGB}, aipp_mode={first}"}
        texts["aipp.other"] = f"{RGB}, aipp_mode={second}"
        return model_config(inputs, [tensor("made", "FP32", MADE)], texts)

    assert_fault(two("dynamic", "dynamic"), "expected dynamic for one input, static for all")
    assert_fault(two("dynamic", "static"), "expected one aipp_mode for all inputs, as ATC requires")
