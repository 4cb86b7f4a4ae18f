"""JPEG files on the host: decoded images, and files that are rejected."""

import io

import numpy as np
import pytest

from ge_runtime.devices.jpeg import PillowDecoder
from ge_runtime.errors import RequestFault

image = pytest.importorskip("PIL.Image", reason="JPEG files need Pillow")


def jpeg(pixels, mode=None, **more):
    data = io.BytesIO()
    picture = image.fromarray(np.asarray(pixels, np.uint8))
    (picture.convert(mode) if mode else picture).save(data, "JPEG", quality=95, **more)
    return data.getvalue()


def gradient(height, width, *channels):
    down, across = np.mgrid[0:height, 0:width]
    grey = 40 + 150 * down / height + 40 * across / width
    return grey if not channels else np.stack([grey, 250 - grey, grey / 2], -1)


@pytest.fixture(scope="module")
def decoder():
    return PillowDecoder()


@pytest.mark.parametrize("progressive", [False, True])
def test_brightness_is_that_of_the_file(decoder, progressive):
    grey = gradient(64, 48)
    found = decoder.decode(jpeg(grey, progressive=progressive), 64, 48, 1)
    assert found.shape == (64, 48, 1)
    np.testing.assert_allclose(found[..., 0], grey, atol=3)


def test_colours_are_red_green_blue(decoder):
    colours = gradient(64, 48, 3)
    np.testing.assert_allclose(decoder.decode(jpeg(colours), 64, 48, 3), colours, atol=12)


def test_it_is_stretched_to_the_sides_that_are_wanted(decoder):
    found = decoder.decode(jpeg(gradient(65, 33)), 8, 16, 1)
    assert found.shape == (8, 16, 1)
    assert found[0].mean() < found[7].mean()
    assert decoder.decode(jpeg(gradient(64, 64, 3)), 6, 10, 3).shape == (6, 10, 3)


def test_files_of_other_colours_are_converted(decoder):
    found = decoder.decode(jpeg(gradient(64, 48, 3), "CMYK"), 64, 48, 3)
    np.testing.assert_allclose(found, gradient(64, 48, 3), atol=15)


def test_headers_are_read_without_decoding(decoder):
    assert decoder.header(jpeg(gradient(64, 48), progressive=True)) == (48, 64, 1, True)
    assert decoder.header(jpeg(gradient(64, 48, 3))) == (48, 64, 3, False)


def test_brightness_is_not_limited_by_colours_that_rgb_lacks(decoder):
    file = io.BytesIO()
    image.new("YCbCr", (64, 64), (60, 240, 240)).save(file, "JPEG", quality=95)
    found = decoder.decode(file.getvalue(), 64, 64, 1)
    np.testing.assert_allclose(found, 60, atol=2)


def test_files_of_the_most_pixels_are_decoded(decoder):
    assert decoder.decode(jpeg(np.zeros((1, 8192))), 8, 8, 1).shape == (8, 8, 1)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (b"", "found 0 bytes that are not a JPEG file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "found 38 bytes that are not a JPEG file"),
        (jpeg(gradient(64, 48))[:500], "found a damaged JPEG file"),
        (jpeg(np.zeros((1, 9000))), "found a JPEG file of 9000 x 1 pixels, expected a width and "),
    ],
)
def test_damaged_files_are_reported(decoder, file, text):
    with pytest.raises(RequestFault, match=text):
        decoder.decode(file, 8, 8, 1)
