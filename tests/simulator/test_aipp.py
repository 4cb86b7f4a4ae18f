"""AIPP: compilation of --insert_op_conf, the model's interface, and the processing of images."""

import numpy as np
import pytest
from runtime.support.images import shown_graph
from simulator.support.driving import fill, ok
from simulator.support.models import Loaded, breaks, compile_to, node, onnx_model

from ascend_simulator.codes import Code
from ascend_simulator.compiler.flags import CompileFault

INVALID = Code.INVALID_PARAM
RGB = {"aipp_mode": "static", "input_format": "RGB888_U8"}
SHAPE = {"input_format": "NCHW", "input_shape": "image:2,3,4,6"}
DYNAMIC = {"aipp_mode": "dynamic", "max_src_image_size": 2 * 3 * 10 * 10}


def conf(folder, *ops, more=""):
    path = folder / "aipp.cfg"
    text = "".join(
        "aipp_op {\n" + "".join(f"  {name}: {value}\n" for name, value in op.items()) + "}\n"
        for op in ops
    )
    path.write_text(text + more)
    return str(path)


def build(folder, op, /, channels=3, **flags):
    path = conf(folder, op)
    return compile_to(folder, shown_graph(channels), **{**SHAPE, "insert_op_conf": path, **flags})


def shown(acl, path, *images, setting=None):
    """Return the graph's input for a batch of images."""
    loaded = Loaded(acl, path)
    loaded.write(0, np.concatenate([image.ravel() for image in images]))
    if setting is not None:
        ok(setting(loaded))
    ok(loaded.execute())
    return loaded.read(0)


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


# -- static --------------------------------------------------------------------------------------


def test_the_input_is_the_raw_image(acl, tmp_path):
    loaded = Loaded(acl, build(tmp_path, RGB))
    mdl = acl.mdl
    for dims in (mdl.get_input_dims, mdl.get_input_dims_v2):
        assert ok(dims(loaded.desc, 0))["dims"] == [2, 4, 6, 3]
    assert mdl.get_input_data_type(loaded.desc, 0) == 4
    assert mdl.get_input_format(loaded.desc, 0) == 1
    assert mdl.get_input_size_by_index(loaded.desc, 0) == 2 * 4 * 6 * 3
    assert ok(mdl.get_aipp_type(loaded.id, 0)) == (1, 0xFFFFFFFF)


def test_channels_come_first_and_are_normalised_to_fp16(acl, tmp_path):
    more = {"mean_chn_0": 10, "min_chn_1": 123.675, "var_reci_chn_1": 0.0171}
    images = pixels(2, 4, 6, 3)
    found = shown(acl, build(tmp_path, {**RGB, **more}), images)
    np.testing.assert_array_equal(found[:, 0], images[..., 0].astype(np.float32) - 10)
    expected = (images[..., 1] - np.float64(123.6875)) * np.float64(np.float16(0.0171))
    np.testing.assert_array_equal(found[:, 1], expected.astype(np.float16))
    np.testing.assert_array_equal(found[:, 2], images[..., 2])


def test_channels_are_swapped_then_the_crop_is_cut_and_padded(acl, tmp_path):
    sides = {"src_image_size_w": 9, "src_image_size_h": 7}
    crop = {"crop": "true", "load_start_pos_w": 2, "crop_size_w": 5, "crop_size_h": 3}
    padding = {"padding": "true", "left_padding_size": 1, "bottom_padding_size": 1}
    op = {**RGB, **sides, **crop, **padding, "rbuv_swap_switch": "true", "mean_chn_0": 1}
    images = pixels(2, 7, 9, 3)
    found = shown(acl, build(tmp_path, op), images)
    assert not found[:, :, 3].any()
    assert not found[..., 0].any()
    np.testing.assert_array_equal(found[:, 0, :3, 1:], images[:, :3, 2:7, 2].astype(np.int32) - 1)
    np.testing.assert_array_equal(found[:, 2, :3, 1:], images[:, :3, 2:7, 0])


@pytest.mark.parametrize("side", ["crop_size_w", "crop_size_h"])
def test_a_crop_without_sides_has_the_size_of_the_graphs_input(acl, tmp_path, side):
    place = {"load_start_pos_w": 1, "load_start_pos_h": 2, side: 4}
    sizes = {"src_image_size_w": 8, "src_image_size_h": 6}
    images = pixels(2, 6, 8, 3)
    found = shown(acl, build(tmp_path, {**RGB, "crop": "true", **sizes, **place}), images)
    np.testing.assert_array_equal(found, np.moveaxis(images[:, 2:6, 1:7], 3, 1))


