"""Images converted on the host, compared with AIPP's formula."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from runtime.support.images import RGB, images_config, write_shown
from runtime.support.parsing import parse
from runtime.support.request_batches import block_of

from ge_runtime import Runtime
from ge_runtime.batching.images import Images
from ge_runtime.batching.ragged import Layout
from ge_runtime.errors import ConfigFault
from ge_runtime.specs import DType
from ge_runtime.testing.conformance import check


def made(text, images, dtype=DType.FP32, *, pad=0, rows=0, parameters=None, limits=None):
    """Return the batch for images [height, width, channels], one request each."""
    channels = images[0].shape[2]
    source = [-1, -1, channels] if limits else [*images[0].shape]
    config = parse(images_config(text, source, [channels, 8, 8], parameters))
    spec = config.inputs[0]
    aipp = config.aipp["image"]
    feed = Images.of(aipp, spec, aipp.output(spec, dtype), pad)
    axes = ("height", "width") if limits else ()
    blocks = [
        block_of({"image": image[None]}, dict(zip(axes, image.shape, strict=False)))
        for image in images
    ]
    layout = Layout.of(blocks, rows=rows, extents=limits)
    batch = np.full(feed.shape(layout), np.nan, dtype.numpy)
    feed.write(layout, batch)
    return batch


def formula(pixels, mean, low, factor):
    """Compute the documented formula, with min and var as FP16 and one rounding to FP16."""
    low, factor = np.float64(np.float16(low)), np.float64(np.float16(factor))
    return ((pixels.astype(np.float64) - mean - low) * factor).astype(np.float16)


@given(
    st.integers(0, 255),
    st.floats(0, 255, width=16),
    st.floats(-100, 100, width=16),
    st.integers(0, 2**32 - 1),
)
def test_each_pixel_is_converted_by_the_formula(mean, low, factor, seed):
    image = np.random.default_rng(seed).integers(0, 256, (3, 4, 1), np.uint8)
    text = f"input_format=YUV400_U8, mean_chn={mean}, min_chn={low!r}, var_reci_chn={factor!r}"
    expected = formula(image[..., 0], mean, low, factor)
    np.testing.assert_array_equal(made(text, [image])[0, 0], expected.astype(np.float32))
    np.testing.assert_array_equal(made(text, [image], DType.FP16)[0, 0], expected)


def test_channels_come_first_and_may_be_swapped():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    plain = "input_format=RGB888_U8"
    np.testing.assert_array_equal(made(plain, [image])[0], np.moveaxis(image, 2, 0))
    swapped = made(f"{plain}, rbuv_swap_switch=true, mean_chn=1 0 0", [image])[0]
    np.testing.assert_array_equal(swapped[0], image[..., 2].astype(np.float32) - 1)
    np.testing.assert_array_equal(swapped[2], image[..., 0])


def test_a_crop_gets_a_border_of_zeros():
    image = np.arange(30, dtype=np.uint8).reshape(5, 6, 1)
    text = (
        "input_format=YUV400_U8, mean_chn=100, load_start_pos_w=1, load_start_pos_h=2, "
        "crop_size_w=3, crop_size_h=2, left_padding_size=1, bottom_padding_size=2"
    )
    expected = np.pad(image[2:4, 1:4, 0].astype(np.float32) - 100, ((0, 2), (1, 0)))
    np.testing.assert_array_equal(made(text, [image], rows=2)[0, 0], expected)


def test_rows_of_padding_are_converted_from_the_pad_pixel():
    image = np.full((2, 2, 1), 9, np.uint8)
    text = "input_format=YUV400_U8, mean_chn=10, left_padding_size=1"
    padded = made(text, [image], rows=2)[1, 0]
    np.testing.assert_array_equal(padded, [[0, -10, -10]] * 2)


@pytest.mark.parametrize("pad", [0, 7])
def test_images_of_many_sizes_are_filled_with_the_pad_pixel(pad):
    axes = {"axes.image": "height,width", "limit.height": "8", "limit.width": "8"}
    images = [np.full((2, 3, 3), 50, np.uint8), np.full((4, 2, 3), 60, np.uint8)]
    batch = made(RGB, images, pad=pad, parameters=axes, limits={"height": 4, "width": 4})
    whole = np.full((2, 4, 4, 3), pad, np.uint8)
    whole[0, :2, :3], whole[1, :4, :2] = 50, 60
    expected = made(RGB, list(whole))
    np.testing.assert_array_equal(batch, expected)


COST = {"cost": "launch_us=100, element_ns=100, element2_ns=0"}


def test_a_model_takes_bytes_and_its_graph_floats(tmp_path):
    write_shown(tmp_path, 3, 8, 8)
    text = f"{RGB}, crop_size_w=6, crop_size_h=8, left_padding_size=2"
    config = images_config(text, [10, 12, 3], [3, 8, 8], COST)
    images = np.random.default_rng(3).integers(0, 256, (3, 10, 12, 3), np.uint8)
    runtime = Runtime.open(tmp_path, config, instance_name="images_0")
    answers = runtime.infer([{"image": image[None]} for image in images])
    runtime.close()
    for image, answer in zip(images, answers, strict=True):
        made = answer["made"][0]
        np.testing.assert_array_equal(made[:, :, :2], 0)
        expected = (image[:8, :6].astype(np.float64) - [123.6875, 116.25, 103.5]) * np.float16(
            [0.0171, 0.0175, 0.0174]
        ).astype(np.float64)
        np.testing.assert_array_equal(made[:, :, 2:], np.moveaxis(expected, 2, 0).astype("f2"))


@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16"])
def test_a_second_implementation_answers_the_same(tmp_path, kind):
    """Images of any size share a batch, with padding pixels that are not 0."""
    write_shown(tmp_path, kind=getattr(TensorProto, kind))
    axes = {"axes.image": "height,width", "limit.height": "8", "limit.width": "8", "pad.image": "9"}
    config = images_config(
        f"{RGB}, rbuv_swap_switch=true",
        [-1, -1, 3],
        [3, -1, -1],
        {**COST, **axes, "axes.made": "height,width", "padding.height": "equal"},
    )
    config["parameters"]["padding.width"] = {"string_value": "equal"}
    for output in config["output"]:
        output["data_type"] = "TYPE_FP16" if kind == "FLOAT16" else "TYPE_FP32"
    report = check(tmp_path, config, rounds=4, ranges={"image": (0, 256)}, tolerance=0)
    assert report.passed, str(report)


def test_a_graph_of_other_sizes_is_refused(tmp_path):
    write_shown(tmp_path, 3, 8, 8)
    with pytest.raises(ConfigFault) as raised:
        Runtime.open(tmp_path, images_config(RGB, [8, 9, 3], [3, 8, 8]), instance_name="images_0")
    assert (
        "parameter 'aipp.image': found FP32[*,3,8,8] in the graph, expected FP32[batch,3,8,9]"
        in str(raised.value)
    )
