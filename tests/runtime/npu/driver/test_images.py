"""Images on a simulated card: made by AIPP as they are made in front of the graph on a CPU."""

import re

import numpy as np
import pytest
from runtime.npu.driver.test_om_serving import on_card
from runtime.support.ascend import compile_om
from runtime.support.images import RGB, images_config, write_shown

from ge_runtime import ArtifactFault, EngineFault, Runtime, RuntimeFault
from ge_runtime.cli.build import shape_flags
from ge_runtime.config import RuntimeConfig
from ge_runtime.npu.driver.atc import write_conf

CROPPED = (
    f"{RGB}, rbuv_swap_switch=true, load_start_pos_w=3, load_start_pos_h=1, crop_size_w=6, "
    "crop_size_h=4, left_padding_size=1, right_padding_size=1, top_padding_size=2"
)
SOURCE, MADE = [8, 10, 3], [3, 6, 8]
AXES = {
    "axes.image": "height,width",
    "axes.made": "height,width",
    "limit.height": "8",
    "limit.width": "8",
    "gears.height,width": "4x6, 8x8",
    "padding.height": "equal",
    "padding.width": "equal",
}


def built(folder, config, *graph):
    """The folder with model.onnx, and model.om for its configuration, by the simulator's ATC."""
    write_shown(folder, 3, *graph)
    parsed = RuntimeConfig.parse(on_card(config), cores=1)
    flags, _ = shape_flags(folder, folder, parsed)
    conf = write_conf(folder / "model.om", flags["model"].conf)
    compile_om(folder, *flags["model"].flags, f"--insert_op_conf={conf}")
    return folder


def answers_of(folder, config, images):
    runtime = Runtime.open(folder, config, instance_name="images_0")
    try:
        return runtime.infer([{"image": image[None]} for image in images])
    finally:
        runtime.close()


def images_of(*shape, count=3):
    return np.random.default_rng(5).integers(0, 256, (count, *shape), np.uint8)


def assert_same(folder, config, images):
    """A card answers as the CPU does."""
    for own, card in zip(
        answers_of(folder, config, images), answers_of(folder, on_card(config), images), strict=True
    ):
        np.testing.assert_array_equal(card["made"], own["made"])
        np.testing.assert_allclose(card["sums"], own["sums"], rtol=1e-5)


@pytest.fixture(scope="module")
def aipp_folder(tmp_path_factory):
    """A model with dynamic AIPP, whose parameters are set for each execution."""
    config = images_config(f"{CROPPED}, aipp_mode=dynamic", SOURCE, MADE)
    return built(tmp_path_factory.mktemp("aipp"), config, *MADE[1:]), config


@pytest.mark.brute_force
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("gears", [{}, {"gears.batch": "1, 4, 8"}], ids=["one", "gears"])
def test_one_folder_answers_the_same_on_a_card_and_on_the_cpu(tmp_path, mode, gears):
    config = images_config(f"{CROPPED}, aipp_mode={mode}", SOURCE, MADE, gears)
    assert_same(built(tmp_path, config, *MADE[1:]), config, images_of(*SOURCE))


@pytest.mark.parametrize(
    "call",
    [
        *("create_aipp", "set_aipp_input_format", "set_aipp_src_image_size", "set_input_aipp"),
        *("set_aipp_rbuv_swap_switch", "set_aipp_crop_params", "set_aipp_padding_params"),
        *("set_aipp_dtc_pixel_mean", "set_aipp_dtc_pixel_min", "set_aipp_pixel_var_reci"),
    ],
)
def test_no_refusal_of_aipp_goes_unseen(aipp_folder, monkeypatch, call):
    import acl

    folder, config = aipp_folder
    refuses = 0 if call == "create_aipp" else 500002
    monkeypatch.setattr(acl.mdl, call, lambda *given: refuses)
    with pytest.raises(RuntimeFault, match=rf"acl\.mdl\.{call}"):
        answers_of(folder, on_card(config), images_of(*SOURCE, count=1))
    monkeypatch.undo()


def test_sides_may_have_gears(tmp_path):
    config = images_config(RGB, [-1, -1, 3], [3, -1, -1], AXES, batch=1)
    assert_same(built(tmp_path, config), config, images_of(4, 6, 3))