def test_yuv_is_of_three_bytes_for_two_pixels(acl, tmp_path):
    """Uses the matrix for red, green and blue that ATC's guide has for JPEG."""
    matrix = {
        f"matrix_r{row}c{column}": value
        for row, values in enumerate([(256, 0, 359), (256, -88, -183), (256, 454, 0)])
        for column, value in enumerate(values)
    }
    biases = {"input_bias_0": 0, "input_bias_1": 128, "input_bias_2": 128}
    op = {"aipp_mode": "static", "input_format": "YUV420SP_U8", "csc_switch": "true"}
    path = build(tmp_path, {**op, **matrix, **biases})
    loaded = Loaded(acl, path)
    assert acl.mdl.get_input_size_by_index(loaded.desc, 0) == 2 * 36
    assert ok(acl.mdl.get_input_dims(loaded.desc, 0))["dims"] == [2, 4, 6, 3]
    image = pixels(36)
    y, uv = image[:24].reshape(4, 6).astype(int), image[24:].reshape(2, 3, 2).astype(int)
    u, v = uv.repeat(2, 0).repeat(2, 1).transpose(2, 0, 1) - 128
    expected = [y + (359 * v >> 8), (256 * y - 88 * u - 183 * v) >> 8, y + (454 * u >> 8)]
    found = shown(acl, path, image, image)
    np.testing.assert_array_equal(found[1], np.clip(expected, 0, 255))


def test_the_default_color_matrix_is_the_video_range(acl, tmp_path):
    csc = {"aipp_mode": "static", "csc_switch": "true"}
    image = pixels(36)
    y, uv = image[:24].reshape(4, 6).astype(int) - 16, image[24:].reshape(2, 3, 2).astype(int) - 128
    u, v = uv.repeat(2, 0).repeat(2, 1).transpose(2, 0, 1)
    made = (298 * y + 516 * u, 298 * y - 100 * u - 208 * v, 298 * y + 409 * v)  # blue first
    path = build(tmp_path, {**csc, "input_format": "YUV420SP_U8"})
    found = shown(acl, path, image, image)
    np.testing.assert_array_equal(found[0], np.clip(np.right_shift(made, 8), 0, 255))
    images = pixels(2, 4, 6, 3)
    r, g, b = np.moveaxis(images.astype(int), 3, 0)
    made = (66 * r + 129 * g + 25 * b, -38 * r - 74 * g + 112 * b, 112 * r - 94 * g - 18 * b)
    found = shown(acl, build(tmp_path, {**csc, "input_format": "RGB888_U8"}), images)
    biases = np.array([16, 128, 128])[:, None, None, None]
    expected = np.clip(np.right_shift(made, 8) + biases, 0, 255)
    np.testing.assert_array_equal(np.moveaxis(found, 1, 0), expected)


def test_batch_gears_change_the_number_of_images(acl, tmp_path):
    flags = {"input_shape": "image:-1,3,4,6", "dynamic_batch_size": "1,3"}
    loaded = Loaded(acl, build(tmp_path, RGB, **flags))
    images = pixels(3, 4, 6, 3)
    loaded.write(0, images)
    for rows in (1, 3):
        ok(loaded.set_batch(rows))
        ok(loaded.execute())
        np.testing.assert_array_equal(loaded.read(0), np.moveaxis(images[:rows], 3, 1))


def test_image_size_gears_change_the_images_sides(acl, tmp_path):
    flags = {"input_shape": "image:1,3,-1,-1", "dynamic_image_size": "2,4;4,4"}
    loaded = Loaded(acl, build(tmp_path, RGB, **flags))
    images = pixels(1, 2, 4, 3)
    loaded.write(0, images)
    place = loaded.gear_place
    ok(acl.mdl.set_dynamic_hw_size(loaded.id, loaded.inputs.dataset, place, 2, 4))
    ok(loaded.execute())
    np.testing.assert_array_equal(loaded.read(0), np.moveaxis(images, 3, 1))


