"""Images of bytes in a runtime, compared with a second implementation."""

import numpy as np
import pytest
from onnx import TensorProto
from runtime.support.images import RGB, images_config, write_shown

from ge_runtime import Runtime
from ge_runtime.errors import ConfigFault
from ge_runtime.testing.conformance import check

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