def test_parameters_are_set_once_for_each_load_of_the_model(aipp_folder, machine):
    folder, config = aipp_folder
    runtime = Runtime.open(folder, on_card(config), instance_name="images_0")
    images = images_of(*SOURCE)

    def answer():
        return runtime.infer([{"image": image[None]} for image in images])[0]["made"]

    first, calls = answer(), machine.report.calls["mdl.set_input_aipp"]
    np.testing.assert_array_equal(answer(), first)
    assert machine.report.calls["mdl.set_input_aipp"] == calls
    machine.arm("execute@1=507015")
    assert isinstance(runtime.infer([{"image": images[:1]}])[0], EngineFault)
    np.testing.assert_array_equal(answer(), first)  # loaded again, with the parameters set again
    runtime.close()


def test_one_file_may_have_other_parameters_in_each_model(aipp_folder):
    folder, config = aipp_folder
    others = images_config(
        f"{CROPPED.replace('true', 'false')}, mean_chn=1, aipp_mode=dynamic", SOURCE, MADE
    )
    images = images_of(*SOURCE)
    runtimes = [
        Runtime.open(folder, on_card(own), instance_name="images_0") for own in (config, others)
    ]
    for own, runtime in zip((config, others, config), (*runtimes, runtimes[0]), strict=True):
        (found,) = runtime.infer([{"image": images[:1]}])
        (expected,) = answers_of(folder, own, images[:1])
        np.testing.assert_array_equal(found["made"], expected["made"])
    for runtime in runtimes:
        runtime.close()


@pytest.mark.parametrize(
    ("compiled", "declared", "reported"),
    [
        (RGB, f"{RGB}, mean_chn=7", "meanChn0: found 0, expected 7: run `ge-runtime build`"),
        (RGB, RGB.replace("0.0174", "0.0175"), "varReciChn2: found 0.0173"),
        (RGB, f"{RGB}, rbuv_swap_switch=true", "rbuvSwapSwitch: found 0, expected 1"),
        (RGB, f"{RGB}, aipp_mode=dynamic", "found static AIPP, expected dynamic AIPP"),
        (f"{RGB}, aipp_mode=dynamic", RGB, "found dynamic AIPP, expected static AIPP"),
    ],
)
def test_a_file_for_other_images_is_refused(tmp_path, compiled, declared, reported):
    folder = built(tmp_path, images_config(compiled, [6, 8, 3], MADE), *MADE[1:])
    with pytest.raises(ArtifactFault, match=re.escape(reported)):
        answers_of(folder, on_card(images_config(declared, [6, 8, 3], MADE)), [])


def test_a_file_without_aipp_is_refused(tmp_path):
    write_shown(tmp_path, 3, *MADE[1:])
    compile_om(tmp_path, "--input_shape=image:8,3,6,8")
    reported = "'image': aipp.image of config.pbtxt: found no AIPP, expected static AIPP"
    with pytest.raises(ArtifactFault, match=reported):
        answers_of(tmp_path, on_card(images_config(RGB, [6, 8, 3], MADE)), [])


def test_undeclared_dynamic_images_are_refused(aipp_folder):
    folder, config = aipp_folder
    parameters = {key: own for key, own in config["parameters"].items() if key != "aipp.image"}
    config = {**config, "parameters": parameters}
    with pytest.raises(ArtifactFault, match="found dynamic AIPP, expected static or none"):
        answers_of(folder, on_card(config), [])


def test_a_file_for_fewer_images_is_refused(tmp_path):
    config = images_config(f"{RGB}, aipp_mode=dynamic", [6, 8, 3], MADE)
    write_shown(tmp_path, 3, *MADE[1:])
    conf = write_conf(tmp_path / "model.om", "aipp_op { aipp_mode: dynamic max_src_image_size: 9 }")
    compile_om(tmp_path, "--input_shape=image:8,3,6,8", f"--insert_op_conf={conf}")
    with pytest.raises(ArtifactFault, match=r"found max_src_image_size 9, expected 1,152 for 8"):
        answers_of(tmp_path, on_card(config), [])


def test_images_that_another_team_compiled_are_served_as_they_are(tmp_path):
    folder = built(tmp_path, images_config(RGB, [6, 8, 3], MADE), *MADE[1:])
    config = images_config(RGB, [6, 8, 3], MADE)
    images = images_of(6, 8, 3)
    declared = answers_of(folder, on_card(config), images)
    del config["parameters"]["aipp.image"]
    for own, other in zip(declared, answers_of(folder, on_card(config), images), strict=True):
        np.testing.assert_array_equal(own["made"], other["made"])


def test_gears_of_several_axes_are_refused_for_images(tmp_path):
    config = images_config(RGB, [-1, -1, 3], [3, -1, -1], AXES | {"gears.batch": "1, 4"}, batch=4)
    with pytest.raises(ArtifactFault, match="found gears of several axes, expected gears of"):
        built(tmp_path, config)