def test_aipp_parameters_are_returned(acl, tmp_path):
    op = {**RGB, "mean_chn_1": 7, "var_reci_chn_2": 0.5, "rbuv_swap_switch": "true"}
    loaded = Loaded(acl, build(tmp_path, op))
    info = ok(acl.mdl.get_first_aipp_info(loaded.id, 0))
    reported = [info[key] for key in ("inputFormat", "srcImageSizeW", "srcImageSizeH", "meanChn1")]
    assert reported == [3, 6, 4, 7]
    assert (info["varReciChn2"], info["rbuvSwapSwitch"], info["cropSwitch"]) == (0.5, 1, 0)
    sides = [f"{side}PaddingSize" for side in ("top", "bottom", "left", "right")]
    not_cut = ["loadStartPosW", "loadStartPosH", "cropSizeW", "cropSizeH", "paddingSwitch"]
    assert [info[key] for key in (*sides, *not_cut)] == [0] * 9
    (dims,) = info["outDims"]
    assert (dims["srcSize"], dims["aippOutSize"]) == (144, 576)


def test_an_input_without_aipp_returns_none(acl, tmp_path):
    path = compile_to(tmp_path, shown_graph(), **SHAPE)
    loaded = Loaded(acl, path)
    assert ok(acl.mdl.get_aipp_type(loaded.id, 0)) == (0, 0xFFFFFFFF)
    assert acl.mdl.get_first_aipp_info(loaded.id, 0) == (None, Code.GE_AIPP_NOT_EXIST)
    assert acl.mdl.get_aipp_type(loaded.id, 5) == (0, 0, Code.GE_PARAM_INVALID)
    assert acl.mdl.get_aipp_type(99, 0)[2] == Code.GE_EXEC_MODEL_ID_INVALID


@pytest.mark.parametrize(
    ("code", "op", "flags"),
    [
        ("E10001", {"aipp_mode": "both"}, {}),
        ("E10001", {"aipp_mode": "static"}, {}),
        ("E10001", {**RGB, "mean": 1}, {}),
        ("E10001", {**RGB, "mean_chn_0": 256}, {}),
        ("E10001", {**RGB, "mean_chn_0": 1.5}, {}),
        ("E10001", {**RGB, "var_reci_chn_0": 70000}, {}),
        ("E10001", {**RGB, "csc_switch": "yes"}, {}),
        ("E10001", {**RGB, "related_input_rank": 1}, {}),
        ("E10001", {**RGB, "src_image_size_w": 1}, {}),
        ("E10001", {**RGB, "src_image_size_w": 8}, {}),
        ("E10001", {**RGB, "crop": "true"}, {}),
        ("E10001", {**RGB, "left_padding_size": 33}, {}),
        ("E10001", {**RGB, "input_format": "YUV400_U8"}, {}),
        ("E10001", {**RGB, "input_format": "YUV400_U8", "csc_switch": "true"}, {}),
        ("E10001", {**RGB, "input_format": "YUV420SP_U8", "src_image_size_w": 3}, {}),
        ("E10001", RGB, {"input_format": "ND"}),
        (
            "E10001",
            RGB,
            {"input_format": "ND", "input_shape": "image:-1,3,4,6", "dynamic_dims": "1;2"},
        ),
        ("E10001", RGB, {"input_shape": "image:-1,3,4,6"}),
        (
            "E10001",
            {**RGB, "src_image_size_w": 4, "src_image_size_h": 4},
            {"input_shape": "image:1,3,-1,-1", "dynamic_image_size": "2,4;4,4"},
        ),
        ("E10001", {"aipp_mode": "dynamic"}, {}),
        ("E10055", {**DYNAMIC, "support_rotation": "true"}, {}),
        ("E10055", {**RGB, "resize": "true"}, {}),
        ("E10055", {**RGB, "input_format": "XRGB8888_U8"}, {}),
        ("E10055", {**RGB, "padding_value": 1}, {}),
    ],
)
def test_atc_refuses_invalid_aipp(tmp_path, code, op, flags):
    with pytest.raises(CompileFault) as caught:
        build(tmp_path, op, **flags)
    assert caught.value.code == code


