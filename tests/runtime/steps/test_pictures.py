"""Image files and PCM samples become the values that the processors of transformers make."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from runtime.support.exports import PIXELS, SAMPLES, random

from ge_runtime.errors import ArtifactFault, RequestFault
from ge_runtime.specs import DType
from ge_runtime.steps.pictures import ImageProcessor, PictureStep
from ge_runtime.steps.samples import SampleStep, reads_normalization

CLIP = {
    **PIXELS,
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 40},
    "do_center_crop": True,
    "crop_size": {"height": 32, "width": 32},
    "resample": 3,
}
CONVNEXT = {
    "feature_extractor_type": "ConvNextFeatureExtractor",
    "crop_pct": 0.875,
    "do_normalize": True,
    "do_resize": True,
    "image_mean": PIXELS["image_mean"],
    "image_std": PIXELS["image_std"],
    "resample": 3,
    "size": 32,
}
MOBILEVIT = {
    "image_processor_type": "MobileViTImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 36},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_center_crop": True,
    "crop_size": 31,
    "do_flip_channel_order": True,
}


@pytest.fixture
def read(tmp_path):
    def read(fields):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
        return ImageProcessor.read(tmp_path / "preprocessor_config.json")

    return read


def image(height, width, mode="RGB"):
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def file(picture, form="PNG"):
    data = io.BytesIO()
    picture.save(data, form)
    return data.getvalue()


def resized_to_shortest(picture, edge, resample):
    """Return the picture with this shortest edge; the other one is truncated, not rounded."""
    width, height = picture.size
    other = int(edge * max(width, height) / min(width, height))
    return picture.resize((edge, other) if width <= height else (other, edge), resample)


def cropped(picture, side):
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))


def normalized(picture, scale=255):
    values = np.asarray(picture, np.float32) / np.float32(scale)
    mean, std = (np.array(PIXELS[name], np.float32) for name in ("image_mean", "image_std"))
    return (values - mean) / std


EXPECTED = {
    "vit": (PIXELS, lambda own: normalized(own.resize((32, 24), 2))),
    "clip": (CLIP, lambda own: normalized(cropped(resized_to_shortest(own, 40, 3), 32))),
    # The shortest edge is 32 / 0.875, truncated.
    "convnext": (CONVNEXT, lambda own: normalized(cropped(resized_to_shortest(own, 36, 3), 32))),
    "convnext large": (
        {**CONVNEXT, "size": {"shortest_edge": 384}},
        lambda own: normalized(own.resize((384, 384), 3)),
    ),
    "mobilevit": (
        MOBILEVIT,
        lambda own: (
            np.asarray(cropped(resized_to_shortest(own, 36, 2), 31), np.float32)[..., ::-1] / 255
        ),
    ),
    "deit": (
        {**CLIP, "image_processor_type": "DeiTImageProcessor", "size": 40},
        lambda own: normalized(cropped(own.resize((40, 40), 3), 32)),
    ),
    "bytes": (
        {**PIXELS, "do_rescale": False, "do_normalize": False},
        lambda own: np.asarray(own.resize((32, 24), 2), np.float32),
    ),
    "bytes, normalized": (
        {**PIXELS, "do_rescale": False},
        lambda own: normalized(own.resize((32, 24), 2), scale=1),
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("sides", [(60, 81), (97, 33)])
def test_pixels_are_those_of_pillow_and_numpy(read, name, sides):
    fields, expect = EXPECTED[name]
    step = PictureStep(read(fields), "pixel_values", DType.FP32, last=False)
    picture = image(*sides)
    found = step({"image": np.array([[file(picture)]], object)})["pixel_values"]
    expected = np.moveaxis(expect(picture), 2, 0)[None]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


def test_jpeg_and_gray_files_in_one_request(read):
    step = PictureStep(read(PIXELS), "pixel_values", DType.FP16, last=True)
    jpeg, gray = file(image(50, 60), "JPEG"), image(40, 50, "L")
    found = step({"image": np.array([[jpeg], [file(gray)]], object)})["pixel_values"]
    assert found.shape == (2, 24, 32, 3)
    assert found.dtype == np.float16
    decoded = Image.open(io.BytesIO(jpeg)).convert("RGB").resize((32, 24), 2)
    np.testing.assert_allclose(found[0], normalized(decoded), atol=2e-3)
    np.testing.assert_allclose(
        found[1], normalized(gray.convert("RGB").resize((32, 24), 2)), atol=2e-3
    )


@pytest.mark.parametrize(
    "content", [b"", b"no image", file(image(9, 9), "GIF"), file(image(9, 9))[:90]]
)
def test_another_file_is_the_fault_of_its_request(read, content):
    step = PictureStep(read(PIXELS), "pixel_values", DType.FP32, last=False)
    good = file(image(9, 9))
    with pytest.raises(RequestFault, match="input 'image', row 1: found"):
        step({"image": np.array([[good], [content]], object)})


def test_a_picture_that_would_be_resized_to_gigabytes_is_refused(read):
    step = PictureStep(read(CLIP), "pixel_values", DType.FP32, last=False)
    with pytest.raises(RequestFault, match="input 'image', row 0: found a picture of 1 x 205 pix"):
        step({"image": np.array([[file(image(205, 1))]], object)})
    assert step({"image": np.array([[file(image(204, 1))]], object)})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            {"image_processor_type": "DetrImageProcessor"},
            "image_processor_type 'DetrImageProcessor'",
        ),
        ({"image_processor_type": None}, "image_processor_type ''"),
        ({"do_pad": True}, "the field 'do_pad' with True"),
        ({"do_resize": False}, "do_resize false"),
        ({"size": {"shortest_edge": 24}}, "no crop to one size"),
        ({"size": {"longest_edge": 24}}, "size {'longest_edge': 24}"),
        ({"size": -1}, "size -1"),
        ({"do_center_crop": True, "crop_size": 25}, r"crop_size \(25, 25\) above the size"),
        ({"image_std": [0, 1, 1]}, "image_mean"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"resample": 9}, "resample 9"),
        ({"size": None}, "size None"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_name(read, change, found):
    with pytest.raises(ArtifactFault, match=rf"preprocessor_config\.json: found .*{found}"):
        read({**PIXELS, **change})


def test_a_missing_field_is_named(read):
    with pytest.raises(ArtifactFault, match="found no field 'resample'"):
        read({name: own for name, own in PIXELS.items() if name != "resample"})


def test_fast_processors_and_fields_that_switch_something_off_are_accepted(read):
    more = {"do_pad": False, "data_format": "channels_first", "device": None, "crop_size": None}
    fast = {"image_processor_type": "ViTImageProcessorFast"}
    assert read({**PIXELS, **more, **fast}) == read(PIXELS)


def test_each_row_gets_mean_0_and_variance_1():
    audio = random(2, 500) * np.array([[1], [30]], np.float32) + 3
    found = SampleStep("x", DType.FP32, normalize=True)({"audio": audio})["x"]
    for row, given in zip(found, audio, strict=True):
        expected = (given - given.mean()) / np.sqrt(given.var() + 1e-7)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-5)
    assert found.dtype == np.float32


def test_integers_are_scaled():
    audio = np.array([[-32768, 0, 16384]], np.int16)
    found = SampleStep("x", DType.FP32, normalize=False)({"audio": audio})["x"]
    assert found.tolist() == [[-1.0, 0.0, 0.5]]


def test_no_samples_are_the_fault_of_the_request():
    with pytest.raises(RequestFault, match="input 'audio': found no samples"):
        SampleStep("x", DType.FP32, normalize=True)({"audio": np.zeros((1, 0), np.float32)})


def test_normalization_of_samples_is_read(tmp_path):
    file = tmp_path / "preprocessor_config.json"
    for more, expected in (
        ({}, True),
        ({"do_normalize": False, "processor_class": "Wav2Vec2Processor"}, False),
    ):
        file.write_text(json.dumps({**SAMPLES, **more}))
        assert reads_normalization(file) is expected
    for change, found in (
        ({"feature_extractor_type": "WhisperFeatureExtractor"}, "'WhisperFeatureExtractor'"),
        ({"feature_size": 80}, "'feature_size' with 80"),
        ({"padding_side": "left"}, "'padding_side' with 'left'"),
        ({"dither": 0.5}, "'dither' with 0.5"),
    ):
        file.write_text(json.dumps({**SAMPLES, **change}))
        with pytest.raises(ArtifactFault, match=rf"preprocessor_config\.json: found .*{found}"):
            reads_normalization(file)