def test_rgb_is_converted_to_luma_and_chroma_around_the_bias(acl, tmp_path):
    matrix = {"matrix_r0c0": 256, "matrix_r1c0": 0, "matrix_r2c2": 128, "output_bias_2": 100}
    rest = {f"matrix_r{r}c{c}": 0 for r, c in ((0, 1), (0, 2), (1, 1), (1, 2), (2, 0), (2, 1))}
    images = pixels(2, 4, 6, 3) // 2
    found = shown(acl, build(tmp_path, {**RGB, "csc_switch": "true", **matrix, **rest}), images)
    np.testing.assert_array_equal(found[:, 0], images[..., 0] + 16)
    assert (found[:, 1] == 128).all()
    np.testing.assert_array_equal(found[:, 2], images[..., 2] // 2 + 100)


@pytest.mark.parametrize(
    "text", ["", "aipp_op {", "aipp {}", "aipp_op { aipp_mode static }", "aipp_op { mean_chn_0: }"]
)
def test_an_invalid_aipp_file_is_refused(tmp_path, text):
    path = conf(tmp_path, more=text)
    with pytest.raises(CompileFault) as caught:
        compile_to(tmp_path, shown_graph(), **SHAPE, insert_op_conf=path)
    assert caught.value.code == "E10001"


def test_inputs_are_named_once_and_are_images_of_floats(tmp_path):
    for ops, model in (
        ([RGB, RGB], shown_graph()),
        ([RGB, {**DYNAMIC, "related_input_rank": 1}], shown_graph()),
        ([RGB], _of(7, [2, 3, 4, 6])),
        ([RGB], _of(1, [2, 3, 4])),
    ):
        with pytest.raises(CompileFault) as caught:
            compile_to(tmp_path, model, input_format="NCHW", insert_op_conf=conf(tmp_path, *ops))
        assert caught.value.code == "E10001"
    mixed = conf(tmp_path, RGB, {**DYNAMIC, "related_input_rank": 1})
    with pytest.raises(CompileFault, match="found static and dynamic, expected the same aipp_mode"):
        compile_to(tmp_path, shown_graph(), **SHAPE, insert_op_conf=mixed)
    with pytest.raises(CompileFault) as caught:
        compile_to(tmp_path, shown_graph(), **SHAPE, insert_op_conf=str(tmp_path / "none"))
    assert caught.value.code == "E10410"


def _of(kind, dims):
    return onnx_model(
        [node("Identity", ["image"], ["y"])], [("image", kind, dims)], [("y", kind, dims)]
    )


def test_comments_and_commas_are_ignored(acl, tmp_path):
    text = "aipp_op { # of the first\n aipp_mode: static, input_format: RGB888_U8; }"
    path = conf(tmp_path, more=text)
    om = compile_to(tmp_path, shown_graph(), **SHAPE, insert_op_conf=path)
    images = pixels(2, 4, 6, 3)
    np.testing.assert_array_equal(shown(acl, om, images), np.moveaxis(images, 3, 1))


# -- dynamic -------------------------------------------------------------------------------------


def setting_of(acl, rows=2, width=6, height=4, layout=3):
    mdl = acl.mdl
    setting = mdl.create_aipp(rows)
    ok(mdl.set_aipp_input_format(setting, layout))
    ok(mdl.set_aipp_src_image_size(setting, width, height))
    return setting


def place_of(acl, loaded):
    return ok(acl.mdl.get_input_index_by_name(loaded.desc, "ascend_dynamic_aipp_data"))


def set_aipp(acl, loaded, setting):
    return acl.mdl.set_input_aipp(loaded.id, loaded.inputs.dataset, place_of(acl, loaded), setting)


def test_dynamic_aipp_has_an_input_for_its_parameters(acl, tmp_path):
    loaded = Loaded(acl, build(tmp_path, DYNAMIC))
    mdl = acl.mdl
    assert mdl.get_num_inputs(loaded.desc) == 2
    assert mdl.get_input_size_by_index(loaded.desc, 0) == 600
    assert mdl.get_input_size_by_index(loaded.desc, 1) == ok(mdl.get_aipp_data_size(2)) == 256
    assert ok(mdl.get_aipp_type(loaded.id, 0)) == (2, 1)
    assert ok(mdl.get_aipp_type(loaded.id, 1)) == (3, 0xFFFFFFFF)
    assert ok(mdl.get_first_aipp_info(loaded.id, 0))["inputFormat"] == 0
    (dims,) = ok(mdl.get_first_aipp_info(loaded.id, 0))["outDims"]
    assert dims["aippOutdims"]["dims"] == [2, 3, 4, 6]
    assert dims["srcDims"]["dims"] == [2, 4, 6, 3]


@pytest.mark.parametrize("by_input", [False, True])
def test_each_image_has_parameters_of_its_own(acl, tmp_path, by_input):
    loaded = Loaded(acl, build(tmp_path, DYNAMIC))
    mdl = acl.mdl
    setting = setting_of(acl, width=8, height=6)
    for index, start in enumerate((0, 2)):
        ok(mdl.set_aipp_crop_params(setting, 1, start, start, 6, 4, index))
    ok(mdl.set_aipp_dtc_pixel_mean(setting, 5, 0, 0, 0, 1))
    ok(mdl.set_aipp_dtc_pixel_min(setting, 1.0, 0, 0, 0, 1))
    ok(mdl.set_aipp_pixel_var_reci(setting, 0.5, 1.0, 1.0, 1.0, 1))
    ok(mdl.set_aipp_rbuv_swap_switch(setting, 1))
    if by_input:
        ok(mdl.set_aipp_by_input_index(loaded.id, loaded.inputs.dataset, 0, setting))
    else:
        ok(set_aipp(acl, loaded, setting))
    ok(mdl.destroy_aipp(setting))
    images = pixels(2, 6, 8, 3)
    loaded.write(0, images)
    ok(loaded.execute())
    found = loaded.read(0)
    np.testing.assert_array_equal(found[0], np.moveaxis(images[0, :4, :6, ::-1], 2, 0))
    red = (images[1, 2:, 2:, 2].astype(np.float32) - 6) / 2
    np.testing.assert_array_equal(found[1, 0], red)


def test_padding_and_colours_are_set_as_well(acl, tmp_path):
    loaded = Loaded(acl, build(tmp_path, DYNAMIC))
    mdl = acl.mdl
    setting = setting_of(acl, width=4, height=4, layout=1)
    ok(mdl.set_aipp_csc_params(setting, 1, 256, 0, 0, 256, 0, 0, 256, 0, 0, *[0] * 6))
    for index in range(2):
        ok(mdl.set_aipp_padding_params(setting, 1, 0, 0, 1, 1, index))
    ok(set_aipp(acl, loaded, setting))
    image = pixels(24)
    loaded.write(0, np.tile(image, 2))
    ok(loaded.execute())
    grey = np.pad(image[:16].reshape(4, 4), ((0, 0), (1, 1)))
    np.testing.assert_array_equal(loaded.read(0)[1], [grey] * 3)


def test_a_configured_bias_is_added_to_its_channel(acl, tmp_path):
    loaded = Loaded(acl, build(tmp_path, DYNAMIC))
    setting = setting_of(acl)
    matrix = (256, 0, 0, 0, 256, 0, 0, 0, 256)
    ok(acl.mdl.set_aipp_csc_params(setting, 1, *matrix, 1, 20, 30, 0, 0, 0))
    ok(set_aipp(acl, loaded, setting))
    images = pixels(2, 4, 6, 3) // 2
    loaded.write(0, images)
    ok(loaded.execute())
    np.testing.assert_array_equal(loaded.read(0), np.moveaxis(images + np.array([1, 20, 30]), 3, 1))


def test_batch_gears_have_parameters_for_the_largest_gear(acl, tmp_path):
    flags = {"input_shape": "image:-1,3,4,6", "dynamic_batch_size": "1,2"}
    loaded = Loaded(acl, build(tmp_path, DYNAMIC, **flags))
    assert loaded.gear_place == 2
    assert set_aipp(acl, loaded, setting_of(acl, rows=1)) == INVALID
    ok(set_aipp(acl, loaded, setting_of(acl, rows=2)))
    images = pixels(2, 4, 6, 3)
    loaded.write(0, images)
    for rows in (1, 2):
        ok(loaded.set_batch(rows))
        ok(loaded.execute())
        np.testing.assert_array_equal(loaded.read(0), np.moveaxis(images[:rows], 3, 1))


def test_parameters_not_written_by_a_setter_are_detected(acl, tmp_path):
    loaded = Loaded(acl, build(tmp_path, DYNAMIC))
    ok(set_aipp(acl, loaded, setting_of(acl)))
    fill(loaded.inputs.ptrs[1], b"\x04")
    with breaks("model.aipp-not-set"):
        loaded.execute()


def test_parameters_that_do_not_fit_the_model_are_refused(acl, tmp_path):
    loaded = Loaded(acl, build(tmp_path, DYNAMIC))
    mdl = acl.mdl

    def changed(change, **more):
        setting = setting_of(acl, **more)
        if change is not None:
            ok(change(setting))
        return set_aipp(acl, loaded, setting)

    assert changed(None, rows=1) == INVALID
    assert changed(None, layout=2) == INVALID
    assert changed(None, layout=4) == INVALID  # one channel
    assert changed(None, width=8) == INVALID
    assert changed(None, width=100, height=100) == INVALID  # exceeds max_src_image_size
    assert changed(lambda own: mdl.set_aipp_crop_params(own, 1, 2, 0, 5, 4, 0)) == INVALID
    assert changed(lambda own: mdl.set_aipp_scf_params(own, 1, 16, 16, 16, 16, 0)) == INVALID
    assert changed(lambda own: mdl.set_aipp_padding_params(own, 1, 1, 0, 0, 0, 0)) == INVALID
    unset = mdl.create_aipp(2)
    ok(mdl.set_aipp_input_format(unset, 3))
    assert set_aipp(acl, loaded, unset) == INVALID
    good, inputs = setting_of(acl), loaded.inputs.dataset
    assert mdl.set_input_aipp(loaded.id, inputs, 0, good) == INVALID
    assert mdl.set_input_aipp(99, inputs, 1, good) == Code.GE_EXEC_MODEL_ID_INVALID
    assert mdl.set_input_aipp(loaded.id, inputs, 1, 0) == INVALID
    assert mdl.set_aipp_by_input_index(loaded.id, inputs, 1, good) == Code.FAILURE
    assert mdl.set_aipp_by_input_index(loaded.id, inputs, 7, good) == INVALID
    with breaks("model.dead-handle"):
        mdl.set_aipp_by_input_index(loaded.id, inputs, 7, 12345)
    short = loaded.buffers([600, 200])
    assert (
        mdl.set_input_aipp(loaded.id, short.dataset, 1, good)
        == Code.GE_DYNAMIC_INPUT_LENGTH_INVALID
    )


def test_setters_check_their_arguments(acl):
    mdl = acl.mdl
    assert mdl.create_aipp(0) == 0
    assert mdl.get_aipp_data_size(0) == (0, INVALID)
    setting = mdl.create_aipp(2)
    assert mdl.set_aipp_src_image_size(setting, 1, 8) == INVALID
    assert mdl.set_aipp_src_image_size(setting, 8, 4097) == INVALID
    assert mdl.set_aipp_rbuv_swap_switch(setting, 2) == INVALID
    assert mdl.set_aipp_ax_swap_switch(setting, 2) == INVALID
    assert mdl.set_aipp_ax_swap_switch(setting, 0) == 0
    assert mdl.set_aipp_csc_params(setting, 1, *[0] * 9, *[256] * 6) == INVALID
    for place in range(6):
        biases = [256 if each == place else 0 for each in range(6)]
        assert mdl.set_aipp_csc_params(setting, 1, *[0] * 9, *biases) == INVALID
    assert mdl.set_aipp_csc_params(setting, 0, *[0] * 9, *[256] * 6) == 0
    assert mdl.set_aipp_crop_params(setting, 1, 0, 0, 0, 4, 0) == INVALID
    assert mdl.set_aipp_crop_params(setting, 0, 0, 0, 0, 0, 0) == 0
    assert mdl.set_aipp_crop_params(setting, 0, 0, 0, 0, 0, 2) == INVALID
    assert mdl.set_aipp_padding_params(setting, 1, 33, 0, 0, 0, 0) == INVALID
    assert mdl.set_aipp_scf_params(setting, 1, 8, 16, 16, 16, 0) == INVALID
    assert mdl.set_aipp_dtc_pixel_mean(setting, 256, 0, 0, 0, 0) == INVALID
    assert mdl.set_aipp_dtc_pixel_min(setting, 256.0, 0.0, 0.0, 0.0, 0) == INVALID
    assert mdl.set_aipp_pixel_var_reci(setting, 70000.0, 0.0, 0.0, 0.0, 0) == INVALID
    with pytest.raises(TypeError):
        mdl.set_aipp_pixel_var_reci(setting, "1", 0.0, 0.0, 0.0, 0)
    ok(mdl.destroy_aipp(setting))
    with breaks("model.dead-handle"):
        mdl.destroy_aipp(setting)
